"""Which groups read a topic, and which topics a group has read, by all protocols."""

from collections.abc import AsyncIterator

from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices

OFFSETS_AT_ONCE = 4096  # rows of committed offsets that are looked at in one step


async def read_pairs(
    broker: Broker, slices: Slices, popped: bool = False
) -> AsyncIterator[list[tuple[str, str]]]:
    """Topics and groups of all committed offsets, some at a time. Raises NotMaster.

    They are sorted by neither, and there may be very many. popped: also those that groups popped
    from, perhaps without an offset yet.
    """
    rows = list(broker.admission.group_tables().offsets)
    if popped:
        rows += [(topic, group) for topic, _, group in broker.pop.popped]
    async for part in slices.parts(rows, OFFSETS_AT_ONCE):
        yield part


async def groups_of(broker: Broker, topic: str, slices: Slices) -> set[str]:
    """The groups that read a topic, or have read it. Raises NotMaster."""
    found = broker.connected.readers(topic)
    async for part in read_pairs(broker, slices, popped=True):
        found.update(group for name, group in part if name == topic)
    return found


async def topics_of(broker: Broker, group: str, slices: Slices) -> set[str]:
    """The topics in which a group has committed offsets. Raises NotMaster."""
    found: set[str] = set()
    async for part in read_pairs(broker, slices):
        found.update(topic for topic, name in part if name == group)
    return found
