"""The dead letters of a group, a page at a time, and their export."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from duolog import Message
from duolog._columns import split_keys

from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.pages.lists import Pages
from duolog_server.ops.console.pages.messages.rows import message_row
from duolog_server.ops.console.view.addresses import DEAD, address
from duolog_server.ops.console.view.formatting import command, counted, number
from duolog_server.ops.console.view.selections import SELECTED, box_of, chosen
from duolog_server.ops.console.view.visits import Exported, Shown, Visit
from duolog_server.ops.inspection.deadletters.export import as_json, lines, selected, stopped
from duolog_server.ops.inspection.deadletters.places import letters_page
from duolog_server.ops.inspection.deadletters.redelivery import (
    MARK,
    origin_of,
    sent_until,
    was_sent,
)
from duolog_server.ops.inspection.messages.places import Place, place_of

ROWS = 50


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter in a list. link: its page. topic: that it was sent to. state: whether it was
    sent again, as far as that is known.
    """

    name: str
    place: Place
    link: str
    store_time_ms: int
    topic: str
    attempts: int
    keys: str
    line: str
    state: str


async def dead(visit: Visit) -> Shown:
    """A page of the dead letters of a group. Raises UnknownTopic where it never had one."""
    name, query = visit.path["group"], visit.query
    at = place_of(query["at"]) if query.get("at") else None
    page = await letters_page(visit.client, name, at, ROWS)
    again = await sent_until(visit.client, name)
    told = f"{counted(page.total, 'dead letter')}." if page.total else "No dead letter is kept."
    if page.letters and (page.previous or page.next):
        last = page.first + len(page.letters) - 1
        told = f"{told[:-1]}; {number(page.first)} to {number(last)} are shown."
    facts = {
        "sentence": told,
        "group": name,
        "total": page.total,
        "rows": [_row(visit.seeing, letter, again) for letter in page.letters],
        "pages": Pages(
            first=address(DEAD, group=name) if page.previous else "",
            next=_link(name, page.next),
            previous=_link(name, page.previous),
        ),
        "mark": MARK,
        "selected": SELECTED,
    }
    words = ["--at", str(at)] if at is not None else []
    same = command("group", "dead", names=[name], flags=words)
    return Shown("dead.html", f"Dead letters of {name}", facts, same)


def _link(group: str, at: Place | None) -> str:
    return "" if at is None else address(DEAD, {"at": at}, group=group)


def _row(seeing: Seeing, letter: Message, again: Mapping[tuple[str, int], int]) -> LetterRow:
    row, place = message_row(seeing, letter, letter.group), Place.of(letter)
    states = ["a copy that failed again"] if MARK in letter.properties else []
    if was_sent(place, again):
        states.append("sent again")
    return LetterRow(
        box_of(place),
        place,
        row.link,
        row.store_time_ms,
        origin_of(letter),
        letter.reconsume_times,
        row.keys,
        row.line,
        ", ".join(states),
    )


async def dead_export(visit: Visit) -> Exported:
    """The selected dead letters as JSON Lines, or all of them. Raises BadRequest."""
    name = visit.path["group"]
    letters = selected(visit.client, name, chosen(visit.query))
    found = lines(letters, partial(_as_seen, visit.seeing))
    return Exported(f"dead-letters-{name}.jsonl", found, stopped("the session ended"))


def _as_seen(seeing: Seeing, letter: Message) -> dict[str, object]:
    """All that a viewer may see of a dead letter."""
    found, seen = as_json(letter), seeing.see(letter)
    if seen.whole:
        return found
    body, properties = seen.body, seen.properties
    shown = {} if body.hidden else {"body": body.text or body.protobuf}
    kept = {name: value for name, value in found.items() if not name.startswith("body")}
    return {
        **kept,
        "tags": properties.get("TAGS"),
        "keys": split_keys(properties.get("KEYS", "")),
        "properties": properties,
        **shown,
        "masked": True,
    }
