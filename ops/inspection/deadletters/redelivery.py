"""Dead letters are sent to their original topics again.

Rules: a dead letter stays where it is, and nothing but the offsets of a consumer group of its own
tells that it was sent again: `redeliver` sends each once, `redeliver_at` all within its bounds.
A copy says in the property MARK which dead letter it is a copy of, if there is room for it. Copies
go out AT_ONCE together;
one that a node refuses for good does not keep the others.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from duolog import (
    BadRequest,
    Client,
    DuologError,
    Fatal,
    Message,
    NoPermission,
    UnknownGroup,
)
from duolog._columns import COPY_MARK, ONE_KEY, RESERVED, split_keys
from duolog._producer import Producer

from duolog_server.ops.inspection.deadletters.letters import letters_at, spans_of
from duolog_server.ops.inspection.messages.places import Place
from duolog_server.ops.inspection.messages.sending import Copy, send_again
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.metadata import GROUP_NEW_MAX

ARRIVAL_SECONDS = 2.0  # if nothing arrives for this long, all dead letters were sent
AT_ONCE, BYTES_AT_ONCE = 100, 8 << 20  # of one round: at least one, or its bodies
MARK = COPY_MARK  # GROUP/REPLICA-GROUP/QUEUE/OFFSET
# Properties that the copy gets anew, or must not have.
_LEFT_OUT = RESERVED | {ONE_KEY, MARK}


@dataclass(frozen=True, slots=True)
class Refused:
    """A dead letter that was not sent again, and why."""

    place: Place
    topic: str
    why: str


@dataclass(slots=True)
class Redelivery:
    """Result of a redelivery of dead letters.

    refused: those that were not sent, in order, and with a result that is not known those that
    may have been. stopped: why the rest was not tried; empty: all were.
    """

    sent: int = 0
    refused: list[Refused] = field(default_factory=list)
    stopped: str = ""

    @property
    def done(self) -> int:
        """Dead letters that were dealt with."""
        return self.sent + len(self.refused)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one redelivery. count: of dead letters. seconds: no new ones afterwards."""

    count: int
    seconds: float


def group_of(group: str) -> str:
    """The consumer group whose offsets tell what `redeliver` has sent.

    Named by a digest where a group's name leaves no room.
    """
    name = f"redelivery-of-{group}"
    if len(name) <= GROUP_NEW_MAX:
        return name
    return f"redelivery-of-{hashlib.sha256(group.encode()).hexdigest()}"


def origin_of(letter: Message) -> str:
    """The topic that a dead letter was sent to first; empty where it does not say so."""
    return letter.properties.get("DLQ_ORIGIN_TOPIC", "")


async def sent_until(client: Client, group: str) -> dict[tuple[str, int], int]:
    """By replica group and queue: the offset before which all dead letters were sent by
    `redeliver`. Empty where none was, or where the caller may not see it.
    """
    try:
        found = await client.admin.group(group_of(group))
    except (NoPermission, UnknownGroup):
        return {}
    topic = dead_letter_topic(group)
    return {
        (queue.replica_group, queue.queue_id): queue.committed
        for queue in found.queues
        if queue.topic == topic and queue.committed is not None
    }


def was_sent(place: Place, until: Mapping[tuple[str, int], int]) -> bool:
    """Whether `redeliver` sent a dead letter again. until: as `sent_until` has it."""
    return place.offset < until.get(place.queue, 0)


async def redeliver(client: Client, group: str, bounds: Bounds) -> Redelivery:
    """Send a group's dead letters again that were not yet sent this way.

    After an error it continues, the next time, at the first one that was not sent: some that follow
    it may go out twice. Raises UnknownTopic where no message of the group ever became one.
    """
    await spans_of(client, group)
    clock = asyncio.get_running_loop().time
    end, result = clock() + bounds.seconds, Redelivery()
    async with (
        client.producer() as producer,
        client.consumer(group_of(group), dead_letter_topic(group)) as consumer,
    ):
        while not result.stopped and result.done < bounds.count:
            batch = await consumer.get_batch(ARRIVAL_SECONDS)
            if batch is None:
                break
            reached = 0
            while reached < len(batch) and not result.stopped and result.done < bounds.count:
                if clock() >= end:
                    result.stopped = _over(bounds.seconds)
                    break
                count = min(AT_ONCE, len(batch) - reached, bounds.count - result.done)
                some = [batch[k] for k in range(reached, reached + count)]
                reached += await _send(producer, group, some, result)
            if reached < len(batch):
                offset = batch.queue_offsets[reached]
                queue = batch.topic, batch.queue_id, offset
                await consumer.seek(*queue, group=batch.group)
    return result


async def redeliver_at(
    client: Client, group: str, places: Sequence[Place], seconds: float
) -> Redelivery:
    """Send the dead letters at some places again, whether or not they were sent before."""
    clock = asyncio.get_running_loop().time
    end, result, wanted = clock() + seconds, Redelivery(), set(places)
    letters = letters_at(client, group, wanted)
    async with client.producer() as producer, aclosing(letters):
        while not result.stopped and (some := await _round(letters)):
            if clock() >= end:
                result.stopped = _over(seconds)
                break
            wanted.difference_update(map(Place.of, some))
            await _send(producer, group, some, result)
    if not result.stopped:
        result.refused += [Refused(place, "", "it is no longer kept") for place in sorted(wanted)]
    return result


async def _round(letters: AsyncGenerator[Message, None]) -> list[Message]:
    """The next dead letters that go out together; none where all have."""
    found: list[Message] = []
    size = 0
    async for letter in letters:
        found.append(letter)
        size += len(letter.body)
        if len(found) == AT_ONCE or size >= BYTES_AT_ONCE:
            break
    return found


def _over(seconds: float) -> str:
    return f"its time limit of {seconds:g} s is over"


async def _send(
    producer: Producer, group: str, letters: Sequence[Message], result: Redelivery
) -> int:
    """Send some together, and note what became of each.

    Returns how many are over and done with: those before the first that may be sent later.
    """
    outcomes = await asyncio.gather(
        *(_copy(producer, group, letter) for letter in letters), return_exceptions=True
    )
    over = len(letters)
    for k, (letter, error) in enumerate(zip(letters, outcomes, strict=True)):
        if error is None:
            result.sent += 1
            continue
        if not isinstance(error, DuologError):
            raise error
        result.refused.append(Refused(Place.of(letter), origin_of(letter), str(error)))
        if not isinstance(error, Fatal):
            result.stopped = result.stopped or str(error)
            over = min(over, k)
    return over


async def _copy(producer: Producer, group: str, letter: Message) -> None:
    """Send a copy. Raises what `send` raises."""
    if not origin_of(letter):
        raise BadRequest("it has no property DLQ_ORIGIN_TOPIC, which names the topic to send it to")
    copy = Copy(letter, origin_of(letter), _LEFT_OUT, mark=f"{group}/{Place.of(letter)}")
    kept = {name: text for name, text in letter.properties.items() if name not in _LEFT_OUT}
    await send_again(
        producer,
        copy,
        lambda: producer.send(
            copy.topic,
            letter.body,
            # One with spaces is found by its words.
            keys=split_keys(letter.properties.get("KEYS", "")),
            tags=letter.tags or None,
            properties={**kept, MARK: copy.mark},
        ),
    )
