"""Topics: what is sent to them, what is read, and what became of special messages."""

from tools.dashboards.panels import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    MESSAGES_PER_S,
    MILLISECONDS,
    SECONDS,
    Dashboard,
    Row,
    graph,
    number,
)
from tools.dashboards.selectors import BY_TOPIC, CLUSTER, INTERVAL, TOPIC

PLAIN = 'cluster=~"$cluster", topic=~"$topic"'


def rate(metric: str, by: str = "topic", which: str = BY_TOPIC) -> str:
    """The rate of a counter."""
    return f"sum by ({by}) (rate({metric}{{{which}}}{INTERVAL}))"


OVERVIEW = Row(
    "Overview",
    (
        number(
            "Topics",
            "Topics that are shown.",
            f"count(count by (topic) (rocketmq_producer_offset{{{PLAIN}}}))",
        ),
        number(
            "Messages in",
            "Messages from clients in a second.",
            f"sum(rate(rocketmq_messages_in_total{{{BY_TOPIC}}}{INTERVAL}))",
            MESSAGES_PER_S,
        ),
        number(
            "Messages out",
            "Messages given to clients in a second.",
            f"sum(rate(rocketmq_messages_out_total{{{BY_TOPIC}}}{INTERVAL}))",
            MESSAGES_PER_S,
        ),
        number(
            "Bytes in",
            "Bytes of bodies from clients in a second.",
            f"sum(rate(rocketmq_throughput_in_total{{{BY_TOPIC}}}{INTERVAL}))",
            BYTES_PER_S,
        ),
        number(
            "Half messages",
            "Messages of transactions that no producer has decided yet.",
            f"sum(rocketmq_half_messages{{{PLAIN}}}) or vector(0)",
        ),
        number(
            "Dead letters",
            "Messages given up in the range of time that is shown.",
            f"round(sum(increase(rocketmq_send_to_dlq_messages_total{{{BY_TOPIC}}}[$__range]))) "
            "or vector(0)",
        ),
    ),
)

TRAFFIC = Row(
    "Messages",
    (
        graph(
            "Messages in, by topic",
            "Messages from clients in a second.",
            MESSAGES_PER_S,
            (rate("rocketmq_messages_in_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Messages out, by topic",
            "Messages given to clients in a second, all groups together.",
            MESSAGES_PER_S,
            (rate("rocketmq_messages_out_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Messages in, by type",
            "normal, fifo, delay, transaction, priority, lite.",
            MESSAGES_PER_S,
            (rate("rocketmq_messages_in_total", "message_type"), "{{message_type}}"),
            stacked=True,
        ),
        graph(
            "Bytes in, by topic",
            "Bytes of the bodies of messages from clients in a second.",
            BYTES_PER_S,
            (rate("rocketmq_throughput_in_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Bytes out, by topic",
            "Bytes of the bodies of messages given to clients in a second.",
            BYTES_PER_S,
            (rate("rocketmq_throughput_out_total"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Bytes of a body",
            "Bytes of a message's body from clients, on average.",
            BYTES,
            (
                f"{rate('rocketmq_throughput_in_total')} / {rate('rocketmq_messages_in_total')}",
                "{{topic}}",
            ),
        ),
        graph(
            "Messages ever stored",
            "Sum of the ends of a topic's queues; retention does not lower it.",
            COUNT,
            (f"sum by (topic) (rocketmq_producer_offset{{{PLAIN}}})", "{{topic}}"),
        ),
        graph(
            "Not consumed, by topic",
            "What the group that is furthest behind has not consumed of a topic.",
            COUNT,
            (
                "max by (topic) (sum by (topic, consumer_group) "
                f"(rocketmq_consumer_lag_messages{{{BY_TOPIC}}}))",
                "{{topic}}",
            ),
        ),
        graph(
            "Age of the oldest message not consumed",
            "Of the group that is furthest behind in a topic.",
            MILLISECONDS,
            (f"max by (topic) (rocketmq_consumer_lag_latency{{{BY_TOPIC}}})", "{{topic}}"),
        ),
    ),
)

SPECIAL = Row(
    "Sizes, transactions, timed messages and dead letters",
    (
        graph(
            "Half messages",
            "Messages of transactions that no producer has decided yet.",
            COUNT,
            (f"sum by (topic) (rocketmq_half_messages{{{PLAIN}}})", "{{topic}}"),
        ),
        graph(
            "Decisions",
            "Half messages that producers committed and rolled back in a second.",
            MESSAGES_PER_S,
            (rate("rocketmq_commit_messages_total", which=PLAIN), "{{topic}} committed"),
            (rate("rocketmq_rollback_messages_total", which=PLAIN), "{{topic}} rolled back"),
        ),
        graph(
            "Age of the oldest half message",
            "How long a transaction has been open.",
            SECONDS,
            (
                'max by (topic) (duolog_half_message_age_seconds{cluster=~"$cluster", '
                'topic=~"$topic"})',
                "{{topic}}",
            ),
        ),
        graph(
            "Timed messages",
            "Messages in a second that began to wait for a time, and that were delivered at it.",
            MESSAGES_PER_S,
            (rate("rocketmq_timer_enqueue_total", which=PLAIN), "{{topic}} stored"),
            (rate("rocketmq_timer_dequeue_total", which=PLAIN), "{{topic}} delivered"),
        ),
        graph(
            "Size of a body, p99",
            "One in a hundred messages from clients is larger, within the bounds of the histogram.",
            BYTES,
            (
                f"histogram_quantile(0.99, {rate('rocketmq_message_size_bucket', 'le, topic')})",
                "{{topic}}",
            ),
        ),
        graph(
            "Dead letters",
            "Messages given up in a second, by the topic that they were sent to.",
            MESSAGES_PER_S,
            (
                rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group"),
                "{{topic}} of {{consumer_group}}",
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "topics",
    "duolog: topics",
    "What is sent to topics, what is read, and what became of transactions and dead letters.",
    (CLUSTER, TOPIC),
    (OVERVIEW, TRAFFIC, SPECIAL),
)
