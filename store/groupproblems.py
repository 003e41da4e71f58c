"""Problems of consumer groups: nodes leave groups without any out of a list of problems, and the
doctor says of each what it is and what to do.

Conditions alone, so that what one of the two looks for is never left out by the other. Queues and
selections are those of the native API, as a node makes them or as the SDK reads them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from duolog_server.store.grouptopics import RETRY

OLD_MS = 600_000  # a message that nobody has consumed for longer


class Queue(Protocol):
    """A group's place in a queue: see `duolog.GroupQueue`."""

    @property
    def committed(self) -> int | None:
        """The committed offset; None or -1: none."""

    @property
    def min_offset(self) -> int:
        """Of the oldest message that is kept."""

    @property
    def lag_messages(self) -> int:
        """How many are not consumed."""

    @property
    def lag_ms(self) -> int:
        """Age of the oldest of them."""

    @property
    def stalled_ms(self) -> int:
        """For so long consumers have committed nothing, though messages wait."""


class Selection(Protocol):
    """One way in which consumers select messages of a topic: see `duolog.GroupSubscription`."""

    @property
    def topic(self) -> str:
        """Whose messages are selected."""

    @property
    def expression(self) -> str:
        """Tags or SQL92; empty: they do not say."""

    @property
    def sharing(self) -> int:
        """Consumers that select so, of those that share queues out."""


S = TypeVar("S", bound=Selection)


class Group(Protocol):
    """A group's consumers: see `duolog.GroupDescription`."""

    @property
    def members(self) -> int:
        """Consumers of the SDK, which get queues of what each of them reads."""

    @property
    def sharing_clients(self) -> int:
        """Clients that share all queues of the group out among themselves."""

    @property
    def subscriptions(self) -> Iterable[Selection]:
        """How its consumers select messages."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Which lags are problems, in ms: a message that waits for longer, and consumers that commit
    nothing for longer. SDK clients commit every 5 s.
    """

    old_ms: int = OLD_MS
    stalled_ms: int = 60_000

    def is_late(self, queue: Queue) -> bool:
        """Whether the oldest message that is not consumed has waited for too long."""
        return queue.lag_messages > 0 and queue.lag_ms > self.old_ms

    def is_stalled(self, queue: Queue) -> bool:
        """Whether consumers have committed nothing for too long though messages wait."""
        return queue.lag_messages > 0 and queue.stalled_ms > self.stalled_ms


def lost(queue: Queue) -> int:
    """How many messages were deleted before the group had consumed them."""
    committed = queue.committed
    return 0 if committed is None or committed < 0 else max(0, queue.min_offset - committed)


def by_topic(selections: Iterable[S]) -> dict[str, list[S]]:
    """Selections of consumers that say how they select, by topic.

    Without retries, which are selected as the topics are. Several of one topic are a problem: a
    message goes to one consumer, and is skipped for good where that one does not select it.
    """
    found: dict[str, list[S]] = {}
    for row in selections:
        if row.expression and not row.topic.startswith(RETRY):
            found.setdefault(row.topic, []).append(row)
    return found


def is_partly_read(group: Group, rows: Iterable[Selection]) -> bool:
    """Whether clients share out the queues of a topic that not all of them read. rows: of it."""
    return not group.members and 0 < sum(row.sharing for row in rows) < group.sharing_clients


def disagree(group: Group) -> bool:
    """Whether the consumers of a group do not read the same."""
    topics = by_topic(group.subscriptions).values()
    return any(len(rows) > 1 or is_partly_read(group, rows) for rows in topics)


def without_queues(selections: Iterable[Selection], queues: Mapping[str, int]) -> dict[str, int]:
    """How many consumers share each topic for which there are too few queues.

    queues: how many each topic has.
    """
    sharing: dict[str, int] = {}
    for row in selections:
        if not row.topic.startswith(RETRY):
            sharing[row.topic] = sharing.get(row.topic, 0) + row.sharing
    return {topic: count for topic, count in sharing.items() if count > queues.get(topic, count)}
