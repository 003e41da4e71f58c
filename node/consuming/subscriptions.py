"""How the consumers of a group select the messages of a topic. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from duolog_server.node.core.connected import Consumer, Read

EVERYTHING = "*"
SHOWN_MAX = 8  # ways of one topic, and characters that are kept of an expression
EXPRESSION_CHARACTERS_MAX = 200


@dataclass(slots=True)
class Way:
    """One way to select the messages of a topic.

    members: that select so; member_id is one of them. sharing: of them, those that share out the
    queues.
    """

    topic: str
    expression: str
    is_sql: bool
    member_id: str
    members: int = 0
    sharing: int = 0


def ways_of(consumers: Iterable[Consumer]) -> Iterator[Way]:
    """The ways of each topic by name, the most frequent first.

    Consumers in broadcasting mode are left out: what one of them skips, it skips for itself.
    """
    found: dict[str, dict[tuple[str, bool], Way]] = {}
    for consumer in consumers:
        if consumer.broadcasting:
            continue
        for read in consumer.reads:
            expression = _normal(read, consumer)
            ways = found.setdefault(read.topic, {})
            way = ways.setdefault(
                (expression, read.is_sql),
                Way(read.topic, expression, read.is_sql, consumer.client_id),
            )
            way.members += 1
            way.sharing += consumer.shares
    for _, ways in sorted(found.items()):
        most = sorted(ways.values(), key=lambda way: (-way.members, way.expression))
        for way in most[:SHOWN_MAX]:
            way.expression = way.expression[:EXPRESSION_CHARACTERS_MAX]
            yield way


def _normal(read: Read, consumer: Consumer) -> str:
    """An expression such that the same tags are the same text. RocketMQ: none is all messages."""
    if read.is_sql:
        return read.expression.strip()
    tags = {tag.strip() for tag in read.expression.split("||")} - {""}
    if EVERYTHING in tags or (not tags and not consumer.of_sdk):
        return EVERYTHING
    return " || ".join(sorted(tags))
