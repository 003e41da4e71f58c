"""Messages that wait: what nodes tell of them, and pages joined from several replica groups.

A page says where the next one begins in each group; a group of which no row fitted is asked for the
same rows again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

from duolog._checks import checked_text, checked_whole
from duolog._errors import BadRequest
from duolog._fromwire import described
from duolog.wire import duolog_pb2 as wire

Order = tuple[Any, ...]  # of one list: the same kinds in the same places
END = "end"  # of a group that has no more
GROUPS_MAX = 1000
LIMIT_MAX = 1000


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time.

    Attributes:
        topic: where it goes when it is due.
        due_ms: when that is, ms since 1970.
        level: one of RocketMQ's levels; 0: it waits for a time, and can be recalled.
        waits_in, queue_id, queue_offset: where it is until then.
        stored_ms: when it was stored there.
        size: bytes of its body.
        unique_key, keys, tags: of its producer.
        group: the replica group that holds it.
    """

    topic: str
    due_ms: int
    level: int
    waits_in: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    size: int
    unique_key: str
    keys: str
    tags: str
    group: str

    @property
    def order(self) -> Order:
        """The sort key of pages."""
        return self.due_ms, self.level, self.queue_offset, self.group

    @property
    def place(self) -> str:
        """Its position in the order of its replica group's nodes."""
        return f"{self.due_ms}/{self.level}/{self.queue_offset}"


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Messages that wait for their time, the soonest first.

    Attributes:
        rows: those of the topic that was asked for, and that may be seen.
        next: `after` of the next page; empty: there is none. A page may be short, and even empty,
            if there is: a node looks at some thousand messages for one.
        examined: messages that were looked at for it.
        waiting: how many wait, of all topics.
        first_due_ms, last_due_ms: when the first and the last of them is due; recalled ones count
            until their time; 0: none waits.

    The last four are None where the caller may not see the cluster.
    """

    rows: tuple[DelayedMessage, ...]
    next: str
    examined: int | None = None
    waiting: int | None = None
    first_due_ms: int | None = None
    last_due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message without a decision: no consumer gets it before its producer commits it.

    Attributes:
        topic: where it goes if it is committed.
        producer_group: who decides.
        half: the queue offset that it was stored at first, by which it is named.
        queue_offset: where it is now: each check stores it again.
        stored_ms: when it was stored first, ms since 1970.
        checks: how often its producers were asked.
        next_check_ms: when they are asked again.
        size: bytes of its body; 0 for a moment after a check.
        unique_key, keys, tags: of its producer.
        group: the replica group that holds it.
    """

    topic: str
    producer_group: str
    half: int
    queue_offset: int
    stored_ms: int
    checks: int
    next_check_ms: int
    size: int
    unique_key: str
    keys: str
    tags: str
    group: str

    @property
    def order(self) -> Order:
        """The sort key of pages."""
        return self.group, self.queue_offset

    @property
    def place(self) -> str:
        """Its position in the order of its replica group's nodes."""
        return str(self.queue_offset)


@dataclass(frozen=True, slots=True)
class HalvesPage:
    """Half messages without a decision, by replica group, those checked last coming last.

    Attributes:
        rows, next: as of `DelayedPage`.
        checks_max: after so many checks one is given up.
        waiting: how many there are, of all topics; None where the caller may not see the cluster.
    """

    rows: tuple[HalfMessage, ...]
    next: str
    checks_max: int = 0
    waiting: int | None = None


class Waiting(Protocol):
    """A message that waits. Order is comparable among all of a list; place is for its group."""

    @property
    def group(self) -> str:
        """The replica group that holds it."""

    @property
    def order(self) -> Order:
        """The sort key of pages."""

    @property
    def place(self) -> str:
        """Its position in the order of its replica group's nodes."""


T = TypeVar("T", bound=Waiting)


@dataclass(frozen=True, slots=True)
class PartOfWaiting(Generic[T]):
    """One replica group's answer: its rows, and up to where they are all.

    next: the place of that; empty: they are all there are. end: the same as an order.
    """

    group: str
    rows: Sequence[T]
    next: str
    end: Order


def places_in(after: str) -> dict[str, str]:
    """Start of a page, by replica group. Raises BadRequest."""
    checked_text("after", after, empty=True)
    try:
        pairs = parse_qsl(after, strict_parsing=True, max_num_fields=GROUPS_MAX) if after else []
    except ValueError:
        raise BadRequest(f"{after[:80]!r} is not the end of a page") from None
    return dict(pairs)


def check_limit(limit: int) -> int:
    """How many rows are asked for. Raises BadRequest."""
    return checked_whole("limit", limit, 1, LIMIT_MAX)


def joined_rows(
    parts: Sequence[PartOfWaiting[T]], begun: Mapping[str, str], limit: int
) -> tuple[tuple[T, ...], str]:
    """The first rows of all groups, and where the next page begins. begun: as `places_in`.

    Behind the end of a group that has more, rows of others would come too early.
    """
    end = min((part.end for part in parts if part.next), default=None)
    rows = [row for part in parts for row in part.rows if end is None or row.order <= end]
    shown = sorted(rows, key=lambda row: row.order)[:limit]
    places = dict(begun)
    for part in parts:
        own = [row for row in shown if row.group == part.group]
        if len(own) == len(part.rows):
            places[part.group] = part.next or END
        elif own:
            places[part.group] = own[-1].place
    more = any(places.get(part.group) != END for part in parts)
    return tuple(shown), urlencode(places) if more else ""


def delayed_of(row: wire.DelayedMessage, group: str) -> DelayedMessage:
    """A message that waits for its time."""
    times = {"due_ms": row.due_time, "stored_ms": row.store_time}
    return described(DelayedMessage, row, group=group, **times)


def delayed_page_of(
    replies: Sequence[wire.ListDelayedReply], begun: Mapping[str, str], limit: int
) -> DelayedPage:
    """A page of what the replica groups answered."""
    parts = [
        PartOfWaiting(
            reply.group,
            [delayed_of(row, reply.group) for row in reply.messages],
            reply.next,
            (*map(int, reply.next.split("/")), reply.group) if reply.next else (),
        )
        for reply in replies
    ]
    rows, following = joined_rows(parts, begun, limit)
    told = [reply for reply in replies if reply.HasField("waiting")]
    if not told:
        return DelayedPage(rows, following)
    return DelayedPage(
        rows,
        following,
        examined=sum(reply.examined for reply in told),
        waiting=sum(reply.waiting for reply in told),
        first_due_ms=min(filter(None, (reply.first_due_time for reply in told)), default=0),
        last_due_ms=max(reply.last_due_time for reply in told),
    )


def half_of(row: wire.HalfMessage, group: str) -> HalfMessage:
    """A half message."""
    times = {"stored_ms": row.store_time, "next_check_ms": row.next_check_time}
    return described(HalfMessage, row, group=group, **times)


def halves_page_of(
    replies: Sequence[wire.ListHalvesReply], begun: Mapping[str, str], limit: int
) -> HalvesPage:
    """A page of what the replica groups answered."""
    parts = [
        PartOfWaiting(
            reply.group,
            [half_of(row, reply.group) for row in reply.messages],
            reply.next,
            (reply.group, int(reply.next)) if reply.next else (),
        )
        for reply in replies
    ]
    rows, following = joined_rows(parts, begun, limit)
    told = [reply.waiting for reply in replies if reply.HasField("waiting")]
    checks_max = max((reply.checks_max for reply in replies), default=0)
    return HalvesPage(rows, following, checks_max, sum(told) if told else None)
