"""Messages that wait for their time, the soonest first.

Nobody reads where they wait: a node serves no body before its time.
"""

from dataclasses import dataclass

from duolog import DelayedMessage, DelayedPage

from duolog_server.ops.console.pages.deferred import waiting
from duolog_server.ops.console.view.addresses import DELAYED, DELAYED_RECALL, address
from duolog_server.ops.console.view.formatting import command, counted, number
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.messages.places import Place


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message in the list. way: its path. recall: empty where it cannot be taken back."""

    message: DelayedMessage
    way: str
    recall: str


async def delayed(visit: Visit) -> Shown:
    """A page of delayed messages. Raises UnknownTopic."""

    async def ask(topic: str, after: str) -> DelayedPage:
        return await visit.client.admin.delayed_page(topic, after=after, limit=waiting.ROWS)

    found = await waiting.waiting(visit, DELAYED, ask)
    examined = sum(page.examined or 0 for page in found.looks)
    facts = {
        "sentence": _sentence(found.page, found.topic, examined),
        "topic": found.topic,
        "waiting": found.page.waiting,
        "first_due_ms": found.page.first_due_ms,
        "last_due_ms": found.page.last_due_ms,
        "rows": [_row(message) for message in found.page.rows],
        "pages": found.pages,
    }
    same = command("msg", "delayed", *found.flags)
    return Shown("delayed.html", "Delayed messages", facts, same)


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
    recall = ""
    if not message.level and message.unique_key:
        place = Place(message.group, message.queue_id, message.queue_offset)
        words = {"due": message.due_ms, "place": place, "key": message.unique_key}
        recall = address(DELAYED_RECALL, words, topic=message.topic)
    return DelayedRow(message, waiting.way_of(message.topic, message.unique_key), recall)
