"""Queues that move between replica groups: where one is now, what a move touches, how it goes."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from duolog import (
    BadRequest,
    Client,
    DuologError,
    GroupDescription,
    QueueMove,
    QueueMoves,
    QueuePlace,
    QueueSpan,
    QueueStats,
    Retryable,
    Timeout,
    TopicDescription,
    Unauthenticated,
    UnknownTopic,
)

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.inspection.messages.places import QUEUE_ID_MAX
from duolog_server.ops.inspection.topics import parts_of

POLL_SECONDS = 0.5
SOON_SECONDS = 1.0
LOST_SECONDS = 5.0  # that a new master has to take up the moves of the one before


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer group at the queue that is to move.

    lag_ms: age of the oldest message that it has not consumed. reader: the consumer that has the
    queue; empty: not known, or none. consumers: of the group that are connected.
    """

    group: str
    committed: int | None
    lag_messages: int
    lag_ms: int
    reader: str
    consumers: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a move would do. move: as the master of the queue's place answered."""

    move: QueueMove
    queue: QueueStats
    readers: tuple[Reader, ...]

    @property
    def stays(self) -> int:
        """Messages that stay where they are, until retention deletes them."""
        return self.queue.max_offset - self.queue.min_offset

    def steps(self) -> list[str]:
        """What happens, in order."""
        here, there, topic = self.move.source, self.move.target, self.move.topic
        return [
            f"{there} gets a new queue of {topic}, and the topic and its consumer groups where it "
            "lacks them",
            f"new messages for {here} wait for a moment: {here} is sealed at its end (offset "
            f"{self.queue.max_offset} now), and the new queue of {there} begins there",
            f"messages that are sent to {here} from then on are stored in the new queue",
            f"each consumer group that has consumed {here} to its end continues in the new queue",
        ]


def current_place(
    topic: str,
    text: str,
    parts: Sequence[TopicDescription],
    known: QueueMoves,
) -> QueuePlace:
    """Where the messages of a queue are stored now that is given as GROUP/QUEUE, or QUEUE.

    Raises BadRequest for a text that names no queue, or several.
    """
    place, spans = named_place(topic, text, parts, known), _by_place(topic, known.spans)
    for _ in spans:  # a chain is no longer than that
        span = spans.get(place)
        if span is None or span.following is None:
            break
        place = span.following
    return place


def read_place(text: str) -> tuple[str, int]:
    """The replica group and queue id of GROUP/QUEUE, or of QUEUE, which names no group: empty.

    Raises BadRequest.
    """
    group, slash, number = text.rpartition("/")
    queue_id = number_of(number, QUEUE_ID_MAX)
    if queue_id is None or (slash and not group):
        raise BadRequest(f"{text[:80]!r} is not a queue: give QUEUE, or REPLICA-GROUP/QUEUE")
    return group, queue_id


def named_place(
    topic: str, text: str, parts: Sequence[TopicDescription], known: QueueMoves
) -> QueuePlace:
    """The place that GROUP/QUEUE, or QUEUE, names, wherever the queue continues now.

    Raises BadRequest for a text that names no queue, or several.
    """
    group, queue_id = read_place(text)
    held = {part.group for part in parts}
    found = {part.group for part in parts if queue_id < part.queues}
    found |= {one.place.group for one in known.spans if one.place.queue_id == queue_id}
    if group:
        if group not in held:
            told = ", ".join(sorted(held))
            raise BadRequest(f"replica group {group!r} has no topic {topic}; it is in {told}")
        return QueuePlace(group, queue_id)
    if len(found) > 1:
        told = ", ".join(f"{name}/{queue_id}" for name in sorted(found))
        raise BadRequest(f"topic {topic} has several queues {queue_id}: name one of {told}")
    if not found:
        most = max(part.queues for part in parts)
        raise BadRequest(f"topic {topic} has no queue {queue_id}: it has queues 0 to {most - 1}")
    return QueuePlace(found.pop(), queue_id)


def _by_place(topic: str, spans: Iterable[QueueSpan]) -> dict[QueuePlace, QueueSpan]:
    return {one.place: one for one in spans if one.topic == topic}


async def moved_or_none(client: Client, topic: str = "") -> QueueMoves:
    """Queues that moved, of a topic or of all; none where no answer comes soon."""
    try:
        async with asyncio.timeout(SOON_SECONDS):
            return await client.admin.moves(topic)
    except Unauthenticated:
        raise
    except (DuologError, TimeoutError):  # a replica group has no master, say
        return QueueMoves()


async def find(client: Client, topic: str, text: str) -> tuple[QueuePlace, QueueMoves]:
    """Where a queue's messages are stored now, and all that moves of its topic.

    Raises BadRequest, UnknownTopic.
    """
    parts, known = await asyncio.gather(parts_of(client, topic), client.admin.moves(topic))
    return current_place(topic, text, parts, known), known


def running_move(known: QueueMoves, topic: str, place: QueuePlace) -> QueueMove | None:
    """The move of the queue that has its messages at a place, if it is not over."""
    for move in known.moves:
        if move.topic == topic and move.source == place and not move.is_over:
            return move
    return None


async def plan_of(client: Client, topic: str, place: QueuePlace, to: str) -> Plan:
    """What a move would do. Raises as `move_queue`."""
    move = await client.admin.move_queue(topic, place.queue_id, to, group=place.group, plan=True)
    parts, groups = await asyncio.gather(
        client.admin.topics([topic], sizes=True), client.admin.groups()
    )
    rows = [row for part in parts if part.group == place.group for row in part.stats]
    queue = next((row for row in rows if row.queue_id == place.queue_id), None)
    if queue is None:
        raise UnknownTopic(f"topic {topic!r} was deleted meanwhile")
    return Plan(move, queue, _readers(groups, topic, place))


def _readers(
    groups: Iterable[GroupDescription], topic: str, place: QueuePlace
) -> tuple[Reader, ...]:
    found = [
        Reader(
            group.group,
            row.committed,
            row.lag_messages,
            row.lag_ms,
            row.member_id,
            group.consumers,
        )
        for group in groups
        for row in group.queues
        if (row.topic, row.replica_group, row.queue_id) == (topic, *place)
    ]
    return tuple(sorted(found, key=lambda one: (-one.lag_messages, one.group)))


async def followed(client: Client, move: QueueMove, seconds: float) -> AsyncIterator[QueueMove]:
    """A move whenever its state is another one, until it is over.

    Raises Timeout after `seconds`, and BadRequest if no master knows of the move any more.
    """
    yield move
    loop = asyncio.get_running_loop()
    heard = began = loop.time()
    while not move.is_over:
        if loop.time() - began >= seconds:
            why = f" ({move.reason})" if move.reason else ""
            raise Timeout(f"the move is {move.state} after {seconds:g} s{why}; it continues")
        await asyncio.sleep(POLL_SECONDS)
        try:
            found = _again(move, await client.admin.moves(move.topic))
        except Retryable:  # a mastership ends, say
            continue
        if found is None and loop.time() - heard >= LOST_SECONDS:
            raise BadRequest(
                f"the master of {move.source.group} changed, and the next one ended the move: "
                f"{move.source} takes messages there. Move it again"
            )
        if found is not None:
            heard = loop.time()
            if found.state != move.state:
                yield found
            move = found


def _again(move: QueueMove, known: QueueMoves) -> QueueMove | None:
    """The move as it is now. A later master may know it by its seal alone, or not at all."""
    for one in known.moves:
        known_as = one.move == move.move or not move.move  # it got its id when its turn came
        if known_as and (one.topic, one.source) == (move.topic, move.source):
            return one
    span = _by_place(move.topic, known.spans).get(move.source)
    if span is None or span.following is None:
        return None
    return replace(move, state="DONE", to=span.following, end=span.end)
