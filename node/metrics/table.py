"""The table of all metrics: their names and what they mean; docs/metrics.md is made of it.

Names that begin with `rocketmq_` are RocketMQ's, labels included: its dashboards and alerts work.
"""

from dataclasses import dataclass

# Which labels all series of a metric have, beside its own.
OWN, NATIVE, PROCESS = "own", "native", "process"
EXPORTED, EXPORTED_BROKER, EXPORTED_RUNTIME = "exported", "exported_broker", "exported_runtime"
SCOPES: dict[str, tuple[str, ...]] = {
    OWN: ("cluster", "replica_group", "node_id"),
    NATIVE: ("cluster", "node_type", "node_id"),
    PROCESS: (),
    EXPORTED: ("cluster", "broker"),
    EXPORTED_BROKER: ("cluster", "brokerIP", "broker"),
    EXPORTED_RUNTIME: ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version"),
}
# Where a metric appears, if not on every node.
MASTER, AUTO, SLAVES, CLIENTS, CERTIFIED = "master", "auto", "slaves", "clients", "certified"
TRACED, MEASURED, AUDITED, REMOTING = "traced", "measured", "audited", "remoting"
COPIED = "copied"
REGISTERED = "registered"
WHERE = {
    MASTER: "Of a master.",
    AUTO: "Of a node whose role is elected.",
    CERTIFIED: "Of a node that has certificates.",
    CLIENTS: "Of a node that they call.",
    REMOTING: "Of a node with `remoting.listen`.",
    REGISTERED: "Of a node with `remoting.namesrv_addr`.",
    AUDITED: "Of a node with `audit.file` or `audit.topic`.",
    MEASURED: "Of a node with `rocketmq.client_metrics`.",
    TRACED: "Of a node with `traces.endpoint`.",
    COPIED: "Of a master with `rocketmq_slaves.listen`.",
    SLAVES: "Of a slave; of a master for each slave that follows it.",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. labels: beside those of its scope. where: empty for every node."""

    name: str
    kind: str
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    scope: str = OWN
    where: str = ""


def _own(name: str, help_: str, unit: str = "", labels: str = "", where: str = "") -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"duolog_{name}", kind, help_, unit, tuple(labels.split()), OWN, where)


def _duration(name: str, help_: str, labels: str = "") -> Metric:
    return Metric(f"duolog_{name}", "histogram", help_, "seconds", tuple(labels.split()))


def _native_histogram(name: str, help_: str, unit: str, labels: str) -> Metric:
    return Metric(f"rocketmq_{name}", "histogram", help_, unit, tuple(labels.split()), NATIVE)


def _native(name: str, help_: str, unit: str = "", labels: str = "", where: str = "") -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"rocketmq_{name}", kind, help_, unit, tuple(labels.split()), NATIVE, where)


def _exported(name: str, help_: str, unit: str = "", labels: str = "") -> Metric:
    return Metric(f"rocketmq_{name}", "gauge", help_, unit, tuple(labels.split()), EXPORTED, MASTER)


def _exported_broker(name: str, help_: str) -> Metric:
    return Metric(f"rocketmq_{name}", "gauge", help_, "", (), EXPORTED_BROKER, MASTER)


def _runtime(name: str, help_: str, unit: str = "") -> Metric:
    name = f"rocketmq_brokeruntime_{name}"
    return Metric(name, "gauge", help_, unit, (), EXPORTED_RUNTIME)


def _process(name: str, help_: str, unit: str) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"process_{name}", kind, help_, unit, (), PROCESS)


_STORAGE = "storage_type storage_medium"
# RocketMQ's ranges of the time that a put takes: names, words, upper bounds in seconds.
PUT_TIMES = (
    ("0ms", "less than 1 ms", 0.001),
    ("0to10ms", "1 to 10 ms", 0.01),
    ("10to50ms", "10 to 50 ms", 0.05),
    ("50to100ms", "50 to 100 ms", 0.1),
    ("100to200ms", "100 to 200 ms", 0.2),
    ("200to500ms", "200 to 500 ms", 0.5),
    ("500to1s", "0.5 to 1 s", 1.0),
    ("1to2s", "1 to 2 s", 2.0),
    ("2to3s", "2 to 3 s", 3.0),
    ("3to4s", "3 to 4 s", 4.0),
    ("4to5s", "4 to 5 s", 5.0),
    ("5to10s", "5 to 10 s", 10.0),
    ("10stomore", "more than 10 s", float("inf")),
)

DUOLOG = (
    _own("build_info", "1, with the version as label.", labels="version"),
    _own("role", "1 for the role that the node has now, 0 for the others.", labels="role"),
    _own("wall_time_seconds", "The node's wall clock, since the Unix epoch.", "seconds"),
    _own(
        "certificate_expiry_timestamp_seconds",
        "When the first of the node's certificates, or of the authorities that it trusts, expires, "
        "since the Unix epoch.",
        "seconds",
        where=CERTIFIED,
    ),
    _own("epoch", "Epoch of the newest mastership that the node knows of."),
    _own("elections_total", "Elections that the node won.", where=AUTO),
    _own("lease_seconds", "Length of the leases that etcd grants.", "seconds", where=AUTO),
    _own("drained", "1 if an operator has drained the node.", where=AUTO),
    _own(
        "lease_renewal_seconds_max",
        "How long the slowest of the last 20 renewals of the node's lease took, those that failed "
        "included.",
        "seconds",
        where=AUTO,
    ),
    _own(
        "lease_margin_seconds",
        "Time until the node's lease ends, unless it is renewed; a master stops then.",
        "seconds",
        where=AUTO,
    ),
    _own("in_sync_replicas", "Replicas in sync, the master included.", where=MASTER),
    _own("in_sync_replica", "1 for each replica in sync.", labels="replica", where=MASTER),
    _own(
        "replica_down_since_seconds",
        "When a node found that a member of its group has no lease, since the Unix epoch; 0: not "
        "known. One for each such member.",
        "seconds",
        "replica",
        AUTO,
    ),
    _own(
        "in_sync_replicas_required",
        "Replicas that must hold a message before its answer, where slaves are waited for.",
    ),
    _own(
        "replication_lag_bytes",
        "Bytes of the master's log that a slave does not have, since it has followed one.",
        "bytes",
        "slave",
        SLAVES,
    ),
    _own(
        "rocketmq_slaves",
        "Brokers of RocketMQ that copy the master's log, by address.",
        labels="address",
        where=COPIED,
    ),
    _own(
        "rocketmq_slave_lag_bytes",
        "Bytes of what is confirmed that a broker of RocketMQ at that address does not have, of "
        "several the largest.",
        "bytes",
        "address",
        COPIED,
    ),
    _own(
        "rocketmq_slave_lag_seconds",
        "How long ago it had all that was confirmed; 0 while it has it.",
        "seconds",
        "address",
        COPIED,
    ),
    _own(
        "replication_lag_seconds",
        "How long ago a slave had all of the master's log, or was first scraped if it never had; "
        "0 while it has it.",
        "seconds",
        "slave",
        SLAVES,
    ),
    _own(
        "damaged_frames_total",
        "Frames of replication that came with a wrong CRC since the node took its role; each ended "
        "its connection, and was sent again on the next one.",
    ),
    _own("log_min_offset", "Offset of the oldest record of the commit log.", "bytes"),
    _own("log_max_offset", "Offset after the newest record of the commit log.", "bytes"),
    _own("log_confirm_offset", "Offset that readers see the commit log up to.", "bytes"),
    _own("log_flushed_offset", "Offset up to which the commit log is on disk.", "bytes"),
    _own(
        "dispatch_behind_seconds_max",
        "Longest time that a stored batch waited for its queue entries since the start. Up to "
        "0.05 s where no reader waits.",
        "seconds",
    ),
    _duration("append_seconds", "Time to store one batch in the commit log, without its waits."),
    _duration(
        "append_wait_seconds",
        "Time that a stored batch of a duolog client waited for disk and slaves before its answer; "
        "those that wait for nothing are not counted.",
    ),
    _own(
        "append_failures_total",
        "Batches of duolog clients that were not stored, or not known to be safe in time.",
        labels="status",
    ),
    _duration(
        "call_seconds",
        "Time of a call of the native API that has one reply, over gRPC or frames; long_polling: "
        "whether it may wait for messages.",
        "method code long_polling",
    ),
    _duration("fsync_seconds", "Time of one sync of the commit log."),
    _own("recovery_seconds", "Time that recovery took at the last start.", "seconds"),
    _own("recovery_abnormal", "1 if the process before this one was killed or crashed."),
    _own(
        "last_stop",
        "1 for how the process before this one ended (clean, fenced or killed), 0 for the others.",
        labels="how",
    ),
    _own("recovery_cut_bytes", "Bytes of a torn tail that recovery cut off.", "bytes"),
    _own("damaged_ranges", "Ranges of the commit log that cannot be read."),
    _own("refused_records", "Records that got no queue entry because entries before it lack."),
    _own("writable", "1 if the node stores messages now."),
    _own("frozen", "1 while `duolog migrate rollback --freeze` keeps the node from storing."),
    _own("moves_running", "Queues that move to another replica group now.", where=MASTER),
    _own("moves_total", "Moves that ended, by outcome: moved or given_up.", labels="outcome"),
    _own(
        "move_pause_seconds",
        "For how long messages waited for the last move that ended well.",
        "seconds",
        where=MASTER,
    ),
    _own("move_puts_waiting", "Puts that wait for a move, or to be passed on.", where=MASTER),
    _own(
        "move_hold_seconds",
        "For how long messages to a queue that moves have waited, of the longest of these moves.",
        "seconds",
        where=MASTER,
    ),
    _own("fenced", "1 after an error of the disk or a bug: the node stores nothing more."),
    _own("disk_full", "1 while puts are refused because the disk is too full."),
    _own("disk_free_bytes", "Free space of the fullest file system of the store.", "bytes"),
    _own("disk_used_bytes", "Used space of the fullest file system of the store.", "bytes"),
    _own("queues", "Queues that have or had messages, light queues included."),
    _own("light_queues", "Light queues: one for each lite topic."),
    _own("pop_leases", "Messages that are delivered by POP and not acknowledged yet."),
    _own("waiting_polls", "Calls that wait for messages."),
    _own("timers_waiting", "Timed messages that wait for their time."),
    _own(
        "topics_not_expiring",
        "Topics with a retention whose messages could not be hidden in the last round.",
        where=MASTER,
    ),
    _own(
        "timer_overdue_seconds",
        "For how long the first timed message has been due that is not delivered; 0 for none.",
        "seconds",
        where=MASTER,
    ),
    _own(
        "half_message_age_seconds",
        "Age of the oldest half message without a decision.",
        "seconds",
        "topic",
        MASTER,
    ),
    _own("frames_connections", "Connections of SDK clients by frames."),
    _own(
        "frames_buffered_bytes",
        "Bytes held for long requests that have not arrived whole.",
        "bytes",
    ),
    _own("remoting_connections", "Connections by RocketMQ's remoting protocol.", where=REMOTING),
    _own(
        "remoting_buffered_bytes",
        "Bytes held for requests by it that have not arrived whole.",
        "bytes",
        where=REMOTING,
    ),
    _own(
        "remoting_refused_connections_total",
        "Connections by it that were closed at once, as there were too many.",
        where=REMOTING,
    ),
    _own("name_servers", "RocketMQ's name servers that the node registers at.", where=REGISTERED),
    _own(
        "name_servers_lost",
        "Name servers without the node's current registration.",
        where=REGISTERED,
    ),
    _own("spans_exported_total", "Spans that the collector took.", where=TRACED),
    _own(
        "spans_refused_total",
        "Spans that the collector did not take, or did not answer for.",
        where=TRACED,
    ),
    _own(
        "spans_left_out_total",
        "Spans beyond `traces.spans_per_batch_max`, which were not made.",
        where=TRACED,
    ),
    _own(
        "span_batches_lost_total",
        "Batches of which no spans were made: the exporter was too slow.",
        where=TRACED,
    ),
    _own("quotas", "Quotas in force."),
    _own(
        "throttled_calls_total",
        "Calls over a quota, by what it limits (User, Client, Topic, Namespace) and the limit: "
        "sends and connections refused, reads delayed.",
        labels="kind limit",
    ),
    _own(
        "audit_entries_total",
        "Entries of the audit log that were written, to `file` or `topic`.",
        labels="to",
        where=AUDITED,
    ),
    _own(
        "audit_entries_lost_total",
        "Entries that found no room, since too many waited to be written.",
        labels="to",
        where=AUDITED,
    ),
    _own(
        "frames_refused_connections_total",
        "Connections by frames that were closed at once, as there were too many.",
    ),
    _own(
        "untaken_answers_bytes",
        "Bytes of messages in answers that clients have not taken yet.",
        "bytes",
    ),
    _own(
        "untaken_answers_refused_total",
        "Reads refused because their client took no answers for 10 s.",
    ),
    _own("failed_logins_total", "Wrong passwords and signatures, by all protocols."),
    _own(
        "locked_out_logins_total",
        "Logins that were refused unseen: too many of that user failed from that network.",
    ),
    _own("metrics_series_dropped", "Series left out of this scrape: see `metrics.series_max`."),
    _own(
        "metrics_age_seconds",
        "How long ago the node began to read the figures of this scrape; of the last finished "
        "ones, where new ones would take too long.",
        "seconds",
    ),
)

_GROUP = "consumer_group topic is_retry is_system"

TRAFFIC = (
    _native(
        "messages_in_total",
        "Messages from clients; message_type: normal fifo delay transaction priority lite.",
        labels="topic message_type is_system",
    ),
    _native(
        "throughput_in_total",
        "Bytes of the bodies of messages from clients.",
        "bytes",
        "topic message_type is_system",
    ),
    _native(
        "messages_out_total",
        "Messages given to clients, and given again; consumer_group is empty for readers that "
        "name none.",
        labels=_GROUP,
    ),
    _native(
        "throughput_out_total",
        "Bytes of the bodies of messages given to clients.",
        "bytes",
        _GROUP,
    ),
    _native(
        "send_to_dlq_messages_total",
        "Messages given up: stored in the group's dead-letter topic.",
        labels="consumer_group topic is_system",
    ),
    _native_histogram(
        "message_size",
        "Bytes of the bodies of messages from clients, each counted by itself.",
        "bytes",
        "topic message_type is_system",
    ),
    _native("half_messages", "Half messages without a decision.", labels="topic", where=MASTER),
    _native("commit_messages_total", "Half messages that producers committed.", labels="topic"),
    _native("rollback_messages_total", "Half messages that producers rolled back.", labels="topic"),
    _native_histogram(
        "finish_message_latency",
        "Age of half messages when their producers decide them.",
        "seconds",
        "topic",
    ),
)

_TIMER = f"topic {_STORAGE}"

TIMERS = (
    _native("timer_enqueue_total", "Messages that began to wait for a time.", labels=_TIMER),
    _native("timer_dequeue_total", "Messages delivered at their times.", labels=_TIMER),
    _native(
        "timer_enqueue_lag",
        "Timed messages that are stored, and not yet among those that wait.",
        labels=_STORAGE,
        where=MASTER,
    ),
    _native(
        "timer_dequeue_lag",
        "Timed messages that are due and not delivered.",
        labels=_STORAGE,
        where=MASTER,
    ),
    _native(
        "timer_dequeue_latency",
        "For how long the first of them has been due; 0 for none.",
        "milliseconds",
        _STORAGE,
        MASTER,
    ),
    _native(
        "timer_message_snapshot",
        "Timed messages that are due within timer_bound_s seconds, and not within the bound before "
        "it; one that was recalled counts until its time.",
        labels=f"timer_bound_s {_STORAGE}",
        where=MASTER,
    ),
)

CALLS = (
    _native_histogram(
        "rpc_latency",
        "Time of a call of RocketMQ's gRPC API, or of a request by its remoting protocol; "
        "request_code is its method or code, is_long_polling says whether it may wait for "
        "messages.",
        "milliseconds",
        "protocol_type request_code response_code is_long_polling result",
    ),
)

CONSUMERS = (
    _native(
        "consumer_lag_messages",
        "Messages that a group has not consumed: ready and in flight.",
        labels=_GROUP,
        where=MASTER,
    ),
    _native(
        "consumer_ready_messages",
        "Messages that wait for a consumer; those that members of the SDK have fetched ahead count "
        "as ready.",
        labels=_GROUP,
        where=MASTER,
    ),
    _native(
        "consumer_inflight_messages",
        "Messages delivered by POP and not acknowledged yet.",
        labels=_GROUP,
        where=MASTER,
    ),
    _native(
        "consumer_lag_latency",
        "Age of the oldest message that a group has not consumed; 0 for none.",
        "milliseconds",
        _GROUP,
        MASTER,
    ),
    _native(
        "consumer_queueing_latency",
        "Age of the oldest message that waits for a consumer; 0 for none.",
        "milliseconds",
        _GROUP,
        MASTER,
    ),
    _native(
        "consumer_connections",
        "Consumers; of the SDK (protocol_type duolog), those that are members of a group.",
        labels="consumer_group language version consume_mode protocol_type is_system",
        where=CLIENTS,
    ),
    _native(
        "producer_connections",
        "Producers of RocketMQ's gRPC clients. Those of the SDK are not told from other clients.",
        labels="language version protocol_type",
        where=CLIENTS,
    ),
)

RUNNING = (
    _native("broker_permission", "6: puts and reads; 4: reads; 0: neither."),
    _native("topic_number", "Topics."),
    _native("consumer_group_number", "Consumer groups."),
    _native(
        "storage_size", "Bytes of the commit log, from its oldest record on.", "bytes", _STORAGE
    ),
    _native("storage_flush_behind_bytes", "Bytes that are not on disk yet.", "bytes", _STORAGE),
    _native(
        "storage_dispatch_behind_bytes",
        "Bytes that readers may see and queues do not have yet.",
        "bytes",
        _STORAGE,
    ),
    _native("storage_message_reserve_time", "Age of the oldest message.", "milliseconds", _STORAGE),
)

EXPORTER = (
    _exported_broker("broker_tps", "Messages from clients in a second, of the last minute."),
    _exported_broker("broker_qps", "Messages to clients in a second, of the last minute."),
    _exported("producer_offset", "Sum of the ends of a topic's queues.", labels="topic"),
    _exported(
        "producer_tps", "Messages from clients in a second, of the last minute.", labels="topic"
    ),
    _exported(
        "producer_message_size",
        "Bytes of bodies from clients in a second, of the last minute.",
        "bytes",
        "topic",
    ),
    _exported("topic_retry_offset", "Sum of the ends of a retry topic's queues.", labels="topic"),
    _exported("topic_dlq_offset", "Dead letters of a group, since it has any.", labels="group"),
    _exported(
        "consumer_offset", "Sum of a group's offsets in a topic's queues.", labels="topic group"
    ),
    _exported(
        "consumer_tps", "Messages to a group in a second, of the last minute.", labels="topic group"
    ),
    _exported(
        "consumer_message_size",
        "Bytes of bodies to a group in a second, of the last minute.",
        "bytes",
        "topic group",
    ),
    _exported(
        "group_get_latency_by_storetime",
        "Age of the oldest message that a group has not consumed; 0 for none.",
        "milliseconds",
        "topic group",
    ),
    _runtime("put_tps10", "Messages from clients in a second, of the last 10 s."),
    _runtime("gettransfered_tps10", "Messages to clients in a second, of the last 10 s."),
    _runtime("getfound_tps10", "Reads in a second that found messages, of the last 10 s."),
    _runtime("getmiss_tps10", "Reads in a second that found nothing, of the last 10 s."),
    _runtime("gettotal_tps10", "Reads in a second, of the last 10 s."),
    _runtime("msg_put_total_today_now", "Messages from clients since the start."),
    _runtime("msg_gettotal_today_now", "Messages to clients since the start."),
    _runtime("put_message_size_total", "Bytes of bodies from clients since the start.", "bytes"),
    _runtime("put_message_average_size", "Bytes of a body from clients, on average.", "bytes"),
    _runtime("commitlog_minoffset", "Offset of the oldest record of the commit log.", "bytes"),
    _runtime("commitlog_maxoffset", "Offset after the newest record of the commit log.", "bytes"),
    _runtime(
        "dispatch_behind_bytes", "Bytes that readers may see and queues do not have yet.", "bytes"
    ),
    _runtime("commitlog_disk_ratio", "Used share of the commit log's file system, 0 to 1."),
    _runtime("consumequeue_disk_ratio", "Used share of the queues' file system, 0 to 1."),
    _runtime("commitlogdir_capacity_total", "Size of the commit log's file system.", "bytes"),
    _runtime("commitlogdir_capacity_free", "Free space of the commit log's file system.", "bytes"),
    *(
        _runtime(f"pmdt_{name}", f"Batches stored in {words}, since the start.")
        for name, words, _ in PUT_TIMES
    ),
)

PROCESSES = (
    _process("cpu_seconds_total", "Total user and system CPU time spent in seconds.", "seconds"),
    _process("resident_memory_bytes", "Resident memory size in bytes.", "bytes"),
    _process("virtual_memory_bytes", "Virtual memory size in bytes.", "bytes"),
    _process(
        "start_time_seconds", "Start time of the process since unix epoch in seconds.", "seconds"
    ),
    _process("open_fds", "Number of open file descriptors.", ""),
    _process("max_fds", "Maximum number of open file descriptors.", ""),
)


def _measured(name: str, help_: str, labels: str, unit: str = "ms") -> Metric:
    kind = "histogram" if unit == "ms" else "gauge"
    return Metric(f"rocketmq_{name}", kind, help_, unit, tuple(labels.split()), NATIVE, MEASURED)


# Of all clients together that push to the node, without their ids.
MEASURES = (
    _measured("send_cost_time", "Time of a send.", "topic invocation_status"),
    _measured(
        "delivery_latency", "Time from a send until the message arrives.", "topic consumer_group"
    ),
    _measured("await_time", "Time that a message waits in a consumer.", "topic consumer_group"),
    _measured(
        "process_time",
        "Time that a consumer's listener takes.",
        "topic consumer_group invocation_status",
    ),
    _measured(
        "consumer_cached_messages",
        "Messages in consumers, before their listeners.",
        "topic consumer_group",
        "",
    ),
    _measured("consumer_cached_bytes", "Their bodies.", "topic consumer_group", "bytes"),
    _own(
        "client_points_refused_total",
        "Points that clients pushed and that are not valid, not allowed, or of too many series.",
        where=MEASURED,
    ),
)
SECTIONS: dict[str, tuple[Metric, ...]] = {
    "The node": DUOLOG,
    "RocketMQ 5's: the broker": RUNNING,
    "RocketMQ 5's: messages": TRAFFIC,
    "RocketMQ 5's: timed messages": TIMERS,
    "RocketMQ 5's: calls": CALLS,
    "RocketMQ 5's: consumers and producers": CONSUMERS,
    "RocketMQ 5's: measured by clients": MEASURES,
    "rocketmq-exporter's": EXPORTER,
    "The process": PROCESSES,
}
METRICS: tuple[Metric, ...] = tuple(one for section in SECTIONS.values() for one in section)
BY_NAME = {metric.name: metric for metric in METRICS}
assert len(BY_NAME) == len(METRICS), "a metric is declared once"
