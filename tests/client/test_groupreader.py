"""Which queues a member of a group goes on taking for its own."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog import _groupreader
from duolog._groupreader import GroupReader
from duolog._membership import Consumption, Queue, Share
from duolog._router import Router
from duolog.wire import duolog_pb2 as wire

from tests.client.test_prefetch import batch_of

FIRST, SECOND = ("T", 0), ("T", 2)
START = 5


class Place:
    """A place in a group. answers: to the next heartbeats. foreign: another member's queues."""

    def __init__(self) -> None:
        self.topics = ["T"]
        self.answers: list[Share | Exception] = [Share({FIRST, SECOND})]
        self.claims: list[list[Queue]] = []
        self.asked: list[dict[Queue, int]] = []
        self.forward: list[bool] = []  # of each commit
        self.foreign: set[Queue] = set()
        self.errors: list[Exception] = []  # of the next commits
        self.left = 0
        self.begins: list[tuple[list[Queue], duolog.Start | None]] = []

    async def share(self, owned: Iterable[Queue]) -> Share:
        self.claims.append(sorted(owned))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def offsets(
        self, queues: Sequence[Queue], start: duolog.Start | None
    ) -> dict[Queue, int]:
        self.begins.append((list(queues), start))
        return dict.fromkeys(queues, START)

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        self.asked.append(offsets)
        self.forward.append(forward)
        if self.errors:
            raise self.errors.pop(0)
        if self.foreign & offsets.keys():
            raise duolog.StaleMember("another member's")

    async def leave(self) -> None:
        self.left += 1


@pytest.fixture
def place() -> Place:
    return Place()


class Calls:
    """A connection that answers where in a queue a time is, and that is closed in the end."""

    def __init__(self) -> None:
        self.runtime = SimpleNamespace(chance=random.Random(1))
        self.groups = self
        self.starts: list[tuple[Queue, str]] = []
        self.closed = 0

    async def OffsetAtTime(self, request: Any, timeout: float) -> Any:
        assert timeout > 0
        at = str(request.time) if request.HasField("time") else wire.Start.Name(request.start)
        self.starts.append(((request.topic, request.queue_id), at))
        return wire.OffsetAtTimeReply(queue_offset=100 + request.queue_id)

    async def call(self, make: Any, timeout: float) -> Any:
        return await make(timeout)

    async def close(self) -> None:
        self.closed += 1


def reader_at(place: Place, calls: Calls | None = None, **how: Any) -> GroupReader:
    calls = calls or Calls()
    router: Any = SimpleNamespace(connection=lambda _: calls, reading=lambda _: calls)
    consumption = Consumption(group="g", session=5.0, **how)
    return GroupReader(cast(Router, router), "0", consumption, place, asyncio.Event())


@pytest.fixture
async def reader(place: Place) -> GroupReader:
    """The user has the first message of the second queue."""
    made = reader_at(place)
    await made._heartbeat()
    arrives(made, SECOND)
    taken = made.get()
    assert taken is not None
    assert taken.queue_id == SECOND[1]
    return made


def arrives(reader: GroupReader, queue: Queue) -> None:
    """Three messages of a queue are fetched."""
    arrived(reader, batch_of(queue, START, count=3, size=4).wire)


def arrived(reader: GroupReader, batch: wire.MessageBatch) -> None:
    """A batch comes, as the reader asked for it."""
    reader._prefetch.command()
    batch.subscription = reader._prefetch._cursors[batch.topic, batch.queue_id].number
    reader._take(batch)


async def test_a_queue_with_a_message_in_hand_stays_claimed_until_it_is_consumed(
    place: Place, reader: GroupReader
) -> None:
    place.answers = [Share({FIRST})] * 3
    await reader._heartbeat()
    await reader._heartbeat()
    reader.consume_handed()
    await reader._heartbeat()
    assert place.claims[1:] == [[FIRST, SECOND]] * 3
    assert place.asked[-1] == {SECOND: START + 1}
    assert reader._positions.keys() == {FIRST}


async def test_a_queue_that_a_silent_member_lost_is_given_up_with_its_message_in_hand(
    place: Place, reader: GroupReader
) -> None:
    place.answers = [Share({FIRST}, forfeited={SECOND}), Share({FIRST})]
    place.foreign = {SECOND}
    await reader._heartbeat()
    assert reader.assignment == [FIRST]
    assert reader._handed is None
    assert reader.get() is None
    await reader._heartbeat()
    assert place.claims[1:] == [[FIRST, SECOND], [FIRST]]
    assert not place.asked, "what is not ours is not committed"


async def test_what_was_consumed_of_other_queues_is_committed_when_one_was_lost(
    place: Place, reader: GroupReader
) -> None:
    reader.consume_handed()
    place.answers = [Share(set(), forfeited={FIRST})]
    place.foreign = {FIRST}
    await reader._heartbeat()
    assert place.asked == [{SECOND: START + 1}]
    assert not reader._positions


async def test_a_queue_that_comes_back_to_a_silent_member_is_read_where_the_group_is(
    place: Place, reader: GroupReader
) -> None:
    reader.consume_handed()
    place.answers = [Share({FIRST}, forfeited={SECOND}), Share({FIRST, SECOND})]
    await reader._heartbeat()
    await reader._heartbeat()
    assert reader._positions == {FIRST: START, SECOND: START}


async def test_what_is_consumed_while_a_queue_comes_back_stays_consumed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a queue that is new to the group, whose beginning is asked for."""
    third = ("T", 3)
    calls = Calls()
    reader = reader_at(place, calls)
    await reader._heartbeat()
    arrives(reader, SECOND)
    assert reader.get() is not None

    async def offsets(queues: Sequence[Queue], start: duolog.Start | None) -> dict[Queue, int]:
        return {queue: -1 if queue == third else START for queue in queues}

    async def call(make: Any, timeout: float) -> Any:
        reader.consume_handed()
        return await make(timeout)

    monkeypatch.setattr(place, "offsets", offsets)
    monkeypatch.setattr(calls, "call", call)
    place.answers = [Share({FIRST}), Share({FIRST, SECOND, third})]
    await reader._heartbeat()
    await reader._heartbeat()
    assert reader._positions == {FIRST: START, SECOND: START + 1, third: 103}


async def test_a_group_begins_when_its_member_starts_though_it_reads_nothing_yet(
    place: Place,
) -> None:
    """As under a new master, which hears first who reads what."""
    place.answers = [Share(set(), pending=True)]
    place.topics = ["T", "U"]
    latest, earliest = duolog.Start.LATEST, duolog.Start.EARLIEST
    consumption = Consumption(group="g", start=latest, begun=frozenset("U"))
    nothing: Any = SimpleNamespace(runtime=SimpleNamespace(chance=random.Random(1)))
    router: Any = SimpleNamespace(connection=lambda _: nothing, reading=lambda _: nothing)
    made = GroupReader(cast(Router, router), "0", consumption, place, asyncio.Event())
    made._keep = lambda loop: asyncio.sleep(0)  # type: ignore[method-assign]
    joined = place.share

    async def share(owned: Iterable[Queue]) -> Share:
        await asyncio.sleep(0)  # as where a node answers
        return await joined(owned)

    place.share = share  # type: ignore[method-assign]
    await asyncio.gather(made.start(), made.start())
    await made.start()
    assert place.claims == [[]], "one joins once"
    assert place.begins == [([("U", 0)], earliest), ([("T", 0)], latest)]
    await made._background.stop()


def begun(reader: GroupReader) -> dict[Queue, int]:
    """Where a node is told next to begin queues."""
    command = reader._prefetch.command()
    return command.add if command is not None else {}


def taken(reader: GroupReader, count: int) -> list[int]:
    """Offsets of the next messages, as a program gets them."""
    found = []
    for _ in range(count):
        message = next(reader.at_hand, None)
        if message is None:
            reader.consume_handed()
            message = reader.get()
        assert message is not None
        found.append(message.queue_offset)
    return found


async def test_a_message_is_consumed_when_the_next_one_is_asked_for(
    place: Place, reader: GroupReader
) -> None:
    await reader.commit()
    assert place.asked == [], "the first one is in hand"
    assert taken(reader, 1) == [START + 1]
    await reader.commit()
    assert taken(reader, 1) == [START + 2]
    reader.consume_handed()
    assert reader.get() is None
    await reader.commit()
    assert place.asked == [{SECOND: START + 1}, {SECOND: START + 3}]
    assert place.forward == [True, True]
    await reader.commit()
    assert len(place.asked) == 2, "nothing is new"


async def test_a_commit_that_failed_is_made_again(place: Place, reader: GroupReader) -> None:
    taken(reader, 1)
    place.errors = [duolog.Unavailable("no master")]
    with pytest.raises(duolog.Unavailable):
        await reader.commit()
    await reader.commit()
    assert place.asked == [{SECOND: START + 1}] * 2


async def test_messages_that_did_not_reach_the_program_are_handed_out_again(
    place: Place, reader: GroupReader
) -> None:
    taken(reader, 1)
    reader.take_back()
    assert begun(reader) == {SECOND: START + 1}
    arrives(reader, SECOND)
    reader.take_back()  # nothing is in hand
    await reader.commit()
    assert place.asked == [{SECOND: START + 1}]
    assert reader._positions[SECOND] == START + 1


async def test_what_the_next_member_reads_is_not_taken_back(
    place: Place, reader: GroupReader
) -> None:
    place.answers = [Share({FIRST})]
    await reader._heartbeat()
    reader.take_back()
    assert reader.assignment == [FIRST]


async def test_a_program_that_failed_has_not_consumed_what_it_had_in_hand(
    place: Place, reader: GroupReader
) -> None:
    taken(reader, 1)
    reader.forget_handed()
    await reader.close()
    await reader.close()
    assert place.asked == [{SECOND: START + 1}]
    assert place.left == 1


@pytest.mark.parametrize("commit", [True, False])
async def test_a_reader_that_closes_commits_what_it_may_and_leaves(
    place: Place, commit: bool
) -> None:
    calls = Calls()
    reader = reader_at(place, calls)
    await reader._heartbeat()
    arrives(reader, FIRST)
    taken(reader, 1)
    place.errors = [duolog.Unavailable("no master")]
    await reader.close(commit)
    assert place.asked == ([{FIRST: START + 1}] if commit else [])
    assert (place.left, calls.closed) == (1, 1)


async def test_a_queue_is_kept_no_longer_than_a_session_for_the_message_in_hand(
    place: Place, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    place.answers = [Share({FIRST})] * 4
    assert await reader._heartbeat(), "the queue is still to be let go of"
    now += 5.0
    await reader._heartbeat()
    assert SECOND in reader._positions
    now += 0.1
    await reader._heartbeat()
    assert SECOND not in reader._positions
    reader.consume_handed()
    await reader.commit()
    assert place.asked == [], "the message is the next member's"
    assert not await reader._heartbeat()


async def test_the_time_in_hand_counts_anew_for_another_message(
    place: Place, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    both = Share({FIRST, SECOND})
    place.answers = [Share({FIRST}), both, Share({FIRST}), Share({FIRST})]
    await reader._heartbeat()
    now += 4.0
    await reader._heartbeat()  # it is ours again
    now += 4.0
    await reader._heartbeat()
    now += 4.0
    await reader._heartbeat()
    assert SECOND in reader._positions
    begun(reader)
    place.answers = [both]
    await reader._heartbeat()
    assert begun(reader) == {SECOND: START + 1}, "what is in hand is not handed out again"


@pytest.mark.parametrize("consumed", [False, True])
async def test_the_time_in_hand_counts_anew_for_a_message_of_another_queue(
    place: Place, reader: GroupReader, monkeypatch: pytest.MonkeyPatch, consumed: bool
) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    place.answers = [Share({FIRST}), Share({FIRST}), Share(set())]
    await reader._heartbeat()
    now += 1.0 if consumed else 5.1
    if consumed:
        reader.consume_handed()
    await reader._heartbeat()
    assert reader._positions.keys() == {FIRST}
    arrives(reader, FIRST)
    taken(reader, 1)
    now += 4.5
    await reader._heartbeat()
    assert reader._positions.keys() == {FIRST}


async def test_a_queue_that_comes_back_has_neither_a_message_in_hand_nor_a_rewind(
    place: Place, reader: GroupReader
) -> None:
    await reader.seek(*FIRST, 1)
    taken(reader, 1)
    both = Share({FIRST, SECOND})
    place.answers = [Share(set(), forfeited={FIRST, SECOND}), both]
    await reader._heartbeat()
    await reader.commit()
    assert place.asked == []
    begun(reader)
    await reader._heartbeat()
    assert begun(reader) == {FIRST: START, SECOND: START}
    arrives(reader, FIRST)
    taken(reader, 1)
    reader.consume_handed()
    await reader.commit()
    assert (place.asked, place.forward) == ([{FIRST: START + 1}], [True])


async def test_a_seek_is_committed_once_and_leaves_the_message_in_hand_of_another_queue(
    place: Place, reader: GroupReader
) -> None:
    await reader.seek(*FIRST, 1)
    assert begun(reader) == {FIRST: 1}
    await reader.commit()
    reader.consume_handed()
    await reader.commit()
    assert place.asked == [{FIRST: 1}, {SECOND: START + 1}]
    await reader.seek(*FIRST, 2)
    await reader.commit()
    arrives(reader, FIRST)
    taken(reader, 4)
    await reader.commit()
    assert place.asked[2:] == [{FIRST: 2}, {FIRST: START + 1, SECOND: START + 3}]
    assert place.forward == [False, True, False, True]


async def test_where_an_unclean_election_gave_up_messages_the_group_goes_back(
    place: Place, reader: GroupReader, caplog: pytest.LogCaptureFixture
) -> None:
    batch = batch_of(FIRST, START, count=0, size=4).wire
    batch.status, batch.next_offset = wire.OFFSET_TOO_LARGE, 2
    arrived(reader, batch)
    assert "now ends at offset 2" in caplog.text
    taken(reader, 2)
    reader.consume_handed()
    assert reader.get_batch() is None, "nobody is given a batch of nothing"
    await reader.commit()
    assert place.asked == [{SECOND: START + 3}, {FIRST: 2}]
    assert place.forward == [True, False]


@pytest.mark.parametrize("holds", [False, True])
async def test_the_group_goes_back_though_what_was_read_before_is_consumed_and_committed_later(
    place: Place, reader: GroupReader, holds: bool
) -> None:
    """holds: as a worker does."""
    arrives(reader, FIRST)
    taken(reader, 4)
    last = reader.get()
    assert last is not None
    held = reader.hold(last) if holds else None
    batch = batch_of(FIRST, START + 3, count=0, size=4).wire
    batch.status, batch.next_offset = wire.OFFSET_TOO_LARGE, 2
    arrived(reader, batch)
    if held is not None:
        assert reader.begin(held)
        reader.finish(held)
    reader.consume_handed()
    await reader.commit()
    assert place.asked[-1][FIRST] == START + 3
    assert reader.get() is None
    await reader.commit()
    assert place.asked[-1] == {FIRST: 2}
    assert not place.forward[-1]


async def test_a_program_seeks_in_the_queues_that_it_reads(
    place: Place, reader: GroupReader
) -> None:
    taken(reader, 1)
    with pytest.raises(duolog.UnknownTopic, match="T/9 is not assigned"):
        await reader.seek("T", 9, 0)
    with pytest.raises(duolog.BadRequest, match="-1 is negative"):
        await reader.seek(*SECOND, -1)
    await reader.seek(*SECOND, 0)
    assert reader._handed is None, "what was in hand is not consumed"
    await reader.commit()
    assert (place.asked, place.forward) == ([{SECOND: 0}], [False]), "below where the group is"
    arrives(reader, FIRST)
    taken(reader, 2)
    await reader.commit()
    assert (place.asked[1:], place.forward[1:]) == ([{FIRST: START + 1}], [True])
    await reader.seek_to_time(duolog.Start.LATEST)
    assert reader._positions == {FIRST: 100, SECOND: 102}


async def test_new_queues_begin_where_nothing_is_passed_over(place: Place) -> None:
    """A group that reads a topic already begins at the first message of its new queues."""
    calls, latest = Calls(), duolog.Start.LATEST
    retry = ("%RETRY%g", 0)
    place.answers = [Share({FIRST, retry}), Share({FIRST, SECOND, retry})]
    reader = reader_at(place, calls, start=latest)

    async def unknown(queues: Sequence[Queue], start: object) -> dict[Queue, int]:
        return {}

    place.offsets = unknown  # type: ignore[method-assign]
    await reader._heartbeat()
    assert sorted(calls.starts) == [(retry, "EARLIEST"), (FIRST, "LATEST")]
    assert place.asked == [{FIRST: 100, retry: 100}], "before anything of them is read"
    assert place.forward == [True], "another member may have begun it"
    calls.starts.clear()
    await reader._heartbeat()
    assert calls.starts == [(SECOND, "EARLIEST")]
    assert reader._positions == {FIRST: 100, SECOND: 102, retry: 100}


async def test_a_group_that_is_at_the_first_message_reads_it(place: Place) -> None:
    calls = Calls()
    reader = reader_at(place, calls)

    async def first(queues: Sequence[Queue], start: object) -> dict[Queue, int]:
        return dict.fromkeys(queues, 0)

    place.offsets = first  # type: ignore[method-assign]
    await reader._heartbeat()
    assert (reader._positions, calls.starts) == ({FIRST: 0, SECOND: 0}, [])


@pytest.mark.parametrize(("timeout", "patience"), [(1.0, 5.0), (9.0, 9.0)])
def test_a_subscription_is_as_patient_as_a_call_and_as_the_group(
    place: Place, timeout: float, patience: float
) -> None:
    assert reader_at(place, timeout=timeout)._subscription._patience == patience


async def test_the_node_hears_at_once_what_is_read_and_the_program_what_came(
    place: Place, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudges: list[dict[Queue, int]] = []
    monkeypatch.setattr(reader._subscription, "nudge", lambda: nudges.append(begun(reader)))
    await reader.seek(*FIRST, 1)
    assert nudges == [{FIRST: 1}]
    taken(reader, 2)
    reader.consume_handed()
    assert reader.get() is None
    assert len(nudges) == 2, "the credit of a batch that is used up"
    place.answers = [Share({SECOND})]
    await reader._heartbeat()
    assert len(nudges) == 3
    reader._arrived.clear()
    arrives(reader, SECOND)
    assert reader._arrived.is_set()


async def test_commits_go_on_whatever_becomes_of_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    errors: list[Exception] = [duolog.Unavailable("no master"), duolog.StaleMember("lost")]
    errors.append(duolog.ResultUnknown("the mastership ended"))
    reader = reader_at(place, commit_interval=0.5)
    await reader._heartbeat()
    arrives(reader, SECOND)
    taken(reader, 1)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise KeyError
        if len(waits) < 3:
            taken(reader, 1)
        place.errors = [errors.pop(0)]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(KeyError):
        await reader._commits()
    assert waits == [0.5] * 4
    assert place.asked == [{SECOND: START + 1}, {SECOND: START + 2}, {SECOND: START + 2}]
    assert caplog.text.count("commit of group g failed") == 3


async def test_a_subscription_looks_for_the_master_after_a_break(place: Place) -> None:
    calls, hints = Calls(), list[str]()
    reader = reader_at(place, calls)

    async def run(hint: Any, silent: Any) -> None:
        hints.append(hint())

    calls.endpoint = "m:1"  # type: ignore[attr-defined]
    reader._subscription.run = run  # type: ignore[method-assign]
    await reader._subscribe()
    assert hints == ["m:1"]


async def test_only_a_task_that_the_program_cancelled_ends_the_reading(reader: GroupReader) -> None:
    done, cancelled = (asyncio.get_running_loop().create_future() for _ in range(2))
    done.set_result(None)
    cancelled.cancel()
    reader._ended(done)  # type: ignore[arg-type]
    assert reader._error is None
    reader._left = True
    reader._ended(cancelled)  # type: ignore[arg-type]
    assert reader._error is None
    reader._left = False
    reader._ended(cancelled)  # type: ignore[arg-type]
    assert isinstance(reader._error, duolog.Unavailable)


async def test_a_reader_ends_its_tasks_before_it_leaves(place: Place) -> None:
    reader = reader_at(place)
    reader._keep = lambda loop: asyncio.Event().wait()  # type: ignore[method-assign, assignment, return-value]
    await reader.start()
    assert reader._background.busy
    await reader.close()
    assert (reader._background.busy, place.left) == (False, 1)


async def test_a_queue_is_not_read_before_its_start_is_committed(place: Place) -> None:
    reader = reader_at(place)

    async def unknown(queues: Sequence[Queue], start: object) -> dict[Queue, int]:
        return dict.fromkeys(queues, -1)

    place.offsets = unknown  # type: ignore[method-assign]
    place.foreign = {FIRST}
    await reader._heartbeat()
    assert (reader.assignment, reader._positions) == ([], {})


async def test_heartbeats_go_on_for_a_session_without_an_answer(
    place: Place, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = 100.0, list[float]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    failed = duolog.Unavailable("no master")
    unknown = duolog.ResultUnknown("the mastership ended")  # of the commit of a queue, say
    ours = Share({FIRST, SECOND})
    place.answers = [failed, unknown, Share({FIRST, SECOND}, pending=True), failed, ours, failed]
    place.answers += [failed] * 4 + [ours]
    silences = list[bool]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        silences.append(reader.silence is failed)
        now += 3.0

    monkeypatch.setattr(asyncio, "sleep", sleep)
    reader._timeout, reader._session = 1.0, 6.0
    reader._arrived.clear()
    with pytest.raises(IndexError):  # no answer is left
        await reader._heartbeats()
    quiet = [*[False] * 9, True, True, False]
    assert silences == quiet, "more than 6 s after the first of five in a row, and until an answer"
    assert waits == [*[2.0] * 3, *[_groupreader.PENDING_SECONDS] * 2, *[2.0] * 7]
    assert reader._arrived.is_set(), "who waits for a message learns of it"


async def test_what_ends_a_background_task_reaches_the_program(
    place: Place, reader: GroupReader
) -> None:
    async def fails() -> None:
        raise duolog.NoPermission("revoked")

    async def breaks() -> None:
        raise KeyError("a bug")

    reader._arrived.clear()
    await reader._keep(fails)
    assert reader._arrived.is_set()
    assert taken(reader, 2) == [START + 1, START + 2], "what is here comes first"
    with pytest.raises(duolog.NoPermission, match="revoked"):
        reader.get()
    reader._arrived.clear()
    await reader._keep(breaks)
    assert reader._arrived.is_set()
    with pytest.raises(duolog.DuologError, match="KeyError: 'a bug'"):
        reader.get_batch()


async def test_a_batch_is_handed_out_as_a_whole_and_consumed_as_a_whole(
    place: Place, reader: GroupReader
) -> None:
    with pytest.raises(duolog.BadRequest, match="2 messages of the current batch"):
        reader.get_batch()
    taken(reader, 2)
    reader.consume_handed()
    assert reader.get_batch() is None
    arrives(reader, FIRST)
    batch = reader.get_batch()
    assert batch is not None
    assert (batch.queue_id, batch.count) == (0, 3)
    await reader.commit()
    assert place.asked == [{SECOND: START + 3}]
    assert reader.get_batch() is None
    reader.consume_handed()
    await reader.commit()
    assert place.asked[-1] == {FIRST: START + 3}


async def test_lost_messages_are_reported_and_passed_over(
    place: Place, reader: GroupReader, caplog: pytest.LogCaptureFixture
) -> None:
    taken(reader, 2)
    batch = batch_of(FIRST, START, count=0, size=4).wire
    batch.lost, batch.next_offset = 3, START + 3
    arrived(reader, batch)
    assert "3 messages below offset 8 are lost" in caplog.text
    reader.consume_handed()
    assert reader.get() is None
    await reader.commit()
    assert place.asked == [{FIRST: START + 3, SECOND: START + 3}]
