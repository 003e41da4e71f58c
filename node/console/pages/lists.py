"""Lists that are searched, a page at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from duolog import Page

from node.console.view.visits import Visit
from node.console.view.words import counted

ROWS = 100
LIST_SECONDS = 5.0  # between two looks of a live list: nodes look through all names for it
LIVE_ROWS_MAX = 500  # of a live page: they are rendered each second, for each viewer


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a list somebody is. contains: a part of names. after: the name before the page."""

    contains: str = ""
    after: str = ""
    limit: int = ROWS

    def flags(self) -> list[str]:
        """The same place for the command line."""
        flags = {"--contains": self.contains, "--after": self.after}
        return [word for flag, value in flags.items() if value for word in (flag, value)]


def place(visit: Visit) -> Place:
    """Where a link or the search leads."""
    return Place(visit.query.get("q", ""), visit.query.get("after", ""))


def listing(at: Place, page: Page[Any], noun: str) -> Mapping[str, object]:
    """What the template of a list shows."""
    matching = f" whose names contain “{at.contains}”" if at.contains else ""
    next_page = urlencode({"q": at.contains, "after": page.next}) if page.next else ""
    return {
        "sentence": f"{counted(page.total, noun)}{matching}.",
        "rows": page.rows,
        "q": at.contains,
        "after": at.after,
        "next": next_page,
    }


__all__ = ["LIST_SECONDS", "LIVE_ROWS_MAX", "ROWS", "Place", "listing", "place"]
