"""Which waiting messages are too old: see `store.births`."""

import numpy as np
from duolog._message import RETRY_PREFIX

from duolog_server.store.births import Births
from duolog_server.store.kernels import decode
from duolog_server.store.lightqueues import is_light, parent_of
from duolog_server.store.reader import GetResult
from duolog_server.store.record import Record

ORIGIN = "RETRY_TOPIC"  # of a copy in a retry topic: where its message was sent to
_ORIGIN = ORIGIN.encode() + b"\x01"


def origin_in(text: bytes) -> str:
    """The origin that properties name; empty for none."""
    for pair in text.split(b"\x02"):
        if pair.startswith(_ORIGIN):
            return pair.removeprefix(_ORIGIN).decode(errors="replace")
    return ""


def since(births: Births, topic: str, origin: str, group: str = "") -> int:
    """The log offset from which on a message belongs to the topic that it waits for, or is in.

    A message in a retry topic has to be younger than its group, and the topic that it came from.
    group: the one that reads a retry topic; by its name, for that of what members send back. Groups
    may share one: %RETRY%a_b is that of a group a_b, and of a group a for a topic b.
    """
    if is_light(topic):
        return births.topics.get(parent_of(topic), 0)
    birth = births.topics.get(topic, 0)
    if not topic.startswith(RETRY_PREFIX):
        return birth
    name = topic.removeprefix(RETRY_PREFIX)
    if group and name.startswith(f"{group}_"):
        name = group
    groups = (births.groups.get(one, 0) for one in (name, group))
    return max(birth, births.topics.get(origin, 0), *groups)


def is_too_old(births: Births, record: Record, topic: str, group: str = "") -> bool:
    """Whether a record is older than the topic that it waits for, or is in; or than its group.

    group: as in `since`.
    """
    if record.physical_offset >= births.newest:
        return False
    return record.physical_offset < since(births, topic, record.properties.get(ORIGIN, ""), group)


def own(births: Births, topic: str, result: GetResult, group: str = "") -> GetResult:
    """Drop messages of a retry topic or a light queue that are too old. group: reads it."""
    if not result.count or int(result.table[decode.OUT_PHY].min()) >= births.newest:
        return result
    kept = [
        numbers[decode.OUT_PHY] >= since(births, topic, origin_in(text), group)
        for numbers, _, text in result.rows()
    ]
    return result.chosen(np.array(kept, np.uint8))
