"""Notes of batches, and the spans that are made of them."""

import asyncio

import numpy as np
import pytest
from duolog._tracecontext import TraceContext
from opentelemetry.sdk.trace import ReadableSpan

from duolog_server.node.traces import recorder as recording
from duolog_server.node.traces.recorder import Confirmed, Delivery, Recorder, Sighting, Standing
from duolog_server.node.traces.spanmaker import SpanMaker
from duolog_server.store.columns import Columns
from duolog_server.store.kernels import decode
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetMessageStatus, GetResult
from duolog_server.store.status import PutMessageStatus
from tests.spans import attributes, parent_of, trace_of

STANDING = Standing("SYNC_MASTER", 7)


def recorder() -> Recorder:
    return Recorder(lambda: STANDING, lambda: 1_000_000_000)


def text(span_id: int, flags: int = 1, before: bytes = b"") -> bytes:
    return TraceContext(5, span_id, flags).added_to(before)


def put(taken: Recorder, texts: list[bytes], count: int | None = None) -> PhyOffset:
    batch = PutBatch("T", 3, Columns.of([b"x"] * len(texts), texts), 0)
    end = PhyOffset(5000)
    result = PutResult(
        PutMessageStatus.PUT_OK,
        queue_offset=QueueOffset(10),
        physical_offset=PhyOffset(4000),
        end_offset=end,
        count=len(texts) if count is None else count,
    )
    taken.stored(batch, result, 0.25)
    return end


def spans(taken: Recorder, most: int = 32) -> list[ReadableSpan]:
    return SpanMaker({}, "1", most).spans(taken.take())


def test_what_has_no_context_or_is_not_sampled_makes_no_span() -> None:
    taken = recorder()
    put(taken, [b"", b"TAGS\x01t"])
    assert taken.take() == []
    taken = recorder()
    put(taken, [text(1, 0), text(2, 2), text(3, 3), b"my_" + text(4), text(5)[:-1] + b"x"])
    assert [parent_of(span) for span in spans(taken)] == [3]
    taken, at = recorder(), QueueOffset(0)
    table = np.zeros((decode.OUT_COLUMNS, 1), np.int64)
    result = GetResult(GetMessageStatus.FOUND, at, at, at, b"", b"TAGS\x01t", table)
    taken.delivered("T", 1, "g", result)
    assert taken.take() == []
    none = np.zeros(1, np.int64)
    of = Sighting("store", "T", 0, "", b"", none, none, 0, STANDING, 0, 0)
    assert SpanMaker({}, "1", 1).spans([Confirmed("flush", of, PutMessageStatus.PUT_OK, 1)]) == []


def test_messages_of_one_context_have_one_span() -> None:
    taken = recorder()
    put(taken, [b"TAGS\x01t", text(1, before=b"TAGS\x01t"), text(2), text(2)])
    one, two = spans(taken)
    assert (one.name, one.start_time, one.end_time) == ("store T", 750_000_000, 1_000_000_000)
    assert [(trace_of(span), parent_of(span)) for span in (one, two)] == [(5, 1), (5, 2)]
    assert attributes(one) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "store",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "3",
        "duolog.role": "SYNC_MASTER",
        "duolog.epoch": 7,
        "duolog.log.offset": 4000,
        "duolog.queue.offset": 11,
    }
    assert attributes(two)["messaging.batch.message_count"] == 2
    assert attributes(two)["duolog.queue.offset"] == 12


PARENT = b"traceparent\x0100-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


@pytest.mark.parametrize(
    "texts",
    [
        [PARENT[:20], PARENT[20:]],  # two messages that look like one context
        [b"", PARENT[:-1], PARENT[-1:]],
        [PARENT[:-1], PARENT[-1:] + b"\x02k\x01v"],
        [PARENT.replace(b"a", b"0")],
        [PARENT.replace(b"b", b"0")],
        [PARENT + b"-more"],
        [PARENT.replace(b"\x0100", b"\x01ff")],
        [PARENT + b"x"],
        [PARENT[1:]],
    ],
)
def test_what_is_no_context_makes_no_span(texts: list[bytes]) -> None:
    taken = recorder()
    put(taken, texts)
    assert spans(taken) == []


def test_a_later_version_may_say_more_and_the_first_of_two_contexts_counts() -> None:
    taken = recorder()
    put(taken, [PARENT.replace(b"\x0100", b"\x0101") + b"-more\x02" + text(7), text(8)])
    assert [parent_of(span) for span in spans(taken)] == [0xBBBBBBBBBBBBBBBB, 8]


@pytest.mark.parametrize(("size", "kept"), [(512, 3), (513, 0)])
def test_a_long_state_is_dropped_not_cut(size: int, kept: int) -> None:
    taken = recorder()
    value = b"v" * 200
    state = b"\x02tracestate\x01a=" + value + b",b=" + value + b",c=" + b"v" * (size - 408)
    put(taken, [PARENT + state, PARENT])
    parent = spans(taken)[0].parent
    assert parent is not None
    assert len(parent.trace_state) == kept


def test_a_batch_has_some_spans_with_their_own_topics_and_offsets() -> None:
    taken = recorder()
    put(taken, [text(k) for k in range(1, 101)])
    maker = SpanMaker({}, "1", 10)
    assert len(maker.spans(taken.take())) == 10
    assert maker.left_out == 90
    taken = recorder()
    put(taken, [text(1), text(2)], count=1)
    assert [attributes(span)["duolog.queue.offset"] for span in spans(taken)] == [9, 10]
    taken = recorder()
    put(taken, [text(1, before=b"REAL_TOPIC\x01orders")])
    assert attributes(spans(taken)[0])["duolog.real_topic"] == "orders"


async def test_what_a_put_waits_for_is_a_span_in_its_own() -> None:
    taken = recorder()
    end = put(taken, [text(1)])
    outcome: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    taken.awaits("flush", PhyOffset(end + 1), outcome)  # of another put
    taken.awaits("replicate", end, outcome)
    outcome.set_result(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
    await asyncio.sleep(0)
    stored, replicated = spans(taken)
    assert replicated.name == "replicate T"
    assert stored.context is not None
    assert parent_of(replicated) == stored.context.span_id
    assert replicated.status.description == "FLUSH_SLAVE_TIMEOUT"


def test_a_delivery_names_group_and_offsets() -> None:
    taken, texts = recorder(), [text(1), b"", text(2)]
    table = np.zeros((decode.OUT_COLUMNS, 3), np.int64)
    table[decode.OUT_PROPERTIES_END] = np.cumsum([len(one) for one in texts])
    table[decode.OUT_QUEUE_OFFSET] = [4, 6, 9]
    at = QueueOffset(0)
    result = GetResult(GetMessageStatus.FOUND, at, at, at, b"", b"".join(texts), table)
    taken.delivered("T", 1, "g", result)
    taken.popped("T", "p", [Delivery(1, 5, {"traceparent": TraceContext(5, 3).traceparent})])
    taken.popped("T", "p", [Delivery(1, 5, {})])
    made = spans(taken)
    assert [attributes(span)["duolog.queue.offset"] for span in made] == [4, 9, 5]
    groups = [attributes(span)["messaging.consumer.group.name"] for span in made]
    assert groups == ["g", "g", "p"]


def test_what_does_not_fit_the_queue_is_counted_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "QUEUED_MAX", 2)
    taken = recorder()
    for _ in range(3):
        put(taken, [text(1)])
    assert taken.lost == 1
    assert len(taken.take()) == 2
    monkeypatch.setattr(recording, "QUEUED_BYTES_MAX", 3000)
    put(taken, [text(1)])
    put(taken, [text(1, before=b"k\x01" + b"v" * 4000)])
    assert taken.lost == 2
    assert len(taken.take()) == 1
    monkeypatch.setattr(recording, "QUEUED_BYTES_MAX", 1000)
    taken = recorder()
    for _ in range(5):
        put(taken, [text(1)])
        assert len(taken.take()) == 1
    assert taken.lost == 0


async def test_a_fault_of_the_recorder_costs_spans_and_nothing_else() -> None:
    def no_standing() -> Standing:
        raise RuntimeError("no role")

    taken = Recorder(no_standing)
    put(taken, [text(1)])
    taken.popped("T", "p", [Delivery(1, 5, {"traceparent": "x"})])
    taken.delivered("T", 1, "g", None)  # type: ignore[arg-type]
    assert taken.lost == 3
    assert "AttributeError" in taken.fault
    assert taken.take() == []
    taken, errors = recorder(), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    outcome: asyncio.Future[PutMessageStatus] = loop.create_future()
    taken.awaits("flush", put(taken, [text(1)]), outcome)
    outcome.set_exception(OSError("disk"))
    await asyncio.sleep(0)
    assert errors == []
    assert [span.name for span in spans(taken)] == ["store T"]
    with pytest.raises(OSError, match="disk"):
        await outcome


def test_a_confirmed_put_has_no_error_and_ends_after_its_beginning() -> None:
    taken = recorder()
    put(taken, [text(1, before=b"REAL_TOPIC\x01T")])
    (stored,) = taken.take()
    assert isinstance(stored, Sighting)
    early = Confirmed("flush", stored, PutMessageStatus.PUT_OK, stored.ended_ns - 5)
    of, flushed = SpanMaker({}, "1", 32).spans([stored, early])
    assert flushed.start_time == flushed.end_time == of.end_time  # the clock went back
    assert flushed.status.description is None
    assert "error.type" not in attributes(flushed)
    assert "duolog.real_topic" not in attributes(of)
