"""Members of groups, by frames and the native API, among the consumers that are connected."""

from collections.abc import Collection, Iterator

from duolog_server.node.consuming.groups import GroupCoordinator
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.node.engine.storetimes import StoreTimes


class MemberTable:
    """Tells of them. What they choose messages by, and where they are, they do not say here."""

    def __init__(self, groups: GroupCoordinator, times: StoreTimes) -> None:
        self._groups = groups
        self._times = times

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """See Tells."""
        now = self._times.mono_ms()
        for group in groups:
            for name, topics in self._groups.topics_by_member(group, now).items():
                yield group, Consumer(name, tuple(map(Read, topics)), of_sdk=True)

    def readers(self, topic: str) -> set[str]:
        """See Tells."""
        return self._groups.readers_of(topic, self._times.mono_ms())

    def counts(self) -> tuple[int, int]:
        """See Tells. Producers are members of nothing."""
        return 0, sum(members for _, _, members in self._groups.reading(self._times.mono_ms()))
