"""Half messages that nobody decided on."""

from dataclasses import dataclass

from duolog import HalfMessage, HalvesPage

from node.console.view.addresses import HALF_DECIDE, HALVES, WAY, address
from node.console.view.visits import Shown, Visit
from node.console.view.words import command, counted

ROWS = 50
LOOKS = 5  # calls that a page makes until it has a row


@dataclass(frozen=True, slots=True)
class HalfRow:
    """A half message in the list. way: its path. commit, rollback: where one decides on it."""

    message: HalfMessage
    way: str
    commit: str
    rollback: str


async def half(visit: Visit) -> Shown:
    """A page of half messages. Raises UnknownTopic."""
    topic, after = visit.query.get("topic", "").strip(), visit.query.get("after", "")
    for _ in range(LOOKS):
        page = await visit.client.admin.halves_page(topic, after=after, limit=ROWS)
        if page.rows or not page.next:
            break
        after = page.next
    facts = {
        "sentence": _sentence(page, topic),
        "topic": topic,
        "checks_max": page.checks_max,
        "rows": [_row(message) for message in page.rows],
        "first": address(HALVES, {"topic": topic}) if visit.query.get("after") else "",
        "next": address(HALVES, {"topic": topic, "after": page.next}) if page.next else "",
    }
    flags = [*([topic] if topic else []), *(["--after", after] if after else [])]
    return Shown("half.html", "Half messages", facts, command("msg", "half", *flags))


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
    way = ""
    if message.unique_key:
        way = address(WAY, {"key": message.unique_key}, topic=message.topic)
    commit, rollback = (
        address(HALF_DECIDE, {"decision": one}, group=message.group, half=message.half)
        for one in ("commit", "rollback")
    )
    return HalfRow(message, way, commit, rollback)


__all__ = ["half"]
