"""The cluster at a glance: is it well, how much goes through it, what does it use."""

from tools.dashboards.panels import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    MESSAGES_PER_S,
    MILLISECONDS,
    PER_S,
    SECONDS,
    SHARE,
    Dashboard,
    Panel,
    Query,
    Row,
    graph,
    number,
    zero_is_good,
)
from tools.dashboards.selectors import (
    CLUSTER,
    INTERVAL,
    OWN,
    REPLICA_GROUP,
    WITHOUT_MASTER,
    of_processes,
    of_replica_groups,
    quantile,
)

CLIENTS = 'cluster=~"$cluster", is_system="false"'
NATIVE = 'cluster=~"$cluster"'


def flow(metric: str) -> str:
    """The rate of a counter of messages, by replica group."""
    rate = f"sum by (cluster, node_id) (rate({metric}{{{CLIENTS}}}{INTERVAL}))"
    return f"sum by (replica_group) ({of_replica_groups(rate)})"


def storage(metric: str) -> str:
    """A figure of each node's storage."""
    return of_replica_groups(f"sum by (cluster, node_id) ({metric}{{{NATIVE}}})")


HEALTH = Row(
    "Health",
    (
        number(
            "Nodes", "Nodes whose metrics Prometheus gets.", f"count(duolog_build_info{{{OWN}}})"
        ),
        zero_is_good(
            "Nodes without an answer",
            "Targets of the jobs that scrape duolog, of any cluster, that do not answer.",
            "count((up == 0) * on (job) group_left () "
            "max by (job) (max_over_time(duolog_build_info[1h]))) or vector(0)",
        ),
        zero_is_good(
            "Groups without a master",
            "Replica groups of which no node says that it is the master: they store nothing.",
            WITHOUT_MASTER,
        ),
        zero_is_good(
            "Groups short of replicas",
            "Replica groups with fewer replicas in sync than a message must be held by: where "
            "slaves are waited for, they store nothing.",
            f"count(duolog_in_sync_replicas{{{OWN}}} < duolog_in_sync_replicas_required) "
            "or vector(0)",
        ),
        zero_is_good(
            "Nodes that store nothing",
            "Nodes that are fenced, after an error of the disk or a bug, or whose disk is full.",
            f"sum(duolog_fenced{{{OWN}}}) + sum(duolog_disk_full{{{OWN}}})",
        ),
        zero_is_good(
            "Damaged ranges",
            "Ranges of commit logs that cannot be read. A slave repairs its own from its master.",
            f"sum(duolog_damaged_ranges{{{OWN}}})",
        ),
        Panel(
            "Nodes and roles",
            "The role of each node now, and its version.",
            (
                Query(
                    f"(duolog_role{{{OWN}}} == 1) * on (cluster, node_id) group_left (version) "
                    "duolog_build_info"
                ),
            ),
            kind="table",
            width=12,
            columns=("cluster", "replica_group", "node_id", "role", "version", "instance"),
        ),
        Panel(
            "Writable",
            "Whether nodes store messages now. Of a group, only the master does.",
            (Query(f"duolog_writable{{{OWN}}}", "{{node_id}}"),),
            kind="state-timeline",
            width=12,
            states=((1, "stores", "green"), (0, "does not", "#808080")),
        ),
    ),
)

TRAFFIC = Row(
    "Messages",
    (
        graph(
            "Messages in",
            "Messages from clients in a second.",
            MESSAGES_PER_S,
            (flow("rocketmq_messages_in_total"), "{{replica_group}}"),
            stacked=True,
        ),
        graph(
            "Messages out",
            "Messages given to clients in a second, further attempts included.",
            MESSAGES_PER_S,
            (flow("rocketmq_messages_out_total"), "{{replica_group}}"),
            stacked=True,
        ),
        graph(
            "Messages not consumed",
            "Sum over all groups of what they have not consumed.",
            COUNT,
            (f"sum(rocketmq_consumer_lag_messages{{{CLIENTS}}})", "all groups"),
        ),
        graph(
            "Bytes in",
            "Bytes of the bodies of messages from clients in a second.",
            BYTES_PER_S,
            (flow("rocketmq_throughput_in_total"), "{{replica_group}}"),
            stacked=True,
        ),
        graph(
            "Bytes out",
            "Bytes of the bodies of messages given to clients in a second.",
            BYTES_PER_S,
            (flow("rocketmq_throughput_out_total"), "{{replica_group}}"),
            stacked=True,
        ),
        graph(
            "Topics and groups",
            "How many there are. Nodes of a group have the same ones.",
            COUNT,
            (f"max by (cluster) (rocketmq_topic_number{{{NATIVE}}})", "topics of {{cluster}}"),
            (
                f"max by (cluster) (rocketmq_consumer_group_number{{{NATIVE}}})",
                "consumer groups of {{cluster}}",
            ),
        ),
    ),
)

DISK = Row(
    "Log and disk",
    (
        graph(
            "Time to store a batch",
            "Time to write one batch into the commit log, without waiting for a sync or slaves.",
            SECONDS,
            (quantile(0.5, "duolog_append_seconds"), "{{node_id}} p50"),
            (quantile(0.99, "duolog_append_seconds"), "{{node_id}} p99"),
        ),
        graph(
            "Time of a sync",
            "Time of one sync of the commit log. Without SYNC_FLUSH, puts do not wait for it.",
            SECONDS,
            (quantile(0.5, "duolog_fsync_seconds"), "{{node_id}} p50"),
            (quantile(0.99, "duolog_fsync_seconds"), "{{node_id}} p99"),
        ),
        graph(
            "Batches stored",
            "Batches written into the commit log in a second.",
            PER_S,
            (f"rate(duolog_append_seconds_count{{{OWN}}}{INTERVAL})", "{{node_id}}"),
        ),
        graph(
            "Not on disk yet",
            "Bytes of the commit log that a power cut would lose from this node.",
            BYTES,
            (storage("rocketmq_storage_flush_behind_bytes"), "{{node_id}}"),
        ),
        graph(
            "Not in queues yet",
            "Bytes that readers may see and queues do not have yet. It falls to 0 within "
            "milliseconds; what stays is a stuck dispatch.",
            BYTES,
            (storage("rocketmq_storage_dispatch_behind_bytes"), "{{node_id}}"),
        ),
        graph(
            "Longest wait for queue entries",
            "Longest time that a batch waited for its queue entries since the node's start.",
            SECONDS,
            (f"duolog_dispatch_behind_seconds_max{{{OWN}}}", "{{node_id}}"),
        ),
        graph(
            "Disk used",
            "Used share of the store's file system. Puts are refused when it is too full.",
            SHARE,
            (
                f"duolog_disk_used_bytes{{{OWN}}} / (duolog_disk_used_bytes{{{OWN}}} "
                f"+ duolog_disk_free_bytes{{{OWN}}})",
                "{{node_id}}",
            ),
        ),
        graph(
            "Commit log",
            "Bytes from the oldest record to the newest.",
            BYTES,
            (storage("rocketmq_storage_size"), "{{node_id}}"),
        ),
        graph(
            "Age of the oldest message",
            "How far back readers can go: what retention leaves.",
            MILLISECONDS,
            (storage("rocketmq_storage_message_reserve_time"), "{{node_id}}"),
        ),
    ),
)

CALLS = Row(
    "Calls",
    (
        graph(
            "Waits of batches",
            "Time that stored batches of duolog clients waited for disk and slaves before their "
            "answers.",
            SECONDS,
            (quantile(0.5, "duolog_append_wait_seconds"), "{{node_id}} p50"),
            (quantile(0.99, "duolog_append_wait_seconds"), "{{node_id}} p99"),
        ),
        graph(
            "Time of calls of duolog clients, p99",
            "By method, without those that may wait for messages.",
            SECONDS,
            (
                quantile(0.99, "duolog_call_seconds", "method", f'{OWN}, long_polling="false"'),
                "{{method}}",
            ),
        ),
        graph(
            "Time of calls of RocketMQ's clients, p99",
            "By request, without those that may wait for messages.",
            MILLISECONDS,
            (
                quantile(
                    *(0.99, "rocketmq_rpc_latency", "request_code"),
                    f'{NATIVE}, is_long_polling="false"',
                ),
                "{{request_code}}",
            ),
        ),
        graph(
            "Calls",
            "Calls that ended in a second: of duolog clients by method, of RocketMQ's by request.",
            PER_S,
            (f"sum by (method) (rate(duolog_call_seconds_count{{{OWN}}}{INTERVAL}))", "{{method}}"),
            (
                f"sum by (request_code) (rate(rocketmq_rpc_latency_count{{{NATIVE}}}{INTERVAL}))",
                "{{request_code}}",
            ),
        ),
        graph(
            "Failed calls",
            "Calls of duolog clients in a second that ended with another code than OK.",
            PER_S,
            (
                "sum by (method, code) "
                f'(rate(duolog_call_seconds_count{{{OWN}, code!="OK"}}{INTERVAL}))',
                "{{method}} {{code}}",
            ),
        ),
        graph(
            "Failed batches",
            "Batches of duolog clients in a second that were not stored, or not known to be safe "
            "in time.",
            PER_S,
            (
                f"sum by (status) (rate(duolog_append_failures_total{{{OWN}}}{INTERVAL}))",
                "{{status}}",
            ),
        ),
    ),
)

HELD = Row(
    "Clients and what waits",
    (
        graph(
            "Clients",
            "Consumers, producers of RocketMQ's gRPC clients, and connections by frames.",
            COUNT,
            (f"sum(rocketmq_consumer_connections{{{NATIVE}}})", "consumers"),
            (f"sum(rocketmq_producer_connections{{{NATIVE}}})", "producers (RocketMQ's)"),
            (f"sum(duolog_frames_connections{{{OWN}}})", "frames connections"),
            (f"sum(duolog_remoting_connections{{{OWN}}})", "remoting connections"),
        ),
        graph(
            "Calls that wait",
            "Calls that wait for messages.",
            COUNT,
            (f"duolog_waiting_polls{{{OWN}}}", "{{node_id}}"),
        ),
        graph(
            "Leases and timers",
            "Messages delivered by POP and not acknowledged; timed messages before their time.",
            COUNT,
            (f"sum by (replica_group) (duolog_pop_leases{{{OWN}}})", "{{replica_group}} leases"),
            (
                f"sum by (replica_group) (duolog_timers_waiting{{{OWN}}})",
                "{{replica_group}} timers",
            ),
        ),
    ),
)

PROCESSES = Row(
    "Processes",
    (
        graph(
            "CPU",
            "Seconds of CPU time in a second: 1 is one core.",
            COUNT,
            (of_processes(f"rate(process_cpu_seconds_total{INTERVAL})"), "{{node_id}}"),
        ),
        graph(
            "Memory",
            "Resident memory. Mapped files count, as far as they are in the page cache.",
            BYTES,
            (of_processes("process_resident_memory_bytes"), "{{node_id}}"),
        ),
        graph(
            "Open files",
            "Open file descriptors, as a share of what the process may open.",
            SHARE,
            (of_processes("process_open_fds / process_max_fds"), "{{node_id}}"),
        ),
        graph(
            "Time since the start",
            "It falls to 0 when a node starts again.",
            SECONDS,
            (of_processes("time() - process_start_time_seconds"), "{{node_id}}"),
        ),
        graph(
            "Clocks",
            "How far a node's clock is ahead of Prometheus'. A slow scrape adds its time.",
            SECONDS,
            (
                f"duolog_wall_time_seconds{{{OWN}}} - timestamp(duolog_wall_time_seconds{{{OWN}}})",
                "{{node_id}}",
            ),
        ),
        graph(
            "Certificates",
            "Time until the first certificate of a node expires.",
            SECONDS,
            (f"duolog_certificate_expiry_timestamp_seconds{{{OWN}}} - time()", "{{node_id}}"),
        ),
        graph(
            "Late timed messages",
            "For how long the first timed message has been due that is not delivered.",
            SECONDS,
            (
                f"max by (replica_group) (duolog_timer_overdue_seconds{{{OWN}}})",
                "{{replica_group}}",
            ),
        ),
        graph(
            "Queues",
            "Queues that have or had messages, and those of lite topics among them.",
            COUNT,
            (f"duolog_queues{{{OWN}}}", "{{node_id}}"),
            (f"duolog_light_queues{{{OWN}}}", "{{node_id}} light"),
        ),
        graph(
            "Series left out",
            "Series over `metrics.series_max`: topics and groups without figures on these pages.",
            COUNT,
            (f"duolog_metrics_series_dropped{{{OWN}}}", "{{node_id}}"),
        ),
    ),
)

DASHBOARD = Dashboard(
    "cluster",
    "duolog: cluster",
    "Whether the cluster is well, how much goes through it, and what it uses.",
    (CLUSTER, REPLICA_GROUP),
    (HEALTH, TRAFFIC, CALLS, DISK, HELD, PROCESSES),
)
