"""The dead letters of a group, a page at a time, and their export.

They are sent again: those that are selected, or all that were not sent yet.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from duolog import BadRequest, Client, Message, UnknownTopic
from duolog._columns import split_keys

from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.pages.lists import Pages
from duolog_server.ops.console.pages.messages import message_row
from duolog_server.ops.console.view.addresses import DEAD, address
from duolog_server.ops.console.view.formatting import command, counted, listed, number, sentence
from duolog_server.ops.console.view.inputs import SELECTED, box_of, chosen
from duolog_server.ops.console.view.questions import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.visits import Action, Done, Exported, Shown, Visit
from duolog_server.ops.inspection.deadletters.letters import (
    PAGE_BYTES,
    LettersPage,
    as_json,
    letters_at,
    letters_behind,
    letters_page,
    lines,
    selected,
    spans_of,
    stopped,
    total_of,
)
from duolog_server.ops.inspection.deadletters.redelivery import (
    MARK,
    Bounds,
    Redelivery,
    Refused,
    origin_of,
    redeliver,
    redeliver_at,
    sent_until,
    was_sent,
)
from duolog_server.ops.inspection.messages.places import Place, place_of

ROWS = 50
LETTERS, LETTERS_MAX = 100, 10_000  # sent again at a time
CHOSEN_MAX = 80  # a form has room for the places of so many
SECONDS = 15.0  # of one redelivery: its page has 30 s
TOLD = 3  # reasons that a result names


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
    """A page of the dead letters of a group. Raises UnknownGroup."""
    name, query = visit.path["group"], visit.query
    at = place_of(query["at"]) if query.get("at") else None
    try:
        page = await letters_page(visit.client, name, at, ROWS)
    except UnknownTopic:
        await visit.client.admin.group(name)  # raises UnknownGroup
        page = LettersPage((), 0, 0, None, None)
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


async def _ask(visit: Visit) -> Shown:
    group, places = visit.path["group"], chosen(visit.query)
    if places:
        return await _ask_chosen(visit, group, places)
    title = f"Redeliver dead letters of {group}"
    try:
        spans = await spans_of(visit.client, group)
    except UnknownTopic:
        await visit.client.admin.group(group)  # raises UnknownGroup
        spans = []
    again = await sent_until(visit.client, group)
    left = sum(span.count_from(again.get(span.queue, 0)) for span in spans)
    if not left:
        kept = total_of(spans)
        sent = "All dead letters were sent again this way: select those to send once more."
        return Question(title, sent if kept else "No dead letter is kept.", "").shown()
    found = await _look(letters_behind(visit.client, group, again))
    first = f" of the first {number(found.letters)}" if found.letters < left else ""
    return Question(
        title,
        f"{counted(left, 'dead letter')} not sent again this way yet. They go to their original "
        "topics, each once: every group there gets them.",
        "Redeliver",
        (Field("count", "At most", str(LETTERS)),),
        type_to_confirm=group,
        heads=("Topic", f"Dead letters{first}", "Exists"),
        preview=await _preview(visit, found),
        command=command("group", "redeliver", names=[group], flags=["--max", str(LETTERS)]),
    ).shown()


async def _ask_chosen(visit: Visit, group: str, places: Sequence[Place]) -> Shown:
    _check(places)
    found = await _look(letters_at(visit.client, group, places))
    again = await sent_until(visit.client, group)
    sent = sum(was_sent(place, again) for place in places)
    counts = {
        "no longer kept": len(places) - found.letters if found.whole else 0,
        "sent again already": sent,
        "copies that failed again": found.copies,
    }
    noted = listed([f"{number(count)} {what}" for what, count in counts.items() if count])
    topics = counted(len(found.topics), "topic")
    flags = [word for place in places for word in ("--letter", str(place))]
    return Question(
        f"Redeliver dead letters of {group}",
        f"{counted(found.letters, 'dead letter')} to {topics}: every group there gets them."
        f"{noted and f' Of the selection: {noted}.'}",
        "Redeliver",
        (Field("letters", "", " ".join(map(str, places)), hidden=True),),
        type_to_confirm=group,
        danger=bool(sent),
        heads=("Topic", "Dead letters", "Exists"),
        preview=await _preview(visit, found),
        command=command("group", "redeliver", names=[group], flags=flags),
    ).shown()


@dataclass(slots=True)
class _Found:
    """A preview of dead letters. copies: that were sent again, and failed again. whole:
    all of them were looked at.
    """

    topics: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    whole: bool = True

    @property
    def letters(self) -> int:
        return self.topics.total()


async def _look(letters: AsyncGenerator[Message, None]) -> _Found:
    """Look at the first LETTERS of them, and not at more than PAGE_BYTES of their bodies."""
    found, size = _Found(), 0
    async with aclosing(letters):
        async for letter in letters:
            if found.letters == LETTERS or size > PAGE_BYTES:
                found.whole = False
                break
            found.topics[origin_of(letter)] += 1
            found.copies += MARK in letter.properties
            size += len(letter.body)
    return found


async def _preview(visit: Visit, found: _Found) -> list[tuple[str, str, str]]:
    """How many go to which topic, and whether it exists, as far as the viewer may see."""
    names = await visit.rights.allowed(sorted(filter(None, found.topics)))
    known = {part.topic for part in await visit.client.admin.topics(names)} if names else set()
    return [
        (topic or "unknown", number(count), "yes" if topic in known else "no")
        for topic, count in sorted(found.topics.items())
    ]


def _check(places: Sequence[Place]) -> None:
    if len(places) > CHOSEN_MAX:
        raise BadRequest(f"{len(places)} dead letters are selected; at most {CHOSEN_MAX} can be")


async def _do(visit: Visit, form: Mapping[str, str]) -> Done:
    group = visit.path["group"]
    confirmed(form, group)
    result = await _redelivered(visit.client, group, form)
    return Done(_told(result), address(DEAD, group=group))


async def _redelivered(client: Client, group: str, form: Mapping[str, str]) -> Redelivery:
    if "letters" not in form:
        count = whole_number(form, "count", 1, LETTERS_MAX)
        return await redeliver(client, group, Bounds(count, SECONDS))
    places = sorted({place_of(text) for text in form["letters"].split()})
    if not places:
        raise BadRequest("no dead letter is selected")
    _check(places)
    return await redeliver_at(client, group, places, SECONDS)


def _told(result: Redelivery) -> str:
    """How many were sent again, which were not, and why."""
    told = f"{counted(result.sent, 'dead letter')} sent again."
    if result.refused:
        reasons = "; ".join(map(_reason, result.refused[:TOLD]))
        more = len(result.refused) - TOLD
        others = f"; and {number(more)} more" if more > 0 else ""
        told += f" {number(len(result.refused))} not sent: {sentence(reasons + others)}"
    return f"{told} The rest was not tried: {sentence(result.stopped)}" if result.stopped else told


def _reason(one: Refused) -> str:
    to = f" to {one.topic}" if one.topic else ""
    return f"{one.place}{to}: {one.why.rstrip('.')}"


REDELIVER = Action(_ask, _do)
