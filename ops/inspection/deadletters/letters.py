"""Finds, reads and exports the dead letters of a group, a bounded part at a time.

Rules: their order is by replica group, queue and offset, which nothing changes later, so that a
place can be a link. No read asks for more than READ_BYTES, and each has one message at least. An
export is JSON Lines, one object a line, in that order; nothing but one read is held in memory. One
that is ended early says so in its last line, which has `stopped` and `continue_at` and no other
word; without such a line it is whole.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from duolog import Client, DuologError, Message, UnknownTopic

from duolog_server.ops.inspection.messages.places import Place
from duolog_server.store.grouptopics import dead_letter_topic

READ = 100
READ_BYTES = 1 << 20
PAGE_BYTES = 8 << 20  # of the bodies of a page
EXPORT_BYTES_MAX = 1 << 30
EXPORT_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Span:
    """A queue's dead letters: the offsets [begin, end)."""

    replica_group: str
    queue_id: int
    begin: int
    end: int

    @property
    def queue(self) -> tuple[str, int]:
        """Replica group and queue id."""
        return self.replica_group, self.queue_id

    def count_from(self, offset: int) -> int:
        """How many of them lie at an offset or behind it."""
        return self.end - min(self.end, max(self.begin, offset))

    def at(self, offset: int) -> Place:
        """A place in it."""
        return Place(self.replica_group, self.queue_id, offset)


@dataclass(frozen=True, slots=True)
class LettersPage:
    """Dead letters in the order of their places.

    total: of the group, with those that are damaged. first: the number of the first one here,
    from 1 on; 0 where there is none. previous, next: where other pages begin; None: there is none.
    """

    letters: Sequence[Message]
    total: int
    first: int
    previous: Place | None
    next: Place | None


async def spans_of(client: Client, group: str) -> list[Span]:
    """The queues of a group's dead letters, in order.

    Raises UnknownTopic where no message of the group ever became one.
    """
    parts = await client.admin.topics([dead_letter_topic(group)], system=True)
    if not parts:
        raise UnknownTopic(f"no message of group {group!r} ever became a dead letter")
    spans = [
        Span(part.group, queue.queue_id, queue.min_offset, queue.max_offset)
        for part in parts
        for queue in part.stats
    ]
    return sorted(spans, key=lambda span: span.queue)


def total_of(spans: Iterable[Span]) -> int:
    """How many dead letters there are, with those that are damaged."""
    return sum(span.end - span.begin for span in spans)


async def letters_page(
    client: Client, group: str, at: Place | None = None, limit: int = READ
) -> LettersPage:
    """A page of dead letters from a place on; None: from the first.

    It ends early where its bodies exceed PAGE_BYTES. Raises UnknownTopic.
    """
    spans = await spans_of(client, group)
    rest = list(_from(spans, at))
    found: list[Message] = []
    size, following = 0, None
    async with aclosing(_read(client, group, rest)) as letters:
        async for letter in letters:
            if len(found) == limit or (found and size + len(letter.body) > PAGE_BYTES):
                following = Place.of(letter)
                break
            found.append(letter)
            size += len(letter.body)
    total = total_of(spans)
    before = sum(_behind(span, Place.of(found[0])) for span in spans) if found else total
    previous = _back(spans, before, limit) if before else None
    return LettersPage(found, total, before + 1 if found else 0, previous, following)


def _behind(span: Span, place: Place) -> int:
    """How many of a queue's dead letters lie before a place."""
    if span.queue == place.queue:
        return max(0, place.offset - span.begin)
    return span.end - span.begin if span.queue < place.queue else 0


def _back(spans: Sequence[Span], before: int, limit: int) -> Place | None:
    """The place that is `limit` before another one, which has so many before it."""
    left = max(0, before - limit)
    for span in spans:
        if left < span.end - span.begin:
            return span.at(span.begin + left)
        left -= span.end - span.begin
    return None


def _from(spans: Iterable[Span], at: Place | None) -> Iterator[Span]:
    """The rest of the queues from a position on."""
    for span in spans:
        begin = span.begin if at is None else span.begin + _behind(span, at)
        if begin < span.end:
            yield Span(span.replica_group, span.queue_id, begin, span.end)


async def letters_from(
    client: Client, group: str, at: Place | None = None
) -> AsyncGenerator[Message, None]:
    """The dead letters that there are now, from a place on. Raises UnknownTopic."""
    spans = list(_from(await spans_of(client, group), at))
    async with aclosing(_read(client, group, spans)) as letters:
        async for letter in letters:
            yield letter


async def letters_behind(
    client: Client, group: str, offsets: Mapping[tuple[str, int], int]
) -> AsyncGenerator[Message, None]:
    """The dead letters that there are now, from an offset of each queue on. Raises UnknownTopic.

    offsets: by replica group and queue id; from the first one where a queue has none.
    """
    spans = [
        replace(span, begin=max(span.begin, offsets.get(span.queue, 0)))
        for span in await spans_of(client, group)
    ]
    async with aclosing(_read(client, group, spans)) as letters:
        async for letter in letters:
            yield letter


async def letters_at(
    client: Client, group: str, places: Iterable[Place]
) -> AsyncGenerator[Message, None]:
    """The dead letters at some places, in order; those that are gone are left out."""
    async with aclosing(_read(client, group, list(_runs(places)))) as letters:
        async for letter in letters:
            yield letter


def _runs(places: Iterable[Place]) -> Iterator[Span]:
    """Places as spans without gaps."""
    run: Span | None = None
    for place in sorted(set(places)):
        if run is not None and run.at(run.end) == place:
            run = Span(run.replica_group, run.queue_id, run.begin, run.end + 1)
            continue
        if run is not None:
            yield run
        run = Span(place.replica_group, place.queue_id, place.offset, place.offset + 1)
    if run is not None:
        yield run


async def _read(client: Client, group: str, spans: Iterable[Span]) -> AsyncGenerator[Message, None]:
    topic = dead_letter_topic(group)
    for span in spans:
        offset = span.begin
        while offset < span.end:
            batch = await client.pull(
                topic,
                span.queue_id,
                offset,
                max_messages=min(READ, span.end - offset),
                max_bytes=READ_BYTES,
                group=span.replica_group,
            )
            for letter in batch:
                if span.begin <= letter.queue_offset < span.end:
                    yield letter
            if batch.next_offset <= offset:
                break
            offset = batch.next_offset


def as_json(letter: Message) -> dict[str, object]:
    """All that is known of a dead letter. The body is text where it is UTF-8, else base64."""
    properties = letter.properties
    return {
        "place": str(Place.of(letter)),
        "topic": properties.get("DLQ_ORIGIN_TOPIC", ""),
        "message_id": properties.get("DLQ_ORIGIN_MESSAGE_ID", ""),
        "attempts": letter.reconsume_times,
        "replica_group": letter.group,
        "queue_id": letter.queue_id,
        "queue_offset": letter.queue_offset,
        "physical_offset": letter.physical_offset,
        "store_time": letter.store_time_ms,
        "born_time": letter.born_time_ms,
        "tags": letter.tags,
        "keys": letter.keys,
        "properties": properties,
        **_body(letter.body),
    }


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def selected(
    client: Client, group: str, places: Sequence[Place], at: Place | None = None
) -> AsyncGenerator[Message, None]:
    """The dead letters at some places; without any, all of them from `at` on."""
    return letters_at(client, group, places) if places else letters_from(client, group, at)


async def lines(
    letters: AsyncGenerator[Message, None],
    fields_of: Callable[[Message], Mapping[str, object]] = as_json,
    bytes_max: int = EXPORT_BYTES_MAX,
    seconds_max: float = EXPORT_SECONDS_MAX,
) -> AsyncGenerator[str, None]:
    """The lines of an export, with the fields of each dead letter.

    The first dead letter is read before anything is yielded: what prevents that is raised, a later
    error ends the export early.
    """
    clock = asyncio.get_running_loop().time
    end, size, next_place = clock() + seconds_max, 0, ""
    async with aclosing(letters) as found:
        try:
            async for letter in found:
                line = json.dumps(fields_of(letter)) + "\n"
                place, size = Place.of(letter), size + len(line)
                if size > bytes_max or clock() > end:
                    bound = f"{bytes_max} bytes" if size > bytes_max else f"{seconds_max:g} s"
                    yield stopped(f"an export has at most {bound}", str(place))
                    return
                yield line
                next_place = str(replace(place, offset=place.offset + 1))
        except DuologError as error:
            if not next_place:
                raise
            yield stopped(str(error), next_place)


def stopped(why: str, continue_at: str = "") -> str:
    """The last line of an export that is not whole. continue_at: a place; empty: not known."""
    return json.dumps({"stopped": why, "continue_at": continue_at}) + "\n"
