"""Lists of what waits, of all topics or of one, a page at a time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duolog import DelayedPage, HalvesPage

from duolog_server.ops.console.pages.lists import Pages
from duolog_server.ops.console.view.addresses import WAY, address
from duolog_server.ops.console.view.visits import Visit

ROWS = 50
LOOKS = 5  # calls that a page makes until it has a row

P = TypeVar("P", bound=DelayedPage | HalvesPage)


@dataclass(frozen=True, slots=True)
class Waiting(Generic[P]):
    """A page of such a list. looks: what the nodes answered; only the last one may have rows.
    flags: the same for the command line.
    """

    topic: str
    looks: Sequence[P]
    pages: Pages
    flags: Sequence[str]

    @property
    def page(self) -> P:
        """The nodes' last answer."""
        return self.looks[-1]


async def waiting(
    visit: Visit, pattern: str, ask: Callable[[str, str], Awaitable[P]]
) -> Waiting[P]:
    """The page that a link leads to. Raises UnknownTopic.

    pattern: its address. ask: asks the nodes for a topic's rows after a place; a node looks at a
    bounded number for one answer, which may have no row.
    """
    topic, begun = visit.query.get("topic", "").strip(), visit.query.get("after", "")
    after, looks = begun, list[P]()
    while True:
        page = await ask(topic, after)
        looks.append(page)
        if page.rows or not page.next or len(looks) == LOOKS:
            break
        after = page.next
    pages = Pages(
        first=address(pattern, {"topic": topic}) if begun else "",
        next=address(pattern, {"topic": topic, "after": page.next}) if page.next else "",
    )
    flags = [*([topic] if topic else []), *(["--after", after] if after else [])]
    return Waiting(topic, looks, pages, flags)


def way_of(topic: str, unique_key: str) -> str:
    """The page of a message's path; empty for one without a key."""
    return address(WAY, {"key": unique_key}, topic=topic) if unique_key else ""
