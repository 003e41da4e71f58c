"""Pages of long lists: which names a request shows.

Names alone are looked at, so that what a row costs is paid for the rows of the page only.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from duolog_server.node.core.slices import Slices

NAMES_AT_ONCE = 25  # that are looked at in one step: a decision takes up to 0.3 ms by 1000 entries


class Wanted(Protocol):
    """The part of a request that says which names.

    Attributes:
        contains: a part of each name, in any case; empty: all names.
        after: only names behind this one.
        limit: at most so many names; 0: all.
    """

    contains: str
    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class PageOfNames:
    """What a page shows.

    Attributes:
        names: in order; to be taken once.
        total: how many names match and may be seen, on this page or not.
        next: the last name here, if others are behind it; empty if none is.
    """

    names: Iterator[str]
    total: int
    next: str


async def page_of(
    names: Iterable[str], sees: Callable[[str], bool], wanted: Wanted, slices: Slices
) -> PageOfNames:
    """Choose names, in slices.

    Args:
        names: all there are, each once, in any order; they may not change meanwhile.
        sees: whether the caller may know of a name.
        wanted: which of them.
        slices: those of the call.
    """
    sought, total, behind = wanted.contains.casefold(), 0, list[str]()
    async for part in slices.parts(names, NAMES_AT_ONCE):
        found = [name for name in part if sought in name.casefold() and sees(name)]
        total += len(found)
        behind += [name for name in found if name > wanted.after]
    ordered = await slices.ordered(behind)
    if not wanted.limit or len(behind) <= wanted.limit:
        return PageOfNames(ordered, total, next="")
    shown = [name async for name in slices.each(islice(ordered, wanted.limit))]
    return PageOfNames(iter(shown), total, next=shown[-1])
