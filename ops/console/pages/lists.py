"""Lists that are searched, a page at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from duolog import BadRequest, DuologError, NoPermission, Page, UnknownTopic

from duolog_server.ops.console.view.addresses import address
from duolog_server.ops.console.view.formatting import counted, sentence, told_apart
from duolog_server.ops.console.view.visits import Shown, Visit

ROWS = 100
LIST_SECONDS = 5.0  # between two looks of a live list: nodes look through all names for it
SYSTEM_END = "%~"  # in the order of names, behind topics of retries and dead letters
LIVE_ROWS_MAX = 500  # of a live page: they are rendered each second, for each viewer


REFUSED: Mapping[type[DuologError], int] = {BadRequest: 400, NoPermission: 403, UnknownTopic: 404}


@dataclass(frozen=True, slots=True)
class Pages:
    """Links to other pages of a list; empty where there is none."""

    first: str = ""
    next: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True)
class ListPlace:
    """A position in a list. contains: a part of names. after: the name before the page."""

    contains: str = ""
    after: str = ""
    limit: int = ROWS

    def flags(self) -> list[str]:
        """The same place for the command line."""
        flags = {"--contains": self.contains, "--after": self.after}
        return [word for flag, value in flags.items() if value for word in (flag, value)]


def refused(shown: Shown, error: DuologError) -> Shown:
    """A page whose form asks for what does not exist, or what its viewer may not see: the form
    stays, with what was typed. error: one of REFUSED.
    """
    status = next(status for kind, status in REFUSED.items() if isinstance(error, kind))
    told = sentence(told_apart(str(error)))
    return replace(shown, facts={**shown.facts, "sentence": told}, status=status)


def list_place(visit: Visit) -> ListPlace:
    """The position that a link or the search names."""
    return ListPlace(visit.query.get("q", ""), visit.query.get("after", ""))


def listing(
    pattern: str, at: ListPlace, page: Page[Any], noun: str, **kept: object
) -> Mapping[str, object]:
    """Variables of a list's template. pattern: the address of the list. kept: of its query."""
    matching = f" whose names contain “{at.contains}”" if at.contains else ""
    count = counted(page.total, noun) if page.total else f"No {noun}s"
    query: dict[str, object] = {"q": at.contains, **kept}
    return {
        "sentence": f"{count}{matching}.",
        "rows": page.rows,
        "q": at.contains,
        "pages": Pages(
            first=address(pattern, query) if at.after else "",
            next=address(pattern, {**query, "after": page.next}) if page.next else "",
        ),
    }
