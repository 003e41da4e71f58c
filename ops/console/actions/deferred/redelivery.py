"""Dead letters are sent again: those that are selected, or all that were not sent yet."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from duolog import BadRequest, Client, Message

from duolog_server.ops.console.actions.asking import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.addresses import DEAD, address
from duolog_server.ops.console.view.formatting import command, counted, listed, number, sentence
from duolog_server.ops.console.view.selections import chosen
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.deadletters.places import (
    PAGE_BYTES,
    letters_at,
    letters_behind,
    spans_of,
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

LETTERS, LETTERS_MAX = 100, 10_000  # sent again at a time
CHOSEN_MAX = 80  # a form has room for the places of so many
SECONDS = 15.0  # of one redelivery: its page has 30 s
TOLD = 3  # reasons that a result names


async def _ask(visit: Visit) -> Shown:
    group, places = visit.path["group"], chosen(visit.query)
    if places:
        return await _ask_chosen(visit, group, places)
    spans, again = await spans_of(visit.client, group), await sent_until(visit.client, group)
    left = sum(span.count_from(again.get(span.queue, 0)) for span in spans)
    found = await _look(letters_behind(visit.client, group, again))
    first = f" of the first {number(found.letters)}" if found.letters < left else ""
    return Question(
        f"Redeliver dead letters of {group}",
        f"{counted(left, 'dead letter')} not sent again this way yet. They go to their original "
        "topics, each once: every group there gets them.",
        "Redeliver",
        (Field("count", "At most", str(LETTERS)),),
        type_to_confirm=group,
        heads=("Topic", f"Dead letters{first}", "Exists"),
        preview=await _preview(visit.client, found),
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
        preview=await _preview(visit.client, found),
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


async def _preview(client: Client, found: _Found) -> list[tuple[str, str, str]]:
    """How many go to which topic, and whether it exists, as far as the viewer may see."""
    names = sorted(filter(None, found.topics))
    known = {part.topic for part in await client.admin.topics(names)} if names else set()
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
