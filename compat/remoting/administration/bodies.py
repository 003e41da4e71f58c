"""Bodies of answers, as RocketMQ's tools read them.

Lists that may be very long are written in slices, so that others have turns meanwhile.
"""

import json
from collections.abc import Iterable, Mapping

from duolog_server.compat.remoting.codec.bodies import TAG, Subscription
from duolog_server.compat.remoting.codec.fastjson import MessageQueue, Value, dumps
from duolog_server.compat.remoting.codec.fields import written
from duolog_server.node.core.slices import Slices

NAMES_AT_ONCE = 1000


async def name_list(member: str, names: Iterable[str], slices: Slices) -> bytes:
    """An object whose one member is a list of names: TopicList, GroupList."""
    parts = [
        json.dumps(part, separators=(",", ":"))[1:-1]
        async for part in slices.parts(names, NAMES_AT_ONCE)
    ]
    return f'{{"{member}":[{",".join(parts)}]}}'.encode()


async def row_list(rows: Iterable[Mapping[str, Value]], slices: Slices) -> str:
    """A list of objects, as text."""
    parts = [dumps(row).decode() async for row in slices.each(rows)]
    return f"[{','.join(parts)}]"


class QueueRows:
    """The rows of a map by queues of one broker, each a small object."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self.rows: dict[MessageQueue, dict[str, Value]] = {}

    def add(self, topic: str, queue_id: int, **members: int) -> None:
        """A queue, with members by their names on the wire."""
        self.rows[MessageQueue(self._broker_name, queue_id, topic)] = dict(members)

    def __len__(self) -> int:
        return len(self.rows)


def properties_text(rows: Iterable[tuple[str, object]]) -> bytes:
    """A text of Java's Properties. Values are of one line each."""
    return "".join(f"{name}={_value(value)}\n" for name, value in rows).encode()


def _value(value: object) -> str:
    return written(value).replace("\\", "\\\\").replace("\n", " ")


def subscription_row(one: Subscription) -> dict[str, Value]:
    """SubscriptionData, without the hashes of its tags."""
    words = one.expression.split("||") if one.kind == TAG else ()
    return {
        "classFilterMode": False,
        "expressionType": one.kind,
        "subString": one.expression,
        "subVersion": one.version,
        "tagsSet": [word.strip() for word in words if word.strip() not in ("", "*")],
        "topic": one.topic,
    }


__all__ = [
    "QueueRows",
    "dumps",
    "name_list",
    "properties_text",
    "row_list",
    "subscription_row",
]
