"""Prefetch and credit against a model of the node: no order of events loses credit or messages."""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import pytest
from duolog._columns import crc32
from duolog._membership import Queue
from duolog._message import Batch
from duolog._prefetch import Given, Prefetch
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

BUDGET = 80
BATCH_BYTES = 12
QUEUES: list[Queue] = [("T", n) for n in range(3)]


def batch_of(queue: Queue, base: int, count: int, size: int) -> Batch:
    """`count` messages of `size` bytes each."""
    reply = wire.MessageBatch(
        topic=queue[0],
        queue_id=queue[1],
        count=count,
        bodies=bytes(count * size),
        queue_offset_base=base,
        next_offset=base + count,
        physical_offsets=bytes(8 * count),
        store_times=bytes(8 * count),
        born_times=bytes(8 * count),
        flags=bytes(4 * count),
        sysflags=bytes(4 * count),
        reconsume_times=bytes(4 * count),
    )
    if count:
        ends = [size * n for n in range(count + 1)]
        reply.body_offsets = b"".join(end.to_bytes(4, "little") for end in ends)
        reply.property_offsets = bytes(4 * (count + 1))
    reply.crc32 = crc32(reply.bodies, reply.body_offsets, reply.properties, reply.property_offsets)
    return Batch(reply)


def use(prefetch: Prefetch) -> int:
    """Take one message; the offset behind it."""
    next(prefetch.messages())
    given = prefetch.given()
    assert given is not None
    assert given.count == 1
    return given.behind


@dataclass
class NodeModel:
    """One stream as the node and the wire see it: cursors, credit, batches under way."""

    size: int = 3
    credit: int = 0
    cursors: dict[Queue, tuple[int, int]] = field(default_factory=dict)  # offset, number
    under_way: deque[tuple[Batch, int]] = field(default_factory=deque)

    def send(self, queue: Queue) -> None:
        if self.credit <= 0 or queue not in self.cursors:
            return
        offset, number = self.cursors[queue]
        count = max(1, min(BATCH_BYTES, self.credit) // self.size)
        self.under_way.append((batch_of(queue, offset, count, self.size), number))
        self.cursors[queue] = (offset + count, number)
        self.credit -= count * self.size

    @property
    def in_flight(self) -> int:
        return self.credit + sum(len(batch.bodies) for batch, _ in self.under_way)


class World:
    """A reader's prefetch, its node, and what the reader's user must be given next."""

    def __init__(self) -> None:
        self.prefetch = Prefetch(BUDGET)
        self.node: NodeModel | None = None
        self.expected: dict[Queue, int] = {}

    def act(self, what: str, queue: Queue, offset: int) -> None:
        prefetch, node = self.prefetch, self.node
        match what:
            case "begin":
                prefetch.begin({queue: offset})
                self.expected[queue] = offset
            case "end":
                prefetch.end([queue])
                self.expected.pop(queue, None)
            case "tell":
                self.tell()
            case "exchange":  # the usual: commands go out, batches come in
                for _ in range(1 + offset % 4):
                    self.tell()
                    for other in sorted(self.expected):
                        self.act("send", other, 0)
                    self.act("arrive", queue, 0)
            case "send" if node is not None:
                node.send(queue)
            case "arrive" if node is not None and node.under_way:
                batch, number = node.under_way.popleft()
                prefetch.arrived(batch, number)
            case "break":
                self.node = None
                prefetch.disconnected()
            case "use":
                self.use()
            case "finish":
                self.finish()

    def tell(self) -> None:
        command = self.prefetch.command()
        if command is None:
            return
        self.node = self.node or NodeModel()
        for queue in command.remove:
            del self.node.cursors[queue]
        for queue, offset in command.add.items():
            self.node.cursors[queue] = (offset, command.number)
        self.node.credit += command.credit

    def use(self) -> None:
        """The user takes one message: the very next one of its queue, and never of another."""
        head = self.prefetch.head()
        if head is None or head[1] >= head[0].count:
            return
        batch, used = head
        queue = (batch.topic, batch.queue_id)
        assert batch.queue_offsets[used] == self.expected[queue]
        self.expected[queue] = use(self.prefetch)

    def finish(self) -> None:
        """The user takes what is left of the first batch."""
        head = self.prefetch.head()
        if head is None:
            return
        batch, used = head
        queue = (batch.topic, batch.queue_id)
        assert batch.queue_offsets[0] + used == self.expected[queue]
        self.expected[queue] = self.prefetch.finish().next_offset

    def check(self) -> None:
        prefetch = self.prefetch
        in_flight = 0 if self.node is None else self.node.in_flight
        assert prefetch.returned + prefetch.prefetched + in_flight == BUDGET
        assert prefetch.in_flight == in_flight
        assert prefetch.queues == set(self.expected)
        assert prefetch.prefetched == sum(len(batch.bodies) for batch in prefetch._ready)
        told = self.node is None or prefetch.has_command
        assert told or set(self.node.cursors) == prefetch.queues  # type: ignore[union-attr]


EVENTS = ["begin", "end", "break", "tell", "send", "arrive", "use", "use", "finish"]
STEPS = st.tuples(
    st.sampled_from([*EVENTS, "exchange", "exchange", "exchange"]),
    st.sampled_from(QUEUES),
    st.integers(0, 50),
)


@given(st.lists(STEPS, max_size=200))
def test_credit_is_never_lost_and_messages_arrive_in_order(
    steps: list[tuple[str, Queue, int]],
) -> None:
    world = World()
    for queue in QUEUES:
        world.act("begin", queue, 0)
    for step in steps:
        world.act(*step)
        world.check()


@given(st.lists(STEPS, max_size=200), st.sampled_from(QUEUES))
def test_a_node_with_messages_always_has_credit_to_send_them(
    steps: list[tuple[str, Queue, int]], queue: Queue
) -> None:
    """A user who continues to read gets messages after every exchange with the node."""
    world = World()
    for step in steps:
        world.act(*step)
    world.act("begin", queue, 7)
    taken = 0
    for _ in range(400):
        world.tell()
        for other in world.expected:
            world.act("send", other, 0)
        world.act("arrive", queue, 0)
        while world.prefetch.head() is not None:
            world.finish()
            taken += 1
    world.check()
    assert taken >= 300
    assert world.expected[queue] > 7


def test_a_batch_from_before_a_seek_only_gives_its_credit_back() -> None:
    prefetch = Prefetch(BUDGET)
    queue = QUEUES[0]
    prefetch.begin({queue: 0})
    first = prefetch.command()
    assert first is not None
    assert (first.add, first.credit) == ({queue: 0}, BUDGET)
    prefetch.begin({queue: 100})
    assert not prefetch.arrived(batch_of(queue, 0, 2, 5), first.number)
    second = prefetch.command()
    assert second is not None
    assert (second.add, second.credit) == ({queue: 100}, 10)
    assert not prefetch.arrived(batch_of(queue, 2, 1, 5), first.number)
    assert prefetch.arrived(batch_of(queue, 100, 1, 5), second.number)


def test_a_new_stream_begins_after_the_last_message_delivered() -> None:
    prefetch = Prefetch(BUDGET)
    prefetch.begin(dict.fromkeys(QUEUES, 0))
    command = prefetch.command()
    assert command is not None
    for queue in QUEUES[:2]:
        prefetch.arrived(batch_of(queue, 0, 4, 1), command.number)
    assert use(prefetch) == 1
    prefetch.end(QUEUES[2:])
    prefetch.disconnected()
    again = prefetch.command()
    assert again is not None
    assert again.add == {QUEUES[0]: 1, QUEUES[1]: 0}
    assert (again.remove, again.credit) == ([], BUDGET)


def test_a_new_stream_is_not_asked_to_end_queues_it_never_had() -> None:
    prefetch = Prefetch(BUDGET)
    prefetch.begin(dict.fromkeys(QUEUES, 0))
    assert prefetch.command() is not None
    prefetch.disconnected()
    prefetch.end(QUEUES[:2])
    again = prefetch.command()
    assert again is not None
    assert (set(again.add), again.remove) == ({QUEUES[2]}, [])


def test_credit_used_by_a_dropped_batch_is_not_charged_to_the_next() -> None:
    prefetch = Prefetch(BUDGET)
    prefetch.begin(dict.fromkeys(QUEUES, 0))
    command = prefetch.command()
    assert command is not None
    for queue in QUEUES[:2]:
        prefetch.arrived(batch_of(queue, 0, 4, 1), command.number)
    use(prefetch)
    prefetch.end(QUEUES[:1])
    head = prefetch.head()
    assert head is not None
    assert (head[0].queue_id, head[1]) == (QUEUES[1][1], 0)


@given(st.lists(st.integers(0, 4), max_size=8))
def test_messages_that_were_taken_are_reported_once(takes: list[int]) -> None:
    prefetch = Prefetch(BUDGET)
    queue = QUEUES[0]
    prefetch.begin({queue: 5})
    command = prefetch.command()
    assert command is not None
    prefetch.arrived(batch_of(queue, 5, 10, 1), command.number)
    at = 5
    for count in takes:
        taken = [message.queue_offset for message in islice(prefetch.messages(), count)]
        assert taken == list(range(at, min(at + count, 15)))
        at += len(taken)
        said = Given(queue, len(taken), at - 1, at) if taken else None
        assert prefetch.given() == said
        assert prefetch.head() is not None
    assert prefetch.given() is None


@pytest.mark.parametrize("end", ["seek", "end", "break", "finish"])
def test_messages_taken_of_a_batch_that_is_dropped_are_reported_and_the_rest_is_not_to_be_had(
    end: str,
) -> None:
    prefetch = Prefetch(BUDGET)
    queue = QUEUES[0]
    prefetch.begin({queue: 0})
    command = prefetch.command()
    assert command is not None
    prefetch.arrived(batch_of(queue, 0, 4, 1), command.number)
    messages = prefetch.messages()
    assert [next(messages).queue_offset, next(messages).queue_offset] == [0, 1]
    match end:
        case "seek":
            prefetch.begin({queue: 9})
        case "end":
            prefetch.end([queue])
        case "break":
            prefetch.disconnected()
        case "finish":
            prefetch.finish()
    assert prefetch.given() == Given(queue, 2, 1, 2)
    assert prefetch.given() is None
    assert next(messages, None) is None


def test_credit_for_a_single_byte_is_given_and_given_again() -> None:
    prefetch, queue = Prefetch(1), QUEUES[0]
    prefetch.begin({queue: 0})
    command = prefetch.command()
    assert command is not None
    assert command.credit == 1
    assert prefetch.arrived(batch_of(queue, 0, 1, 1), command.number)
    assert use(prefetch) == 1
    assert prefetch.finish().next_offset == 1
    again = prefetch.command()
    assert again is not None
    assert again.credit == 1, "without, nothing more would come"


def test_the_node_is_told_once_that_a_queue_is_read_no_more() -> None:
    prefetch = Prefetch(BUDGET)
    removed: list[list[Queue]] = []

    def tell() -> None:
        command = prefetch.command()
        removed.append(command.remove if command is not None else [])

    for _ in range(2):
        prefetch.begin({QUEUES[0]: 0})
        tell()
        prefetch.end(QUEUES[:1])
        tell()
    assert removed == [[], QUEUES[:1]] * 2
    prefetch.begin({QUEUES[0]: 0})
    prefetch.end(QUEUES[:1])
    tell()
    assert removed[-1] == [], "it never knew of it"
