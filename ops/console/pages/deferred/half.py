"""Half messages without a decision."""

from dataclasses import dataclass

from duolog import HalfMessage, HalvesPage

from duolog_server.ops.console.pages.deferred import waiting
from duolog_server.ops.console.view.addresses import HALF_DECIDE, HALVES, address
from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.visits import Shown, Visit


@dataclass(frozen=True, slots=True)
class HalfRow:
    """A half message in the list. way: its path. commit, rollback: where one decides on it."""

    message: HalfMessage
    way: str
    commit: str
    rollback: str


async def half(visit: Visit) -> Shown:
    """A page of half messages. Raises UnknownTopic."""

    async def ask(topic: str, after: str) -> HalvesPage:
        return await visit.client.admin.halves_page(topic, after=after, limit=waiting.ROWS)

    found = await waiting.waiting(visit, HALVES, ask)
    facts = {
        "sentence": _sentence(found.page, found.topic),
        "topic": found.topic,
        "checks_max": found.page.checks_max,
        "rows": [_row(message) for message in found.page.rows],
        "pages": found.pages,
    }
    return Shown("half.html", "Half messages", facts, command("msg", "half", *found.flags))


def _sentence(page: HalvesPage, topic: str) -> str:
    """How many wait, in words."""
    if page.waiting is None:
        told = "Half messages without a decision, of topics that you may see."
    elif not page.waiting:
        return "No half message waits for a decision."
    else:
        wait = "waits" if page.waiting == 1 else "wait"
        told = f"{counted(page.waiting, 'half message')} {wait} for a decision."
    if page.rows:
        return told
    of = f" of {topic}" if topic else " that you may see"
    more = ", and there are more pages" if page.next else ""
    return f"{told} None{of} is on this page{more}."


def _row(message: HalfMessage) -> HalfRow:
    commit, rollback = (
        address(HALF_DECIDE, {"decision": one}, group=message.group, half=message.half)
        for one in ("commit", "rollback")
    )
    return HalfRow(message, waiting.way_of(message.topic, message.unique_key), commit, rollback)
