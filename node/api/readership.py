"""Which groups read a topic, and which topics a group has read, by all protocols."""

from collections.abc import Iterable

from node.broker import Broker
from node.core.slices import Slices

OFFSETS_AT_ONCE = 4096  # rows of committed offsets that are looked at in one step


async def groups_of(broker: Broker, topic: str, slices: Slices) -> set[str]:
    """The groups that read a topic, or have read it. Raises NotMaster."""
    found = broker.connected.readers(topic)
    rows = list(broker.admission.group_tables().offsets)
    async for part in slices.parts(rows, OFFSETS_AT_ONCE):
        found.update(group for name, group in part if name == topic)
    found.update(group for name, _, group in broker.pop.popped if name == topic)
    return found


async def topics_of(broker: Broker, group: str, slices: Slices) -> set[str]:
    """The topics in which a group has committed offsets. Raises NotMaster."""
    found: set[str] = set()
    rows: Iterable[tuple[str, str]] = list(broker.admission.group_tables().offsets)
    async for part in slices.parts(rows, OFFSETS_AT_ONCE):
        found.update(topic for topic, name in part if name == group)
    return found


__all__ = ["groups_of", "topics_of"]
