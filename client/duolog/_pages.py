"""Pages of lists by name, joined from what the replica groups answer.

Each of them sends its first names behind `after`. A page ends where the first of the groups that
sent not all stopped: of the names behind that one, this group may have some that it did not send.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duolog._checks import checked_text, checked_whole
from duolog.wire import duolog_pb2 as wire

T = TypeVar("T", covariant=True)
LIMIT_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list that is sorted by name.

    Attributes:
        rows: in order. They may be fewer than asked for though there are more, where some were
            deleted at that moment.
        total: how many names match and may be seen, in all pages. Exact where the cluster has one
            replica group, where each of them holds all the names, and where this page is the only
            one; otherwise at least so many.
        next: `after` of the next page; empty: this is the last one.
    """

    rows: tuple[T, ...]
    total: int
    next: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which page. Raises BadRequest for a limit that is none.

    Attributes:
        contains: a part of each name, in any case; empty: all names.
        after: only names behind this one.
        limit: at most so many names; 0: all.
    """

    contains: str
    after: str
    limit: int

    def __post_init__(self) -> None:
        checked_text("contains", self.contains, empty=True)
        checked_text("after", self.after, empty=True)
        checked_whole("limit", self.limit, 0, LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class PartOfPage(Generic[T]):
    """One replica group's answer: its rows, and the rest as of `Page`."""

    rows: Sequence[T]
    total: int
    next: str


def part_of(
    rows: Iterable[T],
    name_of: Callable[[T], str],
    answer: wire.ListTopicsReply | wire.ListGroupsReply | wire.ListUsersReply,
    wanted: Wanted,
) -> PartOfPage[T]:
    """The rows of an answer. A node of an older version sends all it has: they are chosen here."""
    if answer.HasField("total"):
        return PartOfPage(list(rows), answer.total, answer.next)
    contains = wanted.contains.casefold()
    found = [row for row in rows if contains in name_of(row).casefold()]
    behind = sorted((row for row in found if name_of(row) > wanted.after), key=name_of)
    if not wanted.limit or len(behind) <= wanted.limit:
        return PartOfPage(behind, len(found), "")
    shown = behind[: wanted.limit]
    return PartOfPage(shown, len(found), name_of(shown[-1]))


def joined_page(
    parts: Sequence[PartOfPage[T]], name_of: Callable[[T], str], wanted: Wanted
) -> Page[T]:
    """A page of what all replica groups have; rows of one name are in the order of the parts."""
    end = min((part.next for part in parts if part.next), default="")
    rows = [row for part in parts for row in part.rows if not end or name_of(row) <= end]
    names = sorted({name_of(row) for row in rows})
    if wanted.limit and len(names) > wanted.limit:
        names = names[: wanted.limit]
        end = names[-1]
        rows = [row for row in rows if name_of(row) <= end]
    total = len(names)
    if end or wanted.after:
        total = max(total, *(part.total for part in parts))
    return Page(tuple(sorted(rows, key=name_of)), total, end)
