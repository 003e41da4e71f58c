"""Posted messages: they are sent in order, and the result of each is reported."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import duolog
import pytest
from duolog import _batcher
from duolog._batcher import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    ENOUGH_BYTES,
    SIDE_BY_SIDE,
    TURN_MESSAGES,
    Batcher,
    Filling,
)
from duolog._posted import MESSAGE_BYTES, TOLD_BYTES, Posting
from duolog._producer import Producer
from duolog._receipts import Part
from duolog._sending import Batch
from duolog._terms import PLAIN
from duolog._unrouted import Place, Unrouted
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.postbench import SLOTS, Bench
from tests.until import until


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_posts_made_while_a_batch_is_in_flight_share_the_next_one(bench: Bench) -> None:
    handles = [bench.producer.post("T", b"%d" % k, queue_id=1, group="g") for k in range(1000)]
    assert not any(handle.done for handle in handles)
    with pytest.raises(BlockingIOError):
        handles[0].receipt()
    receipts = [await handle for handle in handles]
    assert [one.queue_offset for one in receipts] == list(range(1000))
    assert bench.nodes.of(("g", 1)) == [b"%d" % k for k in range(1000)]
    assert len(bench.nodes.batches) < 5
    assert handles[7].receipt() == await handles[7] == receipts[7]
    assert len({*receipts, receipts[7]}) == 1000
    assert receipts[7] not in (receipts[8], repr(receipts[7]))
    assert handles[7].error() is None
    await bench.producer.close()


async def test_messages_of_a_key_keep_their_order_also_before_their_queue_is_known(
    bench: Bench,
) -> None:
    bench.queues.let.clear()
    producer = bench.producer
    early = [producer.post("T", b"early %d" % k, key="a") for k in range(10)]
    waits = asyncio.ensure_future(early[3]._wait())
    await asyncio.sleep(0)
    early += [producer.post("T", b"more %d" % k, queue_id=2) for k in range(3)]
    bench.queues.let.set()
    late = [producer.post("T", b"late %d" % k, key="a") for k in range(10)]
    queue_id = (await late[-1]).queue_id
    later = await producer.post("T", b"at hand", key="a")
    assert later.queue_id == queue_id == (await waits).queue_id == early[3].receipt().queue_id
    assert await producer.slot_of("T", "a", 1) == ("g", queue_id)
    wanted = [b"early %d" % k for k in range(10)] + [b"late %d" % k for k in range(10)]
    assert [b for b in bench.nodes.of(("g", queue_id)) if b[:4] != b"more"] == [*wanted, b"at hand"]
    assert [b for b in bench.nodes.of(("g", 2)) if b[:4] == b"more"] == [
        b"more 0",
        b"more 1",
        b"more 2",
    ]
    await producer.close()


async def test_a_send_comes_after_what_was_posted_before_it(bench: Bench) -> None:
    posted = bench.producer.post("T", b"1", key="a")
    sent = await bench.producer.send("T", b"2", key="a")
    assert ((await posted).queue_offset, sent.queue_offset) == (0, 1)
    bench.queues.told.clear()
    bench.producer.post("T", b"3", queue_id=sent.queue_id)
    last = await bench.producer.send("T", b"4", queue_id=sent.queue_id)
    assert last.queue_offset == 3


async def test_a_send_that_may_go_anywhere_goes_with_none_to_a_queue_or_at_a_time() -> None:
    bench, sends = Bench(linger=60), []
    goals: list[dict[str, Any]] = [{"queue_id": 1}, {}, {"delay": 9}, {}, {"queue_id": 1}, {}]
    for k, where in enumerate(goals):
        sends.append(asyncio.ensure_future(bench.producer.send("T", b"%d" % k, **where)))
        for _ in range(3):
            await asyncio.sleep(0)
    await bench.producer.flush()
    await asyncio.gather(*sends)
    assert sorted(bodies for _, bodies in bench.nodes.batches) == [
        [b"0", b"4"],
        [b"1", b"3", b"5"],
        [b"2"],
    ]
    await bench.producer.close()


async def test_a_batch_with_an_expected_offset_that_takes_two_requests_is_not_begun(
    bench: Bench,
) -> None:
    """The first request would be stored though another writer gets between the two."""
    many = [b""] * (BATCH_MESSAGES + 1)
    with pytest.raises(duolog.BadRequest, match="take several requests"):
        await bench.producer.send_batch("T", many, queue_id=1, expect_offset=0)
    assert bench.nodes.batches == []
    await bench.producer.send_batch("T", many[1:], queue_id=1, expect_offset=0)
    assert len(bench.nodes.of(("g", 1))) == BATCH_MESSAGES
    await bench.producer.close()


async def test_posts_by_number_know_their_queue_after_the_first(bench: Bench) -> None:
    await bench.producer.post("T", b"1", queue_id=1)
    assert not bench.producer.post("T", b"2", queue_id=1).at[0]._moved
    await bench.producer.flush()
    assert bench.queues.asked == 1
    with pytest.raises(duolog.UnknownTopic):
        await bench.producer.post("T", b"3", queue_id=1, group="elsewhere")


async def test_a_queue_has_one_batch_on_its_way_and_any_queue_several(bench: Bench) -> None:
    body = bytes(BATCH_BYTES // 8)
    for _ in range(64):
        bench.producer.post("T", body)
        bench.producer.post("T", body, queue_id=0, group="g")
    await bench.producer.flush()
    assert bench.nodes.most[("g", 0)] == 1
    assert 1 < bench.nodes.most[None] <= 4
    assert max(len(b"".join(bodies)) for _, bodies in bench.nodes.batches) <= BATCH_BYTES


async def test_an_unread_error_is_raised_by_flush_once(bench: Bench) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    handles = [bench.producer.post("T", b"x") for _ in range(3)]
    with pytest.raises(duolog.Unavailable) as failure:
        await bench.producer.flush()
    assert failure.value.__notes__ == ["3 messages that were posted failed"]
    await bench.producer.flush()
    assert isinstance(handles[0].error(), duolog.Unavailable)
    with pytest.raises(duolog.Unavailable):
        await handles[1]
    await bench.producer.close()


async def test_an_error_that_was_read_or_reported_is_not_raised_again(bench: Bench) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    told: list[duolog.Posted] = []
    one = bench.producer.post("T", b"x")
    two = bench.producer.post("T", b"x", on_done=told.append)
    with pytest.raises(duolog.Unavailable):
        await one
    await bench.producer.flush()
    assert told == [two]
    assert isinstance(two.error(), duolog.Unavailable)


async def test_close_raises_unread_errors_but_does_not_mask_another_error(bench: Bench) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    with pytest.raises(duolog.Unavailable):
        async with bench.producer as producer:
            producer.post("T", b"x")
    other = Bench()
    other.nodes.error = duolog.Unavailable("gone")
    with pytest.raises(KeyError):
        async with other.producer as producer:
            producer.post("T", b"x")
            raise KeyError
    with pytest.raises(duolog.BadRequest, match="closed"):
        producer.post("T", b"x")


async def test_a_batch_is_given_no_more_room_than_a_batch_has(bench: Bench) -> None:
    posting, batcher = Posting(), bench.producer._batcher
    posting.granted, posting.room = BATCH_BYTES - 100, 0
    batcher._grant(posting, 50)
    assert (posting.granted, posting.room) == (BATCH_BYTES, 100)


async def test_a_full_buffer_refuses_and_takes_nothing() -> None:
    bench = Bench(bytes=3 * (MESSAGE_BYTES + 10))
    bench.nodes.let.clear()
    for _ in range(3):
        bench.producer.post("T", bytes(10))
    with pytest.raises(duolog.BufferFull, match="buffer_bytes is 414"):
        bench.producer.post("T", bytes(10))
    bench.nodes.let.set()
    await bench.producer.flush()
    for _ in range(3):
        bench.producer.post("T", bytes(10))
    await bench.producer.flush()
    assert len(bench.nodes.of(None)) == 6
    assert bench.producer._batcher.used == 0


async def test_a_message_past_its_deadline_fails_alone(bench: Bench) -> None:
    bench.nodes.let.clear()
    post: Callable[..., duolog.Posted] = bench.producer.post
    under_way = post("T", b"1", queue_id=0, group="g", timeout=3.0)
    await bench.sends()
    waits = post("T", b"2", queue_id=0, group="g", timeout=0.02)
    patient = post("T", b"3", queue_id=0, group="g")
    with pytest.raises(duolog.Timeout):
        await waits
    with pytest.raises(duolog.ResultUnknown):
        await under_way
    bench.nodes.let.set()
    assert (await patient).queue_offset == 0
    assert bench.nodes.of(("g", 0)) == [b"3"]
    await bench.producer.flush()


async def test_what_a_node_refuses_and_topics_that_do_not_exist_fail_alone(bench: Bench) -> None:
    bodies = [b"bad" if k in (3, 40, 41) else b"%d" % k for k in range(50)]
    handles = [bench.producer.post("T", body, queue_id=0, group="g") for body in bodies]
    with pytest.raises(duolog.MessageTooLarge) as failure:
        await bench.producer.flush()
    assert failure.value.__notes__ == ["3 messages that were posted failed"]
    good = [body for body in bodies if body != b"bad"]
    assert bench.nodes.of(("g", 0)) == good
    found = [handle.receipt().queue_offset for handle in handles if handle.error() is None]
    assert found == list(range(47))
    told: list[duolog.Posted] = []
    lost = bench.producer.post("none", b"x", key="a")
    other = bench.producer.post("none", b"x", key="b", on_done=told.append)
    kept = bench.producer.post("T", b"x", key="a")
    with pytest.raises(duolog.UnknownTopic):
        await lost
    await kept
    await bench.producer.flush()
    assert told == [other]
    assert bench.producer._batcher.used == 0


async def test_a_cancelled_wait_takes_nothing_back_and_leaves_the_error_to_flush(
    bench: Bench,
) -> None:
    bench.nodes.let.clear()
    handle = bench.producer.post("T", b"x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handle._wait(), 0.01)
    bench.nodes.error = duolog.Unavailable("gone")
    bench.nodes.let.set()
    with pytest.raises(duolog.Unavailable):
        await bench.producer.flush()


async def test_a_callback_may_post_or_fail(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fails(posted: duolog.Posted) -> None:
        raise KeyError("of the user")

    told: list[duolog.Posted] = []
    bench.producer.post("T", b"1", on_done=fails)
    last = bench.producer.post("T", b"2", on_done=told.append)
    with caplog.at_level(logging.CRITICAL):
        await last
        await bench.producer.flush()
    assert told == [last]
    again: list[duolog.Posted] = []
    bench.producer.post(
        "T", b"1", key="k", on_done=lambda _: again.append(bench.producer.post("T", b"2", key="k"))
    )
    await bench.producer.flush()
    assert (await again[0]).queue_offset == 1


async def test_a_closed_producer_reports_what_it_abandoned_and_refuses_everything() -> None:
    bench = Bench(timeout=0.05)
    bench.nodes.let.clear()
    bench.queues.let.clear()
    under_way = bench.producer.post("T", b"1", timeout=60)
    await bench.sends()
    unrouted = bench.producer.post("T", b"2", key="k", timeout=60)
    with pytest.raises((duolog.BadRequest, duolog.ResultUnknown)) as failure:
        await bench.producer.close()
    assert failure.value.__notes__ == ["2 messages that were posted failed"]
    assert isinstance(under_way.error(), duolog.ResultUnknown)
    assert isinstance(unrouted.error(), duolog.BadRequest)
    bench = Bench(timeout=0.05, bytes=100)
    bench.nodes.let.clear()
    bench.producer.post("T", bytes(80), queue_id=0, group="g", timeout=60)
    await bench.sends()
    closing = asyncio.ensure_future(bench.producer.close())
    await asyncio.sleep(0.01)
    with pytest.raises(duolog.BadRequest, match="closed"):
        bench.producer.post("T", b"x")
    with pytest.raises(duolog.ResultUnknown):
        await closing
    with pytest.raises(duolog.BadRequest, match="closed"):
        bench.producer.post("T", b"x")
    assert bench.producer._batcher.used == 0
    assert not bench.producer._batcher._busy
    timer = bench.producer._batcher._timer
    assert timer is None or timer.cancelled()


async def test_a_body_that_changes_later_is_sent_as_it_was(bench: Bench) -> None:
    body = bytearray(b"before")
    handle = bench.producer.post("T", body)  # type: ignore[arg-type]
    body[:] = b"after!"
    await handle
    assert bench.nodes.of(None) == [b"before"]


async def test_all_keys_of_a_topic_wait_for_one_answer_and_get_its_error(bench: Bench) -> None:
    bench.queues.error = duolog.Unavailable("nobody answers")
    handles = [bench.producer.post("T", b"x", key=str(k)) for k in range(50)]
    with pytest.raises(duolog.Unavailable):
        await bench.producer.flush()
    assert bench.queues.asked == 1
    assert all(isinstance(handle.error(), duolog.Unavailable) for handle in handles)
    bench.queues.error = UnicodeError("of a topic's name")
    with pytest.raises(UnicodeError):
        await bench.producer.post("T", b"x", key="k")
    bench.queues.error = None
    assert (await bench.producer.post("T", b"x", key="k")).queue_offset == 0
    assert bench.producer._batcher.used == 0


async def test_the_time_of_a_message_is_its_own_also_while_its_queue_is_unknown() -> None:
    bench = Bench(timeout=0.02)
    bench.queues.let.clear()
    patient = bench.producer.post("T", b"1", key="k", timeout=20)
    hasty = bench.producer.post("T", b"2", key="k")
    with pytest.raises(duolog.Timeout):
        await hasty
    bench.queues.let.set()
    assert (await patient).queue_offset == 0


async def test_a_flush_does_not_wait_for_later_posts(bench: Bench) -> None:
    ended = asyncio.Event()

    async def send(topic: str) -> None:
        while not ended.is_set():
            await bench.producer.send(topic, b"x")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for topic in "ABC":
            tasks.create_task(send(topic))
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            for _ in range(20):
                await bench.producer.flush()
        ended.set()


async def test_no_error_is_forgotten_however_many_batches_fail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_batcher, "FAILED_MAX", 2)
    bench.nodes.error = duolog.Unavailable("gone")
    for _ in range(7):
        bench.producer.post("T", b"x", queue_id=0, group="g")
        with pytest.raises(duolog.Unavailable):
            await bench.producer.post("T", b"x", queue_id=0, group="g")
    for _ in range(50):
        bench.producer.post("T", b"x", on_done=lambda _: None)
    with pytest.raises(duolog.Unavailable) as failure:
        await bench.producer.flush()
    assert failure.value.__notes__ == ["7 messages that were posted failed"]
    assert not bench.producer._batcher._failed
    await bench.producer.flush()


def told(done: asyncio.Event) -> Callable[[duolog.Posted], None]:
    return lambda _: done.set()


async def test_failed_batches_count_by_what_is_kept_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    batcher = bench.producer._batcher
    for weighs in range(3):
        handle = bench.producer.post("T", b"x")
        await until(lambda handle=handle: handle.done)  # type: ignore[misc]
        assert len(batcher._failed) == 1, weighs
        monkeypatch.setattr(_batcher, "FAILED_WEIGHT_MAX", batcher._failed_weight)
        with pytest.raises(duolog.Unavailable):
            await bench.producer.flush()


async def test_reported_errors_and_counts_of_failed_ones_are_not_kept(bench: Bench) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    for _ in range(50):
        done = asyncio.Event()
        bench.producer.post("T", b"x", on_done=told(done))
        await done.wait()
    assert not bench.producer._batcher._failed
    bench.nodes.error = duolog.Unavailable("gone")
    handles = [bench.producer.post("T", b"x") for _ in range(3)]
    with pytest.raises(duolog.Unavailable):
        await bench.producer.flush()
    assert not hasattr(handles[0].error(), "__notes__")


async def test_a_cancellation_raised_by_a_callback_ends_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(posted: duolog.Posted) -> None:
        raise asyncio.CancelledError

    told: list[duolog.Posted] = []
    bench.producer.post("T", b"1", on_done=fails)
    second = bench.producer.post("T", b"2", on_done=told.append)
    async with asyncio.timeout(60):
        await bench.producer.flush()
        await bench.producer.post("T", b"3")
    assert told == [second]
    assert bench.producer._batcher.used == 0


async def test_messages_of_a_key_with_the_same_delay_keep_their_order(bench: Bench) -> None:
    when = 4_000_000_000_000
    for k in range(30):
        bench.producer.post("T", b"%d" % k, key="a", deliver_at=when)
        if k % 7 == 3:
            await asyncio.sleep(0)
    await bench.producer.flush()
    (found,) = (found for slot in SLOTS if (found := bench.nodes.of(slot)))
    assert found == [b"%d" % k for k in range(30)]
    assert not bench.producer._batcher._fillings


async def test_an_error_is_reported_if_its_waiter_was_cancelled_at_the_last_moment(
    bench: Bench,
) -> None:
    bench.nodes.error = duolog.Unavailable("gone")
    handle = bench.producer.post("T", b"x")
    waiter = asyncio.ensure_future(handle._wait())
    while not handle.done:
        await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(duolog.Unavailable):
        await bench.producer.flush()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_cancelled_send_leaves_no_error_also_where_its_queue_was_unknown(
    bench: Bench,
) -> None:
    bench.queues.let.clear()
    bench.nodes.error = duolog.Unavailable("gone")
    first = bench.producer.post("T", b"1", key="k", on_done=lambda _: None)
    sending = asyncio.ensure_future(bench.producer.send("T", b"2", key="k"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.sleep(0)
    bench.queues.let.set()
    await bench.producer.flush()
    assert first.done
    assert sending.cancelled()


async def test_a_post_by_another_thread_is_refused_and_takes_nothing(bench: Bench) -> None:
    await bench.producer.post("T", b"1")
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(bench.producer.post, "T", b"2")
    assert (await bench.producer.post("T", b"3")).queue_offset == 1


def test_a_post_where_the_loop_does_not_run_is_refused_and_takes_nothing() -> None:
    with asyncio.Runner() as runner:

        async def begin() -> Bench:
            bench = Bench()
            await bench.producer.post("T", b"1")
            return bench

        bench = runner.run(begin())
        with pytest.raises(RuntimeError):
            bench.producer.post("T", b"2")
        assert bench.producer._batcher.used == 0
        runner.run(bench.producer.close())
    assert bench.nodes.of(None) == [b"1"]


async def test_sends_that_go_together_each_learn_their_own_outcome(bench: Bench) -> None:
    send, nodes = bench.producer.send, bench.nodes
    nodes.let.clear()
    first = asyncio.ensure_future(send("T", b"0"))
    await asyncio.sleep(0)
    bodies = [b"1", b"2", b"bad", b"4", b"5"]
    sends = [asyncio.ensure_future(send("T", body)) for body in bodies]
    late = asyncio.ensure_future(send("T", b"late", timeout=0.01))
    with pytest.raises(duolog.Timeout):
        await late
    sends[0].cancel()
    nodes.let.set()
    found = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert isinstance(found[2], duolog.MessageTooLarge)
    receipts = [await first, *(one for one in found if isinstance(one, duolog.Receipt))]
    stored = nodes.of(None)
    assert [stored[one.queue_offset] for one in receipts] == [b"0", b"2", b"4", b"5"]
    await bench.producer.flush()  # whoever sent them knows of the errors


async def test_sends_of_a_batch_that_two_requests_stored_have_receipts_of_their_own(
    bench: Bench,
) -> None:
    stored = bench.nodes.send

    async def in_two(batch: Batch, seconds: float) -> list[Part]:
        (part,) = await stored(batch, seconds)
        return [
            replace(part, count=1),
            replace(part, first=part.first + 1, count=part.count - 1, queue_offset=70),
        ]

    bench.nodes.let.clear()
    alone = asyncio.ensure_future(bench.producer.send("T", b"alone"))
    await asyncio.sleep(0)
    bench.producer._sender.send = in_two  # type: ignore[method-assign]
    sends = [asyncio.ensure_future(bench.producer.send("T", b"%d" % k)) for k in range(3)]
    bench.nodes.let.set()
    receipts = await asyncio.gather(alone, *sends)
    assert [one.queue_offset for one in receipts] == [0, 1, 70, 71]


MORE = [
    {"key": "k"},
    {"queue_id": 1},
    {"tags": "t"},
    {"keys": "k"},
    {"properties": {"p": "v"}},
    {"delay": 3600.0},
    {"deliver_at": 1 << 42},
    {"delay_level": 3},
]


@pytest.mark.parametrize("how", MORE)
@pytest.mark.parametrize("sends", [True, False])
async def test_what_a_message_has_beside_its_body_goes_with_it_behind_one_that_has_nothing(
    bench: Bench, how: dict[str, Any], sends: bool
) -> None:
    """The one before it left an open batch, to which bodies alone are added."""
    bench.nodes.let.clear()
    producer = bench.producer
    calls = [asyncio.ensure_future(producer.send("T", b"alone"))]
    await bench.sends()
    if sends:
        calls += [asyncio.ensure_future(producer.send("T", b"plain"))]
        calls += [asyncio.ensure_future(producer.send("T", b"more", **how))]
        await asyncio.sleep(0)
    else:
        producer.post("T", b"plain")
        producer.post("T", b"more", **how)
    bench.nodes.let.set()
    await asyncio.gather(*calls)
    await producer.flush()
    (batch,) = [one for one in bench.nodes.sent if b"more" in one.bodies[0]]
    plain = b"plain" in batch.bodies[0]
    apart = how.keys() & {"key", "queue_id", "delay", "deliver_at", "delay_level"}
    assert plain == (not apart)
    assert (batch.slot is None) == (not how.keys() & {"key", "queue_id"})
    assert (batch.terms == PLAIN) == (not how.keys() & {"delay", "deliver_at", "delay_level"})
    assert bool(batch.texts[0]) == bool(how.keys() & {"key", "tags", "keys", "properties"})


async def test_a_callback_is_called_of_a_message_behind_one_that_has_none(bench: Bench) -> None:
    done: list[duolog.Posted] = []
    bench.producer.post("T", b"plain")
    handle = bench.producer.post("T", b"more", on_done=done.append)
    await bench.producer.flush()
    assert done == [handle]


def test_a_sequence_that_has_no_unique_key_is_refused(bench: Bench) -> None:
    assert bench.producer.unique_key((1 << 48) - 1)
    for never in (-1, 1 << 48):
        with pytest.raises(duolog.BadRequest, match="sequence"):
            bench.producer.unique_key(never)


async def test_sends_that_fail_together_leave_no_unread_errors(bench: Bench) -> None:
    bench.nodes.let.clear()
    sends = [asyncio.ensure_future(bench.producer.send("T", b"%d" % k)) for k in range(5)]
    await asyncio.sleep(0)
    sends[1].cancel()
    bench.nodes.error = duolog.Unavailable("no node")
    bench.nodes.let.set()
    found = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in found] == [
        *[duolog.Unavailable, asyncio.CancelledError],
        *[duolog.Unavailable] * 3,
    ]
    await bench.producer.flush()


KEYS = (None, "a", "b", "c")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from((b"", b"", b"", b"bad")), st.booleans()),
        max_size=60,
    ),
    st.booleans(),
)
def test_every_message_has_one_outcome_and_its_place_in_its_queue(
    posts: list[tuple[str | None, bytes, bool]], known: bool
) -> None:
    async def run() -> None:
        bench = Bench()
        if known:
            await bench.queues.slots("T", 1)
        done: list[duolog.Posted] = []
        handles = []
        for number, (key, bad, pause) in enumerate(posts):
            body = bad or b"%d" % number
            handles.append(bench.producer.post("T", body, key=key, on_done=done.append))
            if pause:
                await asyncio.sleep(0)
        await bench.producer.flush()
        assert sorted(map(id, done)) == sorted(map(id, handles))
        for handle, (_, bad, _) in zip(handles, posts, strict=True):
            assert (handle.error() is None) == (not bad)
        for slot in SLOTS:
            found = bench.nodes.of(slot)
            assert found == sorted(found, key=int)
        stored = [body for _, bodies in bench.nodes.batches for body in bodies]
        assert len(stored) == sum(not bad for _, bad, _ in posts)
        assert bench.producer._batcher.used == 0
        assert not bench.producer._batcher._busy

    asyncio.run(run())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no task begins at once")
async def test_messages_are_sent_where_the_programs_tasks_begin_at_once(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # not in 3.11
    producer = bench.producer
    ways: tuple[dict[str, Any], ...] = ({}, {"queue_id": 1}, {"key": "k"})
    for how in ways:
        posted = [producer.post("T", b"posted", **how) for _ in range(3)]
        sent = [asyncio.create_task(producer.send("T", b"sent", **how)) for _ in range(3)]
        async with asyncio.timeout(10):
            await asyncio.gather(*posted, *sent)
    assert sum(len(bodies) for _, bodies in bench.nodes.batches) == 18
    await producer.close()


def waiting(size: int, sends: int = 0) -> Any:
    """A batch that waits, with so many messages that tasks wait for."""
    granted = size + sends * TOLD_BYTES + 5
    return SimpleNamespace(granted=granted, room=5, sends=dict.fromkeys(range(sends)))


@pytest.mark.parametrize(
    ("others", "batches", "enough"),
    [
        (0, [], True),
        (1, [], False),
        (1, [waiting(9)], False),
        (1, [waiting(9), waiting(9)], True),
        (SIDE_BY_SIDE, [waiting(9), waiting(9)], False),
        (1, [waiting(ENOUGH_BYTES[1])], True),
        (1, [waiting(ENOUGH_BYTES[1] - 1, sends=1)], False),
        (1, [waiting(9, sends=TURN_MESSAGES)], True),
        (1, [waiting(9, sends=TURN_MESSAGES - 1)], False),
    ],
)
def test_a_batch_goes_out_beside_others_where_it_is_worth_a_request(
    others: int, batches: list[Any], enough: bool
) -> None:
    filling = Filling("T", None, PLAIN)
    filling.waiting.extend(batches)
    assert filling.enough(others) is enough


async def test_deadlines_that_follow_soon_are_looked_at_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)
    armed: list[float] = []
    posting = SimpleNamespace(due=100.001, ended=False)
    batcher: Any = SimpleNamespace(_postings=lambda: [(None, posting)], _arm=armed.append)
    Batcher._expire(batcher)
    assert armed == [100.001]


@pytest.mark.parametrize(("key", "queue_id"), [("k", None), (None, 3)])
async def test_a_queue_is_looked_for_as_long_as_its_message_has(
    key: str | None, queue_id: int | None
) -> None:
    lefts: list[float] = []

    async def look(*how: Any) -> None:
        lefts.append(how[-1])
        raise duolog.Unavailable("no node")

    producer: Any = SimpleNamespace(
        _unrouted=SimpleNamespace(holds=lambda topic: False),
        _clock=lambda: 100.0,
        _topics=SimpleNamespace(slot=look),
        slot_of=look,
    )
    place: Any = SimpleNamespace(topic="T", key=key, queue_id=queue_id, group=None)
    with pytest.raises(duolog.Unavailable):
        await Producer._send(producer, place, PLAIN, b"", b"", 107.0)
    assert lefts == [7.0]


async def test_where_no_queue_is_to_be_found_all_are() -> None:
    unrouted: Any = SimpleNamespace(_batcher=SimpleNamespace(lock=threading.Lock()), _topics=None)
    waiting_for_none: Any = SimpleNamespace(
        filling=SimpleNamespace(topic="T"), unknown=lambda: ([], 0.0)
    )
    assert await Unrouted._found_all(unrouted, waiting_for_none) is True


async def test_queues_are_looked_for_until_the_last_message_has_no_time_left() -> None:
    lefts: list[float] = []

    async def look(topic: str, seconds: float, create: bool) -> list[Any]:
        lefts.append(seconds)
        return []

    now = asyncio.get_running_loop().time()
    unrouted: Any = SimpleNamespace(
        _batcher=SimpleNamespace(lock=threading.Lock()), _topics=SimpleNamespace(slots=look)
    )
    waiting: Any = SimpleNamespace(
        filling=SimpleNamespace(topic="T"),
        found={},
        unknown=lambda: ([Place("T", None, 7, None)], now + 7.0),
    )
    await Unrouted._found_all(unrouted, waiting)
    assert 0.001 <= lefts[0] <= 7.0
