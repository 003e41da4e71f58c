"""Names of topics, and the groups that read them."""

from collections.abc import Iterable

from node.broker import Broker
from node.core.slices import Slices
from node.pop.retrytopics import group_retry_topic
from node.remoting.members import Members

OFFSETS_AT_ONCE = 4096  # rows of committed offsets that are looked at in one step


def topic_names(broker: Broker) -> set[str]:
    """All topics, and the retry topic of every group.

    Tools know groups by their retry topics. One that has nothing to deliver again has none yet.
    """
    metadata = broker.metadata
    return {*metadata.topics, *map(group_retry_topic, metadata.tables.groups)}


async def groups_of(broker: Broker, members: Members, topic: str, slices: Slices) -> set[str]:
    """The groups that read a topic, or have read it. Raises NotMaster."""
    found = broker.groups.readers_of(topic, broker.times.mono_ms())
    async for group in slices.each(members.groups()):
        if topic in members.reads(group):
            found.add(group)
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


__all__ = ["groups_of", "topic_names", "topics_of"]
