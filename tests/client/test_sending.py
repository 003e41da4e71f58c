"""A batch on its way: what its tries say, where they go, and what a program is told in the end."""

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog import _sending
from duolog._batcher import BATCH_BYTES, BATCH_MESSAGES
from duolog._columns import crc32, offset_bytes, pack
from duolog._places import Slot
from duolog._producer import Many
from duolog._receipts import Part
from duolog._router import FRESH_SECONDS, Router
from duolog._sending import Batch, Sender, SendOptions
from duolog._terms import PLAIN, Terms
from duolog._topics import INCOMPLETE_SECONDS, LogEnd, TopicCache
from duolog.wire import duolog_pb2 as wire

LONG_MS = 3_600_000  # a node asks to wait so long: no try follows


class Immediate(random.Random):
    """Draws pauses of no length: nothing here waits."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Node:
    """A replica group's connection, which answers as it is told; the last answer again and again.

    An answer is a reply, a status, or an error to raise.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[wire.AppendRequest] = []
        self.bodies: list[bytes] = []
        self.until: list[float] = []
        self.rotated: list[tuple[int, str, int]] = []
        self.moves = 3
        self.endpoint = "10.0.0.1:8081"
        self.ids = itertools.count(1)
        self.runtime = SimpleNamespace(chance=Immediate(1), wall_ms=lambda: 1234)

    async def append(
        self, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        kept = wire.AppendRequest()
        kept.CopyFrom(request)
        self.seen.append(kept)
        self.bodies.append(bodies)
        self.until.append(deadline)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, wire.AppendReply) else reply(answer)

    def named(self, error: duolog.DuologError) -> duolog.DuologError:
        return error

    async def rotate(self, move: int, hint: str = "", epoch: int = 0) -> None:
        self.rotated.append((move, hint, epoch))
        self.moves += 1


class Topics(TopicCache):
    """Knows the queues of T, and forgets nothing but what it notes."""

    def __init__(self, router: Router, slots: list[Slot]) -> None:
        super().__init__(router)
        self._slots = slots
        self.forgotten = 0
        self.cached, self.created = True, False
        self.asked_ends: list[str] = []
        for group, _ in slots:
            self.note_end(group, LogEnd(700, 77))

    def at_hand(self, topic: str, now: float) -> list[Slot]:
        return self._slots if self.cached else []

    async def slots(self, topic: str, timeout: float, create: bool = False) -> list[Slot]:
        self.created = self.created or create
        return self._slots

    async def learn_end(self, group: str, topic: str, timeout: float) -> None:
        assert 0.01 < timeout <= 60.0
        self.asked_ends.append(group)

    def forget(self, topic: str) -> None:
        self.forgotten += 1


class World:
    """A sender, and the groups that it knows."""

    def __init__(self, accept_weak: bool = False, **nodes: Node) -> None:
        self.nodes = nodes
        router = SimpleNamespace(
            runtime=SimpleNamespace(chance=random.Random(1)),
            connection=lambda group: nodes[group],
            groups=self._groups,
            has_choice=len(nodes) > 1,
            reaches=lambda group: group in nodes,
            forked=False,
        )
        self.router = cast(Router, router)
        self.topics = Topics(self.router, [(group, 0) for group in nodes])
        self.sender = Sender(self.router, self.topics, SendOptions(accept_weak=accept_weak))

    async def _groups(self, timeout: float) -> list[str]:
        return sorted(self.nodes)

    async def send(
        self, slot: Slot | None = None, seconds: float = 60.0, terms: Terms = PLAIN, count: int = 1
    ) -> list[Part]:
        bodies, texts = pack([b"body"] * count), pack([b""] * count)
        return await self.sender.send(Batch("T", slot, terms, bodies, texts, count), seconds)


def reply(status: int, master: str = "", **fields: Any) -> wire.AppendReply:
    made = wire.AppendReply(count=1, master=master, reason="why", **fields)
    made.status = status  # type: ignore[assignment]
    return made


UNANSWERED = [
    TimeoutError(),
    duolog.Unavailable("the connection broke"),
    wire.UNKNOWN_ERROR,
    wire.FLUSH_DISK_TIMEOUT,
    wire.FLUSH_SLAVE_TIMEOUT,
]
REFUSALS = [
    (wire.MESSAGE_ILLEGAL, duolog.BadRequest),
    (wire.MESSAGE_TOO_LARGE, duolog.MessageTooLarge),
    (wire.TOPIC_NOT_EXIST, duolog.UnknownTopic),
    (wire.NO_PERMISSION, duolog.NoPermission),
    (wire.CORRUPT_BATCH, duolog.CorruptBatch),
    (reply(wire.QUEUE_OFFSET_MISMATCH, queue_offset=9), duolog.OffsetMismatch),
    (reply(wire.THROTTLED, retry_after_ms=LONG_MS), duolog.Throttled),
    (duolog.Unauthenticated("a wrong password"), duolog.Unauthenticated),
]


@pytest.mark.parametrize(("refusal", "error"), REFUSALS)
async def test_a_refusal_is_raised_as_it_is_where_nothing_can_be_stored(
    refusal: Any, error: type[duolog.DuologError]
) -> None:
    world = World(a=Node(refusal))
    with pytest.raises(duolog.DuologError) as failure:
        await world.send()
    assert failure.type is error
    assert len(world.nodes["a"].seen) == 1


@pytest.mark.parametrize("unanswered", UNANSWERED, ids=repr)
@pytest.mark.parametrize(("refusal", "error"), REFUSALS)
async def test_a_program_is_never_told_that_it_failed_where_a_try_before_may_be_stored(
    unanswered: Any, refusal: Any, error: type[duolog.DuologError]
) -> None:
    world = World(a=Node(unanswered, refusal))
    with pytest.raises(duolog.ResultUnknown) as failure:
        await world.send()
    assert failure.type is duolog.ResultUnknown
    weak = unanswered in (wire.FLUSH_DISK_TIMEOUT, wire.FLUSH_SLAVE_TIMEOUT)
    assert failure.value.status == (wire.PutStatus.Name(unanswered) if weak else "")
    assert len(world.nodes["a"].seen) == 2


async def test_a_repeat_names_the_sequence_and_the_end_of_the_first_try() -> None:
    """A later end would have the node look for the first copy behind it, and store a second."""
    node = Node(TimeoutError(), wire.FLUSH_SLAVE_TIMEOUT, wire.NOT_MASTER, wire.PUT_OK)
    world = World(a=node)
    sending = asyncio.ensure_future(world.send(("a", 0)))
    while not node.seen:
        await asyncio.sleep(0)
    world.topics.note_end("a", LogEnd(900, 77))  # as another batch's answer says
    (part,) = await sending
    assert len({(seen.producer_id, seen.sequence) for seen in node.seen}) == 1
    assert [seen.again for seen in node.seen] == [False, True, True, True]
    assert {(seen.known_end, seen.known_nonce) for seen in node.seen} == {(700, 77)}
    assert node.bodies == [b"body"] * 4
    assert part.status == "PUT_OK"


async def test_a_try_that_was_refused_is_no_repeat_and_names_the_newest_end() -> None:
    node = Node(wire.IN_SYNC_REPLICAS_NOT_ENOUGH, wire.NOT_MASTER, wire.PUT_OK)
    world = World(a=node)
    sending = asyncio.ensure_future(world.send())
    while not node.seen:
        await asyncio.sleep(0)
    world.topics.note_end("a", LogEnd(900, 78))
    await sending
    assert [seen.again for seen in node.seen] == [False] * 3
    assert [seen.known_end for seen in node.seen] == [700, 900, 900]
    assert node.seen[-1].known_nonce == 78


async def test_a_stored_batch_tells_how_far_the_log_is_confirmed_unless_it_was_stored_before() -> (
    None
):
    world = World(a=Node(reply(wire.PUT_OK, physical_offset=950, epoch_nonce=77)))
    await world.send()
    assert world.topics.known_end("a") == LogEnd(950, 77)
    stored_before = reply(wire.PUT_OK, physical_offset=990, epoch_nonce=77)
    stored_before.count = 0
    stored_before.duplicates.add(topic="T", queue_id=0, count=1, queue_offset=5)
    world = World(a=Node(stored_before))
    (part,) = await world.send()
    assert part.duplicate
    assert world.topics.known_end("a") == LogEnd(700, 77)
    weak = reply(wire.SLAVE_NOT_AVAILABLE, physical_offset=950, epoch_nonce=77)
    world = World(accept_weak=True, a=Node(weak))
    await world.send()
    assert world.topics.known_end("a") == LogEnd(700, 77), "it may be lost with the master"


async def test_a_batch_of_which_a_part_was_stored_before_has_a_receipt_for_each_part() -> None:
    answer = reply(wire.PUT_OK, queue_offset=30, physical_offset=950, epoch_nonce=77)
    answer.duplicates.add(topic="T", queue_id=2, count=1, queue_offset=5)
    answer.duplicates.add(topic="U", queue_id=3, count=2, queue_offset=9)
    parts = await World(a=Node(answer)).send(count=5)
    assert [(part.topic, part.queue_id, part.queue_offset) for part in parts] == [
        ("T", 2, 5),
        ("U", 3, 9),
        ("T", 0, 30),
    ]
    places = [(part.first, part.count, part.sequence, part.duplicate) for part in parts]
    assert places == [(0, 1, 0, True), (1, 2, 1, True), (3, 2, 3, False)]


# -- other replica groups --------------------------------------------------------------------------


async def test_a_batch_that_surely_is_not_stored_goes_to_another_group() -> None:
    world = World(a=Node(wire.NOT_MASTER), b=Node(wire.PUT_OK))
    world.nodes["b"].ids = itertools.count(50)
    (part,) = await world.send()
    assert part.group == "b"
    assert not world.topics.created
    (refused,), (stored,) = world.nodes["a"].seen, world.nodes["b"].seen
    assert refused.sequence == stored.sequence
    assert stored.id == 50, "of that connection"
    assert (refused.patience_ms, stored.patience_ms) == (0, 0)
    assert stored.known_end == 700


@pytest.mark.parametrize("unanswered", UNANSWERED, ids=repr)
async def test_a_batch_that_may_be_stored_goes_to_no_other_group(unanswered: Any) -> None:
    """It would be there twice."""
    world = World(a=Node(unanswered, wire.NOT_MASTER, wire.PUT_OK), b=Node(wire.PUT_OK))
    (part,) = await world.send()
    assert part.group == "a"
    assert world.nodes["b"].seen == []
    assert [seen.patience_ms > 0 for seen in world.nodes["a"].seen] == [False, True, True]


async def test_a_batch_with_a_queue_of_its_own_stays_in_its_group() -> None:
    world = World(a=Node(wire.NOT_MASTER, wire.PUT_OK), b=Node(wire.PUT_OK))
    (part,) = await world.send(("a", 0))
    assert (part.group, world.nodes["b"].seen) == ("a", [])
    assert world.nodes["a"].seen[0].patience_ms == 1000 * _sending.PATIENCE_SECONDS


async def test_a_batch_follows_a_master_that_is_named_before_it_goes_elsewhere() -> None:
    named = reply(wire.NOT_MASTER, "10.0.0.2:8081", master_epoch=8)
    world = World(a=Node(named, wire.PUT_OK), b=Node(wire.PUT_OK))
    (part,) = await world.send()
    assert (part.group, world.nodes["b"].seen) == ("a", [])
    assert world.nodes["a"].rotated == [(3, "10.0.0.2:8081", 8)]


async def test_nodes_are_changed_where_another_one_may_take_it() -> None:
    """Not for a busy one, nor for a master that names itself: it takes puts in a moment."""
    itself = reply(wire.NOT_MASTER, "10.0.0.1:8081")
    node = Node(wire.OS_PAGECACHE_BUSY, itself, wire.FLUSH_SLAVE_TIMEOUT, wire.PUT_OK)
    await World(a=node).send()
    assert node.rotated == []
    node = Node(wire.NOT_MASTER, TimeoutError(), wire.PUT_OK)
    await World(a=node).send()
    assert node.rotated == [(3, "", 0), (4, "", 0)]


async def test_a_topic_that_is_not_known_is_asked_for_and_created_where_nodes_do() -> None:
    world = World(a=Node(wire.PUT_OK))
    world.topics.cached = False
    await world.send()
    assert world.topics.created


async def test_turns_go_round_all_queues() -> None:
    world = World(a=Node(wire.PUT_OK), b=Node(wire.PUT_OK), c=Node(wire.PUT_OK))
    parts = [(await world.send())[0] for _ in range(6)]
    assert [part.group for part in parts] == ["a", "b", "c"] * 2
    world.topics._slots = [("a", 0)]
    assert await world.sender.elsewhere("T", "a", 5.0) is None
    assert await World(a=Node()).sender.elsewhere("T", "a", 5.0) is None
    assert await world.sender.elsewhere("T", "b", 0.0) is None, "no time is left"
    way = await world.sender.elsewhere("T", "b", 5.0)
    assert way is not None
    assert way.place == ("a", 0)


# -- queues that moved -----------------------------------------------------------------------------


def moved(world: World, offset: int = 0, to: Slot = ("b", 4)) -> None:
    """Queue 0 of group a lies elsewhere, as of a message with that offset."""
    world.topics.places.note_stored("T", ("a", 0), to, offset)


async def test_a_batch_goes_to_where_its_queue_lies_now_and_its_receipt_has_the_name() -> None:
    world = World(a=Node(wire.PUT_OK), b=Node(wire.PUT_OK))
    moved(world)
    (part,) = await world.send(("a", 0))
    assert world.nodes["a"].seen == []
    (sent,) = world.nodes["b"].seen
    assert (sent.queue_id, sent.known_end) == (4, 700)
    assert (part.group, part.queue_id, part.place) == ("a", 0, ("b", 4))


async def test_an_answer_tells_where_the_next_batch_goes() -> None:
    passed_on = reply(wire.PUT_OK, queue_offset=9)
    passed_on.stored_at.group, passed_on.stored_at.queue_id = "b", 4
    passed_on.duplicates.add(topic="T", queue_id=0, count=1, queue_offset=8)
    world = World(a=Node(passed_on), b=Node(wire.PUT_OK))
    parts = [*await world.send(("a", 0), count=2), *await world.send(("a", 0))]
    assert [len(world.nodes[group].seen) for group in "ab"] == [1, 1]
    assert {(part.group, part.queue_id, part.place) for part in parts} == {("a", 0, ("b", 4))}


async def test_a_repeat_goes_where_the_first_try_went_though_the_queue_moved_meanwhile() -> None:
    """That place may have stored it, and knows it: the next one may not."""
    world = World(a=Node(TimeoutError(), wire.NOT_MASTER, wire.PUT_OK), b=Node(wire.PUT_OK))
    sending = asyncio.ensure_future(world.send(("a", 0)))
    while not world.nodes["a"].seen:
        await asyncio.sleep(0)
    moved(world)
    waiting = asyncio.ensure_future(world.send(("a", 0)))
    (first,), (second,) = await sending, await waiting
    assert [seen.again for seen in world.nodes["a"].seen] == [False, True, True]
    assert (first.place, second.place) == (("a", 0), ("b", 4))
    assert [seen.sequence for seen in world.nodes["b"].seen] == [1]


async def test_a_batch_that_was_cancelled_may_be_stored_yet() -> None:
    world = World(a=Node(wire.PUT_OK), b=Node(wire.PUT_OK))
    sending = asyncio.ensure_future(world.send(("a", 0)))
    while not world.nodes["a"].seen:
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    moved(world)
    with pytest.raises(duolog.Timeout, match="have no answer yet"):
        await world.send(("a", 0), seconds=0.0)
    (part,) = await world.send()
    assert part.group == "b", "a batch for any queue takes one that needs no wait"
    assert [seen.queue_id for seen in world.nodes["b"].seen] == [0]


async def test_a_batch_that_may_go_anywhere_goes_to_no_queue_in_the_group_that_failed_it() -> None:
    world = World(a=Node(wire.PUT_OK), b=Node(wire.NOT_MASTER), c=Node(wire.PUT_OK))
    moved(world)
    (part,) = await world.send()
    assert (part.group, len(world.nodes["b"].seen)) == ("c", 1)
    assert world.nodes["a"].seen == []
    assert not world.sender.ways._ways


async def test_a_place_that_this_client_does_not_reach_is_left_to_the_one_before_it() -> None:
    world = World(a=Node(wire.PUT_OK))
    moved(world)
    (part,) = await world.send(("a", 0))
    assert (part.place, len(world.nodes["a"].seen)) == (("a", 0), 1)


async def test_a_place_that_has_lost_its_queue_sends_the_batch_back_to_where_that_was_made() -> (
    None
):
    world = World(a=Node(wire.PUT_OK), b=Node(wire.TOPIC_NOT_EXIST))
    moved(world)
    (part,) = await world.send(("a", 0))
    assert (part.place, len(world.nodes["b"].seen)) == (("a", 0), 1)
    assert world.topics.places.of("T", ("a", 0)) == ("a", 0)
    assert not world.sender.ways._ways


async def test_a_refusal_stands_where_the_group_of_the_name_has_left() -> None:
    world = World(b=Node(wire.MESSAGE_ILLEGAL, wire.PUT_OK))
    moved(world)
    with pytest.raises(duolog.BadRequest):
        await world.send(("a", 0))
    (part,) = await world.send(("a", 0))
    assert part.place == ("b", 4), "it is not forgotten"


async def test_a_copy_goes_to_the_group_that_has_the_message() -> None:
    world = World(a=Node(wire.PUT_OK), b=Node(wire.PUT_OK))
    moved(world)
    (part,) = await world.send(("a", 0), terms=Terms(copied_from=("D", 2, 17)))
    assert (part.place, world.nodes["b"].seen) == (("a", 0), [])
    assert not world.sender.ways._ways


async def test_keys_go_to_the_same_queues_once_a_group_has_left() -> None:
    """All of its queues are another one's guests: their names stay where they were in the order."""
    own = {"a": 2, "b": 1}

    class Admin:
        def __init__(self, group: str) -> None:
            self.group = group

        async def ListTopics(self, request: Any, timeout: float) -> wire.ListTopicsReply:
            answer = wire.ListTopicsReply()
            topic = answer.topics.add(topic="T", queues=own[self.group])
            if self.group == "b":
                for k in range(2):
                    topic.guests.add(queue_id=1 + k, first=9, name_group="a", name_queue_id=k)
            return answer

    class Connection:
        def __init__(self, group: str) -> None:
            self.admin = Admin(group)

        async def call(self, make: Any, timeout: float) -> Any:
            return await make(timeout)

    async def groups(timeout: float) -> list[str]:
        return list(own)

    async def asked() -> tuple[TopicCache, list[Slot]]:
        router = SimpleNamespace(
            groups=groups,
            connection=Connection,
            unreachable=list,
            check_process=lambda: None,
            runtime=SimpleNamespace(chance=random.Random(1)),
        )
        topics = TopicCache(cast(Router, router))
        return topics, await topics.slots("T", 60.0)

    _, before = await asked()
    own.pop("a")
    topics, after = await asked()
    assert before == after == [("a", 0), ("a", 1), ("b", 0)]
    assert [topics.places.of("T", name) for name in after] == [("b", 1), ("b", 2), ("b", 0)]
    own["b"] = 0
    assert (await asked())[1] == after[:2], "a group that has none of its own"


# -- limits ----------------------------------------------------------------------------------------


async def test_a_batch_that_waits_for_others_has_surely_not_been_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_sending, "ATTEMPT_SECONDS", 0.0)
    world = World(a=Node(wire.PUT_OK))
    for _ in range(_sending.IN_FLIGHT_MAX):
        assert world.sender.window.free()
    assert not world.sender.window.free()
    with pytest.raises(duolog.Timeout, match="earlier batches wait for their answers"):
        await world.send(seconds=0.02)
    assert world.nodes["a"].seen == []
    world.sender.window.release()
    await world.send(seconds=30.0)
    assert world.sender.window.free(), "its place is free again"


async def test_places_are_given_in_order() -> None:
    world = World(a=Node(wire.PUT_OK))
    window = world.sender.window
    for _ in range(_sending.IN_FLIGHT_MAX):
        window.free()
    waiting = asyncio.ensure_future(window.acquire())
    await asyncio.sleep(0)
    window.release()
    assert not window.free(), "it is the waiter's"
    assert await waiting


async def test_a_try_has_no_more_time_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sending, "ATTEMPT_SECONDS", 50.0)
    world, loop = World(a=Node(wire.PUT_OK)), asyncio.get_running_loop()
    began = loop.time()
    await world.send(seconds=20.0)
    await world.send(seconds=200.0)
    short, long = world.nodes["a"].until
    assert began + 20.0 <= short <= loop.time() + 20.0
    assert began + 50.0 <= long <= loop.time() + 50.0
    with pytest.raises(duolog.Timeout, match="not sent within 0 s"):
        await world.send(seconds=0.0)
    assert len(world.nodes["a"].seen) == 2


async def test_a_request_of_the_largest_size_is_sent_and_a_larger_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(a=Node(wire.PUT_OK))
    size = sum(map(len, (*pack([b"body"] * 3), *pack([b""] * 3))))
    monkeypatch.setattr(_sending, "COLUMN_BYTES_MAX", size)
    await world.send(count=3)
    monkeypatch.setattr(_sending, "COLUMN_BYTES_MAX", size - 1)
    with pytest.raises(duolog.MessageTooLarge):
        await world.send(count=3)
    assert len(world.nodes["a"].seen) == 1


async def test_the_end_of_a_log_is_asked_for_once_before_the_first_send() -> None:
    """Without it a new master could not tell a repeat from a first try."""
    world = World(a=Node(wire.PUT_OK))
    world.topics._ends.clear()
    await world.send(seconds=0.5)
    assert world.topics.asked_ends == ["a"]
    world.topics.note_end("a", LogEnd(700, 77))
    await world.send()
    assert world.topics.asked_ends == ["a"]


async def test_a_refusal_has_the_queues_asked_for_again_and_a_quota_has_not() -> None:
    world = World(a=Node(reply(wire.THROTTLED, retry_after_ms=LONG_MS)))
    with pytest.raises(duolog.Throttled):
        await world.send()
    assert world.topics.forgotten == 0
    world = World(a=Node(wire.TOPIC_NOT_EXIST))
    with pytest.raises(duolog.UnknownTopic):
        await world.send()
    assert world.topics.forgotten == 1


# -- what a request says ---------------------------------------------------------------------------


async def test_sequences_are_taken_for_every_message() -> None:
    world = World(a=Node(wire.PUT_OK))
    for count in (3, 2, 1):
        await world.send(count=count)
    assert [seen.sequence for seen in world.nodes["a"].seen] == [0, 3, 5]
    assert {seen.born_time for seen in world.nodes["a"].seen} == {1234}
    key = world.sender.unique_key(5)
    assert key == (world.sender.producer_id + (5).to_bytes(6, "big")).hex().upper()


async def test_the_terms_of_a_batch_are_in_its_request_and_covered_by_its_checksum() -> None:
    world = World(a=Node(wire.PUT_OK))
    await world.send()
    await world.send(terms=Terms(deliver_time=5000, delay_level=3))
    await world.send(terms=Terms(transaction_group="g", immunity_seconds=9))
    await world.send(terms=Terms(expect_offset=0))
    await world.send(terms=Terms(copied_from=("D", 2, 17)))
    plain, delayed, half, expecting, copy = world.nodes["a"].seen
    columns = (*pack([b"body"]), *pack([b""]))
    assert plain.crc32 == copy.crc32 == crc32(*columns)
    assert (delayed.deliver_time, delayed.delay_level) == (5000, 3)
    assert (half.transaction_group, half.immunity_seconds) == ("g", 9)
    assert expecting.HasField("expect_offset")
    assert not plain.HasField("expect_offset")
    assert expecting.crc32 == crc32(*columns, offset_bytes(0))
    assert (copy.copied_from.topic, copy.copied_from.queue_id, copy.copied_from.offset) == (
        *("D", 2),
        17,
    )
    assert not plain.HasField("copied_from")


async def test_a_weak_status_has_a_receipt_only_for_who_asked_for_it() -> None:
    for status in _sending.WEAK:
        (part,) = await World(accept_weak=True, a=Node(status)).send()
        assert part.status == wire.PutStatus.Name(status)
    node = Node(wire.SLAVE_NOT_AVAILABLE)
    with pytest.raises(duolog.SlaveNotAvailable, match="may be lost with it") as failure:
        await World(a=node).send()
    assert (failure.value.status, len(node.seen)) == ("SLAVE_NOT_AVAILABLE", 1)


async def test_the_end_of_a_log_is_what_its_node_says() -> None:
    """Also for a queue that the program named, of a topic that nobody has asked for."""

    class Admin:
        async def ListTopics(self, request: Any, timeout: float) -> Any:
            assert (list(request.topics), request.create) == (["T"], True)
            return wire.ListTopicsReply(confirm_offset=800, confirm_nonce=5)

    class Asked:
        admin = Admin()

        async def call(self, make: Any, timeout: float) -> Any:
            return await make(timeout)

    topics = TopicCache(cast(Router, SimpleNamespace(connection=lambda group: Asked())))
    assert not topics.knows_end("a")
    await topics.learn_end("a", "T", 5.0)
    assert topics.knows_end("a")
    assert topics.known_end("a") == LogEnd(800, 5)


async def test_a_send_that_waited_for_another_ones_answer_has_the_rest_of_its_time() -> None:
    given: list[float] = []

    class Asked:
        async def call(self, make: Any, timeout: float) -> Any:
            given.append(timeout)
            await asyncio.sleep(timeout)
            raise duolog.Timeout("no answer")

    topics = TopicCache(cast(Router, SimpleNamespace(connection=lambda group: Asked())))
    sends = [asyncio.create_task(topics.learn_end("a", "T", seconds)) for seconds in (0.05, 0.2)]
    await asyncio.wait(sends)
    assert all(isinstance(send.exception(), duolog.Timeout) for send in sends)
    first, second = given
    assert first <= 0.05
    assert second <= 0.16


async def test_first_sends_to_a_queue_go_in_the_order_they_came() -> None:
    """None of them asks for the log's end by itself: answers may come in any order."""

    class Asked(Node):
        admin, asked = None, 0

        async def call(self, make: Any, timeout: float) -> Any:
            self.asked += 1
            for _ in range(20 - 2 * self.asked):
                await asyncio.sleep(0)
            return wire.ListTopicsReply(confirm_offset=800, confirm_nonce=5)

    node = Asked(*[wire.PUT_OK] * 8)
    world = World(a=node)
    topics = world.sender.topics = TopicCache(world.router)
    batches = [Batch("T", ("a", 0), PLAIN, pack([b"%d" % k]), pack([b""]), 1, k) for k in range(8)]
    await asyncio.gather(*(world.sender.send(batch, 5.0) for batch in batches))
    assert (node.bodies, node.asked) == ([b"%d" % k for k in range(8)], 1)
    await topics.close()


async def test_a_pause_at_the_deadline_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock: the machine may stand still there."""
    loop, ended = asyncio.get_running_loop(), 0
    for tick in range(1, 12):
        world, clock = World(a=Node(wire.NOT_MASTER)), itertools.count(0.0, 0.05)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda clock=clock: next(clock))
            with pytest.raises((duolog.Timeout, duolog.NotMaster)):
                await world.send(seconds=0.05 * tick)
        ended += 1
    assert ended == 11


async def test_a_time_that_ran_out_in_a_pause_says_why_the_try_before_was_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    class StandsStill(Node):
        async def rotate(self, move: int, hint: str = "", epoch: int = 0) -> None:
            nonlocal now
            now += 100.0

    world = World(a=StandsStill(wire.NOT_MASTER))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    with pytest.raises(duolog.NotMaster):
        await world.send()
    assert len(world.nodes["a"].bodies) == 1


async def test_queues_of_a_group_that_does_not_answer_stay_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them, the messages of a key would go to another queue at every failover."""
    now, answers = 100.0, dict[str, int | Exception](a=2, b=1)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    class Group:
        admin = None

        def __init__(self, name: str) -> None:
            self._name = name

        async def call(self, make: Any, timeout: float) -> Any:
            answer = answers[self._name]
            if isinstance(answer, Exception):
                raise answer
            return wire.ListTopicsReply(topics=[wire.TopicReply(queues=answer)])

    async def groups(timeout: float) -> list[str]:
        return sorted(answers)

    router = SimpleNamespace(
        connection=Group,
        groups=groups,
        unreachable=list[str],
        check_process=lambda: None,
        forked=False,
        runtime=SimpleNamespace(chance=None),
    )
    topics = TopicCache(cast(Router, router))
    whole = [("a", 0), ("a", 1), ("b", 0)]
    assert await topics.slots("T", 5.0) == whole
    answers["b"] = duolog.Unavailable("gone")
    now += FRESH_SECONDS
    assert await topics.slots("T", 5.0) == whole
    now += FRESH_SECONDS
    assert await topics.slots("T", 5.0) == whole[:2]
    answers["b"] = 1
    now += FRESH_SECONDS
    assert await topics.slots("T", 5.0) == whole
    await topics.close()


HALF, MOST = bytes(BATCH_BYTES // 2), BATCH_MESSAGES


@pytest.mark.parametrize(
    ("many", "requests"),
    [
        (Many("T", [b"a"]), [(0, 1)]),
        (Many("T", [b"a"] * MOST), [(0, MOST)]),
        (
            Many("T", [b""] * (BATCH_MESSAGES + 2)),
            [(0, BATCH_MESSAGES), (BATCH_MESSAGES, BATCH_MESSAGES + 2)],
        ),
        (Many("T", [HALF, HALF, HALF, b"", b"a"]), [(0, 2), (2, 5)]),
        (Many("T", [HALF, HALF + b"a", HALF]), [(0, 1), (1, 2), (2, 3)]),
        (Many("T", [HALF * 3, b"a"]), [(0, 1), (1, 2)]),
        (Many("T", [b"a", HALF * 3, b"b", b"c"]), [(0, 1), (1, 2), (2, 4)]),
        # Properties count as well, those that all have once for each.
        (Many("T", [HALF, HALF], texts=[b"", b"t"]), [(0, 1), (1, 2)]),
        (Many("T", [HALF, HALF[1:], b""], texts=[b"", b"t", b""]), [(0, 3)]),
        (Many("T", [HALF, HALF[3:]], same=b"p"), [(0, 2)]),
        (Many("T", [HALF, HALF[1:]], same=b"p"), [(0, 1), (1, 2)]),
        (Many("T", [b"", HALF, HALF[3:]], same=b"p"), [(0, 3)]),
        (Many("T", [b"", HALF, HALF[2:]], same=b"p"), [(0, 2), (2, 3)]),
    ],
)
def test_messages_go_together_up_to_the_limits_of_a_request(
    many: Many, requests: list[tuple[int, int]]
) -> None:
    assert many.requests() == requests


class Context:
    """A span, whose context is one word more."""

    def text(self, text: bytes) -> bytes:
        return text + b"+"


def test_each_message_carries_the_context_of_its_send() -> None:
    span: Any = Context()
    same = Many("T", [b"a", b"b"], same=b"p").carrying(span)
    assert (same.same, same.texts) == (b"p+", None)
    each = Many("T", [b"a", b"b"], texts=[b"p", b"q"]).carrying(span)
    assert (each.same, each.texts) == (b"", [b"p+", b"q+"])
    assert same.batch(1, 2).texts == pack([b"p+"])
    assert each.batch(1, 2).texts == pack([b"q+"])


async def test_a_topic_is_asked_for_again_while_a_group_that_may_have_it_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, gone, asked = 100.0, ["b"], list[float]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def ask_once(topic: str, timeout: float, create: bool) -> list[Slot]:
        asked.append(timeout)
        if len(asked) == found_at:
            return []
        raise duolog.UnknownTopic("T")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    fifth = SimpleNamespace(uniform=lambda low, high: 5.0)  # pauses of 0.25, 0.5, 1 s
    router: Any = SimpleNamespace(
        unreachable=lambda: gone, runtime=SimpleNamespace(chance=fifth), check_process=None
    )
    topics = TopicCache(router)
    topics._ask_once = ask_once  # type: ignore[method-assign]
    found_at = 0
    with pytest.raises(duolog.Unavailable, match=r"'T' is unknown to .* and b cannot be reached"):
        await topics._ask("T", 1.75, False)
    assert asked == [1.75, 1.5, 1.0], "the next try would begin at the deadline"
    found_at = 5
    assert await topics._ask("T", 5.0, False) == []
    asked.clear()
    gone.clear()
    with pytest.raises(duolog.UnknownTopic):
        await topics._ask("T", 5.0, False)
    assert len(asked) == 1


@pytest.mark.parametrize("silent", [False, True])
async def test_queues_are_asked_for_again_sooner_where_not_all_groups_told_them(
    silent: bool,
) -> None:
    async def groups(timeout: float) -> list[str]:
        return ["a", "b"]

    async def answers(*_: object) -> list[int | Exception]:
        return [2, duolog.Unavailable("no answer") if silent else 1]

    router: Any = SimpleNamespace(groups=groups, unreachable=lambda: [])
    topics = TopicCache(router)
    topics._answers = answers  # type: ignore[assignment]
    now = asyncio.get_running_loop().time()
    slots = await topics._ask_once("T", 5.0, False)
    assert slots == [("a", 0), ("a", 1), *([] if silent else [("b", 0)])]
    fresh = now + INCOMPLETE_SECONDS < topics._known["T"][0] - 1.0
    assert fresh == (not silent)
