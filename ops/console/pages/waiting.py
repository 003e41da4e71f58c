"""Messages that wait: for their time, or for their producer's decision; a page at a time.

Nobody reads where they wait: a node serves no body before its time. A message that waits for its
time is taken back; a half message is committed or rolled back by an operator, in the place of its
producer.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duolog import BadRequest, DelayedMessage, DelayedPage, HalfMessage, HalvesPage, NoSuchMessage

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.console.pages.lists import REFUSED, Pages, refused
from duolog_server.ops.console.view.addresses import (
    DELAYED,
    DELAYED_RECALL,
    HALF_DECIDE,
    HALVES,
    WAY,
    address,
)
from duolog_server.ops.console.view.formatting import command, counted, number, size
from duolog_server.ops.console.view.questions import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.finding import client_records, delayed_at
from duolog_server.ops.inspection.messages.places import OFFSET_MAX, Place, place_of
from duolog_server.ops.inspection.messages.trace import Row, rows
from duolog_server.ops.inspection.times import iso

ROWS = 50
LOOKS = 5  # calls that a page makes until it has a row

P = TypeVar("P", bound=DelayedPage | HalvesPage)
TIME_MAX = (1 << 53) - 1  # ms since 1970
COMMIT, ROLLBACK = "commit", "rollback"
_WHAT = {
    COMMIT: "It is stored in its topic, and every group there gets it.",
    ROLLBACK: "No consumer ever gets it.",
}
_DONE = {COMMIT: "committed", ROLLBACK: "rolled back"}
BY_KEY_MAX = 32  # messages that a node tells of


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


def _none(visit: Visit, template: str, title: str) -> Shown:
    """A list without rows."""
    facts = {"topic": visit.query.get("topic", ""), "rows": (), "pages": Pages()}
    return Shown(template, title, {**facts, "waiting": 0, "checks_max": 0})


def way_of(topic: str, unique_key: str) -> str:
    """The page of a message's path; empty for one without a key."""
    return address(WAY, {"key": unique_key}, topic=topic) if unique_key else ""


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message in the list. way: its path. recall: empty where it cannot be taken back."""

    message: DelayedMessage
    way: str
    recall: str


async def delayed(visit: Visit) -> Shown:
    """A page of delayed messages. Raises UnknownTopic."""

    async def ask(topic: str, after: str) -> DelayedPage:
        return await visit.client.admin.delayed_page(topic, after=after, limit=ROWS)

    try:
        found = await waiting(visit, DELAYED, ask)
    except tuple(REFUSED) as error:
        return refused(_none(visit, "delayed.html", "Delayed messages"), error)
    examined = sum(page.examined or 0 for page in found.looks)
    facts = {
        "sentence": _delayed_sentence(found.page, found.topic, examined),
        "topic": found.topic,
        "waiting": found.page.waiting,
        "first_due_ms": found.page.first_due_ms,
        "last_due_ms": found.page.last_due_ms,
        "rows": [_delayed_row(message) for message in found.page.rows],
        "pages": found.pages,
    }
    same = command("msg", "delayed", *found.flags)
    return Shown("delayed.html", "Delayed messages", facts, same)


def _delayed_sentence(page: DelayedPage, topic: str, examined: int) -> str:
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


def _delayed_row(message: DelayedMessage) -> DelayedRow:
    recall = ""
    if not message.level and message.unique_key:
        place = Place(message.group, message.queue_id, message.queue_offset)
        words = {"due": message.due_ms, "place": place, "key": message.unique_key}
        recall = address(DELAYED_RECALL, words, topic=message.topic)
    return DelayedRow(message, way_of(message.topic, message.unique_key), recall)


async def _delayed_message(visit: Visit, words: Mapping[str, str]) -> DelayedMessage:
    """The message that is asked about. Raises BadRequest, NoSuchMessage."""
    due_ms = whole_number(words, "due", 1, TIME_MAX)
    place, topic = place_of(words.get("place", "")), visit.path["topic"]
    found = await delayed_at(visit.client, topic, due_ms, place)
    if found.unique_key != words.get("key", ""):
        raise NoSuchMessage(f"another message waits at {place}")
    return found


async def _ask_recall(visit: Visit) -> Shown:
    found, query = await _delayed_message(visit, visit.query), visit.query
    place = query["place"]
    return Question(
        f"Recall a delayed message of {found.topic}",
        "It is never delivered, and cannot be brought back.",
        "Recall",
        [Field(name, "", query[name], hidden=True) for name in ("due", "place", "key")],
        type_to_confirm=found.topic,
        danger=True,
        heads=("Unique key", "Due", "Place", "Size"),
        preview=[
            (
                found.unique_key,
                iso(found.due_ms) or "",
                f"{found.group}/{found.queue_id}/{number(found.queue_offset)}",
                size(found.size),
            )
        ],
        command=command("msg", "recall", names=[found.topic, place, found.unique_key]),
    ).shown()


async def _recall(visit: Visit, form: Mapping[str, str]) -> Done:
    confirmed(form, visit.path["topic"])
    found = await _delayed_message(visit, form)
    await visit.client.admin.recall_delayed(
        found.topic, found.queue_offset, found.unique_key, group=found.group
    )
    return Done(f"Message {found.unique_key} was recalled.", address(DELAYED))


RECALL = Action(_ask_recall, _recall)


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
        return await visit.client.admin.halves_page(topic, after=after, limit=ROWS)

    try:
        found = await waiting(visit, HALVES, ask)
    except tuple(REFUSED) as error:
        return refused(_none(visit, "half.html", "Half messages"), error)
    facts = {
        "sentence": _half_sentence(found.page, found.topic),
        "topic": found.topic,
        "checks_max": found.page.checks_max,
        "rows": [_half_row(message) for message in found.page.rows],
        "pages": found.pages,
    }
    return Shown("half.html", "Half messages", facts, command("msg", "half", *found.flags))


def _half_sentence(page: HalvesPage, topic: str) -> str:
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


def _half_row(message: HalfMessage) -> HalfRow:
    commit, rollback = (
        address(
            HALF_DECIDE,
            {"decision": one, "producers": message.producer_group},
            group=message.group,
            half=message.half,
        )
        for one in ("commit", "rollback")
    )
    return HalfRow(message, way_of(message.topic, message.unique_key), commit, rollback)


def _decision_of(words: Mapping[str, str]) -> str:
    """Raises BadRequest."""
    decision = words.get("decision", "")
    if decision not in _WHAT:
        raise BadRequest(f"{decision[:80]!r} is not a decision: give {COMMIT} or {ROLLBACK}")
    return decision


async def _half_message(visit: Visit) -> HalfMessage:
    """The half message that is asked about. Raises BadRequest, NoSuchMessage."""
    text = visit.path["half"]
    half = number_of(text, OFFSET_MAX)
    if half is None:
        raise BadRequest(f"{text[:80]!r} is not the offset of a half message")
    return await visit.client.admin.half(half, group=visit.path["group"])


async def _ask_decide(visit: Visit) -> Shown:
    decision, found = _decision_of(visit.query), await _half_message(visit)
    return Question(
        f"{'Commit' if decision == COMMIT else 'Roll back'} a half message of {found.topic}",
        f"{_WHAT[decision]} The decision is final: the producer group {found.producer_group} "
        "can no longer decide otherwise. Find out first what the producer did.",
        "Commit" if decision == COMMIT else "Roll back",
        (Field("decision", "", decision, hidden=True),),
        type_to_confirm=found.topic,
        danger=True,
        heads=("Unique key", "Producer group", "Stored", "Checks", "Size"),
        preview=[
            (
                found.unique_key or "unknown",
                found.producer_group,
                iso(found.stored_ms) or "",
                number(found.checks),
                size(found.size),
            )
        ],
        command=command(
            "msg",
            "decide",
            names=[found.producer_group, f"{found.group}/0/{found.half}"],
            flags=[f"--{decision}"],
        ),
    ).shown()


async def _decide(visit: Visit, form: Mapping[str, str]) -> Done:
    decision, found = _decision_of(form), await _half_message(visit)
    confirmed(form, found.topic)
    await visit.client.admin.decide_half(
        found.producer_group, found.half, commit=decision == COMMIT, group=found.group
    )
    return Done(
        f"Half message {found.group}/0/{found.half} of {found.topic} was {_DONE[decision]}.",
        address(HALVES),
    )


DECIDE = Action(_ask_decide, _decide)


async def way(visit: Visit) -> Shown:
    """The trace of the messages with a key so far. Raises NoSuchMessage, UnknownTopic."""
    topic, key = visit.path["topic"], visit.query.get("key", "")
    tracked = await visit.client.admin.track_key(topic, key)
    steps: list[Row] = []
    for one in tracked[:BY_KEY_MAX]:
        steps += rows(one, await client_records(visit.client, one.unique_key))
    facts = {
        "sentence": f"{counted(len(tracked), 'message')} with this key.",
        "topic": topic,
        "steps": steps,
    }
    same = command("msg", "track", names=[topic], flags=["--key", key])
    return Shown("way.html", f"Path of {key}", facts, same)
