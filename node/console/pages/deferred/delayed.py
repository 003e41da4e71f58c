"""Messages that wait for their time, the soonest first.

Nobody reads where they wait: a node serves no body before its time.
"""

from dataclasses import dataclass

from duolog import DelayedMessage, DelayedPage

from node.console.view.addresses import (
    DELAYED,
    DELAYED_RECALL,
    WAY,
    address,
)
from node.console.view.visits import Shown, Visit
from node.console.view.words import command, counted, number
from node.inspection.places import Place

ROWS = 50
LOOKS = 5  # calls that a page makes until it has a row


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message in the list. way: its path. recall: empty where it cannot be taken back."""

    message: DelayedMessage
    way: str
    recall: str


async def delayed(visit: Visit) -> Shown:
    """A page of delayed messages. Raises UnknownTopic."""
    topic, after = visit.query.get("topic", "").strip(), visit.query.get("after", "")
    examined = 0
    for _ in range(LOOKS):
        page = await visit.client.admin.delayed_page(topic, after=after, limit=ROWS)
        examined += page.examined or 0
        if page.rows or not page.next:
            break
        after = page.next
    facts = {
        "sentence": _sentence(page, topic, examined),
        "topic": topic,
        "page_facts": page,
        "rows": [_row(message) for message in page.rows],
        "first": address(DELAYED, {"topic": topic}) if visit.query.get("after") else "",
        "next": address(DELAYED, {"topic": topic, "after": page.next}) if page.next else "",
    }
    flags = [*([topic] if topic else []), *(["--after", after] if after else [])]
    return Shown("delayed.html", "Delayed messages", facts, command("msg", "delayed", *flags))


def _sentence(page: DelayedPage, topic: str, examined: int) -> str:
    """How many wait, in words."""
    if page.waiting is None:
        told = "Messages that wait for their time, of topics that you may see."
    elif not page.waiting:
        return "No message waits for its time."
    else:
        wait = "waits for its" if page.waiting == 1 else "wait for their"
        told = f"{counted(page.waiting, 'message')} {wait} time."
    if page.rows:
        return told
    of = f" of {topic}" if topic else " that you may see"
    if page.next:
        return f"{told} None{of} is among the {number(examined)} looked at: see the next page."
    return f"{told} None{of} is on this page."


def _row(message: DelayedMessage) -> DelayedRow:
    way = recall = ""
    if message.unique_key:
        way = address(WAY, {"key": message.unique_key}, topic=message.topic)
    if not message.level and message.unique_key:
        place = Place(message.group, message.queue_id, message.queue_offset)
        words = {"due": message.due_ms, "place": place, "key": message.unique_key}
        recall = address(DELAYED_RECALL, words, topic=message.topic)
    return DelayedRow(message, way, recall)


__all__ = ["delayed"]
