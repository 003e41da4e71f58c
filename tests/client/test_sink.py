"""A sink's calls: what it stages and publishes, and how often it asks."""

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog._columns import crc32, pack
from duolog._router import Router
from duolog._sink import Sink, SinkState
from duolog.wire import duolog_pb2 as wire


class Group:
    """A connection that gives these answers, a second of the loop's time each."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any, float]] = []
        self.how: list[tuple[float, float]] = []  # seconds for a call, and for one node
        self.messages = self
        self.now = 100.0

    async def call(self, make: Any, timeout: float, *, attempt: float) -> Any:
        self.how.append((timeout, attempt))
        return await make(attempt)

    def __getattr__(self, method: str) -> Any:
        async def answer(request: Any, timeout: float) -> Any:
            self.asked.append((method, request, timeout))
            self.now += 1.0
            found = self.answers.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the loop the time of a group; pauses pass at once."""

    def of(group: Group) -> None:
        async def sleep(seconds: float) -> None:
            group.now += seconds

        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: group.now)
        monkeypatch.setattr(asyncio, "sleep", sleep)

    return of


def sink_of(group: Group, timeout: float = 10.0, chance: Any = None) -> Sink:
    runtime = SimpleNamespace(chance=chance or random.Random(1))
    router: Any = SimpleNamespace(connection=lambda name: {"g": group}[name], runtime=runtime)
    return Sink(cast(Router, router), "s", "g", timeout)


async def test_a_batch_is_staged_as_it_was_packed_and_published_by_its_numbers() -> None:
    group = Group(wire.StageReply(staged=7), wire.PublishReply(before=True), wire.PublishReply())
    sink = sink_of(group)
    bodies, texts = pack([b"a", b"bc"]), pack([b"k\x01v\x02", b""])
    assert await sink.stage("T", 3, bodies, texts, 1234, flag=5) == 7
    assert await sink.publish(2, [7, 9], "rows", "me") is True
    assert await sink.publish(3, []) is False
    (_, staged, _), (_, first, whole), (_, second, _) = group.asked
    assert [method for method, *_ in group.asked] == ["Stage", "Publish", "Publish"]
    batch = wire.AppendRequest.FromString(staged.batch)
    assert staged.sink == "s"
    assert (batch.topic, batch.queue_id, batch.born_time, batch.flag) == ("T", 3, 1234, 5)
    assert (batch.bodies, batch.body_offsets) == bodies
    assert (batch.properties, batch.property_offsets) == texts
    assert batch.crc32 == crc32(*bodies, *texts)
    assert (first.sink, first.batch, list(first.staged)) == ("s", 2, [7, 9])
    assert (first.contents, first.publisher) == ("rows", "me")
    assert (second.contents, second.publisher) == ("", "")
    assert whole == pytest.approx(10.0, abs=1), "a publication may take as long as the sink has"


async def test_the_state_of_a_sink_is_that_of_its_last_batch() -> None:
    reply = wire.SinkStateReply(
        known=True, batch=9, batches=3, messages=30, batch_messages=10, lost_parts=1
    )
    reply.contents, reply.publisher = "rows", "me"
    group = Group(wire.SinkStateReply(), reply)
    sink = sink_of(group)
    assert await sink.state() is None
    assert await sink.state() == SinkState(9, 3, 30, 10, 1, "rows", "me")
    assert [request.sink for _, request, _ in group.asked] == ["s", "s"]


async def test_a_sink_asks_again_while_its_group_is_busy_and_there_is_time(clock: Any) -> None:
    busy, unknown = duolog.Busy("too few replicas"), duolog.ResultUnknown("no answer")
    group = Group(busy, unknown, wire.PublishReply())
    clock(group)
    assert await sink_of(group).publish(1, []) is False
    lefts = [left for left, _ in group.how]
    assert lefts[0] == 10.0
    assert all(1.02 < one - other < 1.4 for one, other in itertools.pairwise(lefts))
    assert [attempt for _, attempt in group.how] == lefts, "no more than what is left"

    group = Group(*[busy] * 9)
    clock(group)
    with pytest.raises(duolog.Busy):
        await sink_of(group, 3.0).state()
    assert len(group.asked) == 3, "the next try would end after the deadline"
    assert [attempt for _, attempt in group.how] == [left for left, _ in group.how]

    group = Group(busy, busy)
    clock(group)
    fifth: Any = SimpleNamespace(uniform=lambda low, high: 5.0)  # of a pause of 0.25 s
    with pytest.raises(duolog.Busy):
        await sink_of(group, 1.25, fifth).state()
    assert len(group.asked) == 1, "a try at the deadline would have no time"


@pytest.mark.parametrize("error", [duolog.BadRequest("other contents"), duolog.NoSuchMessage("x")])
async def test_a_refusal_of_a_sink_is_not_asked_for_again(error: Exception) -> None:
    group = Group(error)
    with pytest.raises(type(error)):
        await sink_of(group).publish(1, [2])
    assert len(group.asked) == 1


async def test_one_node_has_a_part_of_the_time_to_stage_in() -> None:
    group = Group(wire.StageReply(staged=1))
    await sink_of(group, 30.0).stage("T", 0, pack([b""]), (b"", b""), 0)
    assert group.how[0][1] == 4.0
