"""Consumer groups: how far they are behind, what they read, and what they give up."""

from tools.dashboards.panels import (
    BYTES_PER_S,
    COUNT,
    MESSAGES_PER_S,
    MILLISECONDS,
    SECONDS,
    Dashboard,
    Row,
    graph,
    number,
    zero_is_good,
)
from tools.dashboards.selectors import BY_GROUP, CLUSTER, GROUP, GROUPS_TOPIC, INTERVAL

LEGEND = "{{consumer_group}} {{topic}}"
BY_NAME = 'cluster=~"$cluster", consumer_group=~"$group", is_system="false"'


def by_topic(metric: str, aggregate: str = "sum") -> str:
    """A gauge of groups in topics."""
    return f"{aggregate} by (consumer_group, topic) ({metric}{{{BY_GROUP}}})"


def rate(metric: str, more: str = "") -> str:
    """The rate of a counter of groups in topics."""
    return f"sum by (consumer_group, topic) (rate({metric}{{{BY_GROUP}{more}}}{INTERVAL}))"


LAG = f"sum by (cluster, consumer_group) (rocketmq_consumer_lag_messages{{{BY_GROUP}}})"
CONNECTED = f"sum by (cluster, consumer_group) (rocketmq_consumer_connections{{{BY_NAME}}})"

OVERVIEW = Row(
    "Overview",
    (
        number(
            "Groups",
            "Consumer groups that are shown.",
            f"count({LAG})",
        ),
        number(
            "Not consumed",
            "Messages that groups have not consumed: ready and in flight.",
            f"sum(rocketmq_consumer_lag_messages{{{BY_GROUP}}})",
        ),
        number(
            "Oldest message not consumed",
            "Age of the oldest message that any group has not consumed.",
            f"max(rocketmq_consumer_lag_latency{{{BY_GROUP}}})",
            MILLISECONDS,
        ),
        zero_is_good(
            "Behind without consumers",
            "Groups that have messages to consume, and no consumer.",
            f"count({LAG} > 0 unless on (cluster, consumer_group) ({CONNECTED} > 0)) or vector(0)",
        ),
        zero_is_good(
            "Dead letters",
            "Messages given up in the range of time that is shown.",
            "round(sum(increase(rocketmq_send_to_dlq_messages_total"
            f"{{{BY_GROUP}}}[$__range]))) or vector(0)",
        ),
        number("Consumers", "Consumers that are connected.", f"sum({CONNECTED}) or vector(0)"),
    ),
)

BEHIND = Row(
    "How far behind",
    (
        graph(
            "Not consumed",
            "Messages that a group has not consumed: ready and in flight.",
            COUNT,
            (by_topic("rocketmq_consumer_lag_messages"), LEGEND),
        ),
        graph(
            "Ready",
            "Messages that wait for a consumer. What members of the SDK have fetched ahead is "
            "among them.",
            COUNT,
            (by_topic("rocketmq_consumer_ready_messages"), LEGEND),
        ),
        graph(
            "In flight",
            "Messages delivered by POP and not acknowledged yet.",
            COUNT,
            (by_topic("rocketmq_consumer_inflight_messages"), LEGEND),
        ),
        graph(
            "Age of the oldest message not consumed",
            "0 for none.",
            MILLISECONDS,
            (by_topic("rocketmq_consumer_lag_latency", "max"), LEGEND),
        ),
        graph(
            "Age of the oldest message that waits",
            "Without those in flight. It grows while consumers are too few, or none are there.",
            MILLISECONDS,
            (by_topic("rocketmq_consumer_queueing_latency", "max"), LEGEND),
        ),
        graph(
            "Time until all is consumed",
            "What is not consumed, at the rate of the last minutes, were nothing more sent.",
            SECONDS,
            (
                f"{by_topic('rocketmq_consumer_lag_messages')} "
                f"/ ({rate('rocketmq_messages_out_total')} > 0)",
                LEGEND,
            ),
        ),
    ),
)

CONSUMED = Row(
    "What groups read",
    (
        graph(
            "Messages out",
            "Messages given to a group in a second, first attempts.",
            MESSAGES_PER_S,
            (rate("rocketmq_messages_out_total", ', is_retry="false"'), LEGEND),
            stacked=True,
        ),
        graph(
            "Further attempts",
            "Messages given to a group again in a second: consumers failed, or were too slow.",
            MESSAGES_PER_S,
            (rate("rocketmq_messages_out_total", ', is_retry="true"'), LEGEND),
        ),
        graph(
            "Bytes out",
            "Bytes of the bodies of messages given to a group in a second.",
            BYTES_PER_S,
            (rate("rocketmq_throughput_out_total"), LEGEND),
            stacked=True,
        ),
        graph(
            "Position",
            "Sum of a group's offsets in a topic's queues. It is flat while nothing is consumed.",
            COUNT,
            (
                "sum by (group, topic) (rocketmq_consumer_offset"
                '{cluster=~"$cluster", group=~"$group", topic=~"$topic"})',
                "{{group}} {{topic}}",
            ),
        ),
        graph(
            "Dead letters of a group",
            "Messages in the group's dead-letter topic, since it has any.",
            COUNT,
            (
                'sum by (group) (rocketmq_topic_dlq_offset{cluster=~"$cluster", group=~"$group"})',
                "{{group}}",
            ),
        ),
        graph(
            "Consumers",
            "Consumers by the way they read and the protocol they speak; duolog is the SDK.",
            COUNT,
            (
                "sum by (consumer_group, consume_mode, protocol_type) "
                f"(rocketmq_consumer_connections{{{BY_NAME}}})",
                "{{consumer_group}} {{consume_mode}} {{protocol_type}}",
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "groups",
    "duolog: consumer groups",
    "How far consumer groups are behind, what they read, and what they give up.",
    (CLUSTER, GROUP, GROUPS_TOPIC),
    (OVERVIEW, BEHIND, CONSUMED),
)
