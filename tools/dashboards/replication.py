"""Replication and failover: who leads, who is in sync, what recovery found."""

from tools.dashboards.panels import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    GREEN,
    RED,
    SECONDS,
    YELLOW,
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
)


def each(metric: str) -> tuple[str, str]:
    """A gauge of each node."""
    return f"{metric}{{{OWN}}}", "{{node_id}}"


def by_group(metric: str, aggregate: str = "max") -> tuple[str, str]:
    """A gauge of a replica group."""
    return f"{aggregate} by (replica_group) ({metric}{{{OWN}}})", "{{replica_group}}"


def of_slaves(metric: str) -> tuple[str, str]:
    """A lag, which both its slave and the master report: the longer one."""
    return f"max by (replica_group, slave) ({metric}{{{OWN}}})", "{{replica_group}} {{slave}}"


ROLES = Row(
    "Who leads",
    (
        number("Epoch", "The newest mastership.", f"max(duolog_epoch{{{OWN}}})"),
        number(
            "Elections",
            "Elections won in the range of time that is shown.",
            f"round(sum(increase(duolog_elections_total{{{OWN}}}[$__range]))) or vector(0)",
        ),
        zero_is_good(
            "Groups without a master",
            "Replica groups of which no node says that it is the master.",
            WITHOUT_MASTER,
        ),
        zero_is_good(
            "Groups with two masters",
            "Replica groups of which two nodes say so at once. For a moment it is the past of one "
            "of them: they are scraped one after the other.",
            "count(sum by (cluster, replica_group) "
            f'(duolog_role{{{OWN}, role="master"}}) > 1) or vector(0)',
        ),
        number(
            "Greatest lag",
            "Bytes of the master's log that the slave furthest behind lacks.",
            f"max(duolog_replication_lag_bytes{{{OWN}}})",
            BYTES,
        ),
        number(
            "Least margin of a lease",
            "Time until the first lease ends, unless it is renewed. Only of elected nodes.",
            f"min(duolog_lease_margin_seconds{{{OWN}}} and on (cluster, node_id) "
            f'duolog_role{{{OWN}, role="master"}} == 1)',
            SECONDS,
        ),
        Panel(
            "Roles",
            "What each node is. A standing node neither leads nor follows.",
            (
                Query(
                    f'sum without (role) (duolog_role{{{OWN}, role="master"}} * 2) '
                    f'+ sum without (role) (duolog_role{{{OWN}, role="standing"}})',
                    "{{replica_group}} {{node_id}}",
                ),
            ),
            kind="state-timeline",
            width=12,
            states=((2, "master", GREEN), (0, "slave", "blue"), (1, "standing", RED)),
        ),
        Panel(
            "In sync",
            "Replicas that may become the master, as the masters of their groups say.",
            (
                Query(
                    f"max by (replica_group, replica) (duolog_in_sync_replica{{{OWN}}})",
                    "{{replica_group}} {{replica}}",
                ),
            ),
            kind="state-timeline",
            width=12,
            states=((1, "in sync", GREEN),),
        ),
        graph("Epoch", "It grows with each mastership.", COUNT, by_group("duolog_epoch")),
        graph(
            "Elections",
            "Elections that a node won, in the last 10 minutes.",
            COUNT,
            (f"increase(duolog_elections_total{{{OWN}}}[10m])", "{{node_id}}"),
        ),
        graph(
            "Margin of leases",
            "Time until a lease ends, unless it is renewed; a master stops then. It falls "
            "until each renewal, and then rises to nearly the length of the lease.",
            SECONDS,
            each("duolog_lease_margin_seconds"),
        ),
    ),
)

LEASES = Row(
    "Leases",
    (
        graph(
            "Slowest renewal",
            "The slowest of the last 20 renewals of a lease: how slow etcd is.",
            SECONDS,
            (f"duolog_lease_renewal_seconds_max{{{OWN}}}", "{{node_id}}"),
        ),
        graph(
            "Length of leases",
            "As etcd grants them.",
            SECONDS,
            (f"duolog_lease_seconds{{{OWN}}}", "{{node_id}}"),
        ),
        graph(
            "Drained nodes",
            "1 for a node that is drained: it is not elected, and no put waits for it.",
            COUNT,
            (f"duolog_drained{{{OWN}}}", "{{node_id}}"),
        ),
    ),
)

COPIES = Row(
    "Copies",
    (
        graph(
            "Replicas in sync",
            "Beside how many must hold a message before its answer, where slaves are waited for.",
            COUNT,
            (
                f"max by (replica_group) (duolog_in_sync_replicas{{{OWN}}})",
                "{{replica_group}} in sync",
            ),
            (
                f"max by (replica_group) (duolog_in_sync_replicas_required{{{OWN}}})",
                "{{replica_group}} required",
            ),
        ),
        graph(
            "Lag in bytes",
            "Bytes of the master's log that a slave does not have.",
            BYTES,
            of_slaves("duolog_replication_lag_bytes"),
        ),
        graph(
            "Lag in seconds",
            "How long ago a slave had all of the master's log; 0 while it has it.",
            SECONDS,
            of_slaves("duolog_replication_lag_seconds"),
        ),
        graph(
            "Growth of the log",
            "Bytes that the commit log grows by in a second: of a slave, what it copies.",
            BYTES_PER_S,
            (f"deriv(duolog_log_max_offset{{{OWN}}}{INTERVAL})", "{{node_id}}"),
        ),
        graph(
            "Not confirmed",
            "Bytes at the end of the log that readers do not see yet: too few replicas have them.",
            BYTES,
            (
                f"duolog_log_max_offset{{{OWN}}} - duolog_log_confirm_offset{{{OWN}}}",
                "{{node_id}}",
            ),
        ),
        graph(
            "Not on disk",
            "Bytes at the end of the log that are not on this node's disk yet.",
            BYTES,
            (
                f"duolog_log_max_offset{{{OWN}}} - duolog_log_flushed_offset{{{OWN}}}",
                "{{node_id}}",
            ),
        ),
    ),
)

RECOVERY = Row(
    "Recovery and damage",
    (
        graph(
            "Time of recovery",
            "Time that recovery took at the last start.",
            SECONDS,
            each("duolog_recovery_seconds"),
        ),
        Panel(
            "Last stop",
            "Whether the process before this one was killed or crashed.",
            (Query(*each("duolog_recovery_abnormal")),),
            kind="state-timeline",
            states=((0, "clean", GREEN), (1, "killed or crashed", YELLOW)),
        ),
        graph(
            "Torn tail",
            "Bytes that recovery cut off at the last start; a slave copies them again.",
            BYTES,
            each("duolog_recovery_cut_bytes"),
        ),
        graph(
            "Damage",
            "Ranges of the log that cannot be read, and records without a queue entry because "
            "earlier records of their queue are missing.",
            COUNT,
            (f"duolog_damaged_ranges{{{OWN}}}", "{{node_id}} ranges"),
            (f"duolog_refused_records{{{OWN}}}", "{{node_id}} records"),
        ),
        Panel(
            "Fenced",
            "Fenced after an error of the disk or a bug: nothing is stored any more. Read the "
            "node's log before it starts again.",
            (Query(*each("duolog_fenced")),),
            kind="state-timeline",
            states=((0, "no", GREEN), (1, "fenced", RED)),
        ),
        Panel(
            "Disk full",
            "Puts are refused while the disk is too full.",
            (Query(*each("duolog_disk_full")),),
            kind="state-timeline",
            states=((0, "no", GREEN), (1, "full", RED)),
        ),
    ),
)

DASHBOARD = Dashboard(
    "replication",
    "duolog: replication",
    "Who leads each replica group, which replicas are in sync, and what recovery found.",
    (CLUSTER, REPLICA_GROUP),
    (ROLES, LEASES, COPIES, RECOVERY),
)
