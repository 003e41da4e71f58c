"""Which series a dashboard shows: variables, and the selectors that go by them."""

from tools.dashboards.panels import Variable

INTERVAL = "[$__rate_interval]"

CLUSTER = Variable("cluster", "cluster", "duolog_build_info", "Cluster")
REPLICA_GROUP = Variable(
    "replica_group", "replica_group", 'duolog_build_info{cluster=~"$cluster"}', "Replica group"
)
TOPIC = Variable("topic", "topic", 'rocketmq_producer_offset{cluster=~"$cluster"}', "Topic")
GROUP = Variable(
    "group",
    "consumer_group",
    'rocketmq_consumer_lag_messages{cluster=~"$cluster", is_system="false"}',
    "Consumer group",
)
GROUPS_TOPIC = Variable(
    "topic",
    "topic",
    'rocketmq_consumer_lag_messages{cluster=~"$cluster", consumer_group=~"$group"}',
    "Topic",
)

# Of duolog's own metrics.
OWN = 'cluster=~"$cluster", replica_group=~"$replica_group"'
# Of RocketMQ 5's, by topic and by group; a retry topic's messages belong to no topic of a client.
BY_TOPIC = 'cluster=~"$cluster", topic=~"$topic", is_system="false"'
BY_GROUP = 'cluster=~"$cluster", consumer_group=~"$group", topic=~"$topic", is_system="false"'
# Replica groups that had nodes within a day, and of which none says now that it is the master.
WITHOUT_MASTER = (
    f"count(group by (cluster, replica_group) (max_over_time(duolog_build_info{{{OWN}}}[1d])) "
    f'unless on (cluster, replica_group) (duolog_role{{{OWN}, role="master"}} == 1)) or vector(0)'
)


def of_replica_groups(expression: str) -> str:
    """Series of RocketMQ 5's metrics, which do not name the replica group: with its label."""
    known = f"max by (cluster, replica_group, node_id) (duolog_build_info{{{OWN}}})"
    return f"({expression}) * on (cluster, node_id) group_left (replica_group) {known}"


def of_processes(expression: str) -> str:
    """Series of a process, which name the scraped address alone: with the node's labels."""
    known = f"max by (job, instance, cluster, replica_group, node_id) (duolog_build_info{{{OWN}}})"
    labels = "cluster, replica_group, node_id"
    return f"({expression}) * on (job, instance) group_left ({labels}) {known}"


def quantile(share: float, histogram: str, by: str = "node_id", which: str = OWN) -> str:
    """A quantile of durations: of each node, or by another label. which: selects the series."""
    rate = f"rate({histogram}_bucket{{{which}}}{INTERVAL})"
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate}))"
