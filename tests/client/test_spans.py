"""The SDK's spans, made against a node."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import duolog
import duolog.sync
import pytest
from duolog import Message, _spans
from duolog._posted import SPAN_BYTES
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode

from duolog_server.serve.server import Node
from tests.client.postbench import Bench
from tests.client.test_prefetch import batch_of
from tests.client.test_sdk import CLIENT
from tests.nodefixtures import bare_client as bare_client
from tests.nodefixtures import client as client
from tests.nodefixtures import node as node
from tests.nodefixtures import received
from tests.nodefixtures import start_node as start_node
from tests.spans import Taken, attributes, id_of, links_of, parent_of, trace_of


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
async def traced(node: Node, client: duolog.Client, taken: Taken) -> AsyncIterator[duolog.Client]:
    """A client that makes spans. There is a topic T."""
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10, tracer_provider=taken.provider) as made:
        yield made


async def test_without_a_tracer_provider_nothing_is_loaded_and_no_spans_are_made() -> None:
    code = (
        "import sys, duolog, duolog.sync; duolog.Client('127.0.0.1:1'); "
        "sys.exit(str([m for m in sys.modules if m.startswith('opentelemetry')] or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CLIENT, capture_output=True, text=True)
    assert done.stderr.strip() in ("", "0"), done.stderr
    async with duolog.Client("127.0.0.1:1") as client:
        assert client.producer()._spans is None


async def test_a_message_is_processed_in_the_trace_that_it_was_sent_in(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        with taken.tracer.start_as_current_span("order") as order:
            receipt = await producer.send("T", b"x", key="k")
    async with traced.consumer("g", "T") as consumer:
        message = await received(consumer)
        with taken.tracer.start_as_current_span("inside"):
            pass
    sent, came, processed = (taken.one(f"{word} T") for word in ("send", "receive", "process"))
    assert message.properties["traceparent"].split("-")[2] == f"{id_of(sent):016x}"
    assert parent_of(sent) == order.get_span_context().span_id
    assert {trace_of(span) for span in taken.all} == {trace_of(sent)}
    assert parent_of(processed) == parent_of(came) == id_of(sent)
    assert links_of(processed) == links_of(came) == [id_of(sent)]
    assert parent_of(taken.one("inside")) == id_of(processed)
    assert not trace.get_current_span().get_span_context().is_valid
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(sent) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.message.id": receipt.unique_key,
        "messaging.destination.partition.id": str(receipt.queue_id),
        "duolog.queue.offset": 0,
    }
    assert attributes(processed)["messaging.consumer.group.name"] == "g"
    assert attributes(processed)["messaging.message.id"] == receipt.unique_key


async def test_a_span_of_the_program_is_the_parent_and_the_sender_is_linked(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        await producer.send("T", b"x")
    async with traced.consumer("g", "T") as consumer:
        with taken.tracer.start_as_current_span("poll") as poll:
            assert await consumer.get(10) is not None
            assert await consumer.get(0) is None
            assert trace.get_current_span() is poll
    processed = taken.one("process T")
    assert parent_of(processed) == poll.get_span_context().span_id
    assert links_of(processed) == [id_of(taken.one("send T"))]


async def test_each_message_of_a_loop_has_its_own_span(traced: duolog.Client, taken: Taken) -> None:
    async with traced.producer() as producer:
        for k in range(5):
            producer.post("T", b"%d" % k, key="one")
        await producer.flush()
    seen = []
    with pytest.raises(ValueError, match="4"):
        async with traced.consumer("g", "T") as consumer:
            async for message in consumer:
                seen.append(trace.get_current_span().get_span_context().span_id)
                if message.body == b"4":
                    raise ValueError("4")
    sent, processed = taken.named("send T"), taken.named("process T")
    assert [id_of(span) for span in processed] == seen
    assert [links_of(span) for span in processed] == [[id_of(span)] for span in sent]
    assert [span.status.status_code for span in processed[-2:]] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]
    assert len({trace_of(span) for span in sent}) == 5


@pytest.mark.parametrize("threads", [False, True])
async def test_messages_that_a_worker_handles_at_a_time_have_spans_of_their_own(
    traced: duolog.Client, taken: Taken, threads: bool
) -> None:
    async with traced.producer() as producer:
        for k in range(4):
            await producer.send("T", b"%d" % k)
    seen = []
    async with traced.consumer("g", "T") as consumer:

        def call(message: duolog.Message) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if len(seen) == 4:
                consumer.stop()
            if message.body == b"2":
                raise ValueError("2")

        async def handle(message: duolog.Message) -> None:
            await asyncio.sleep(0)
            call(message)

        await consumer.run(call if threads else handle, concurrency=2)
    sent, processed = taken.named("send T"), taken.named("process T")
    assert sorted(map(id_of, processed)) == sorted(seen)
    assert sorted(map(parent_of, processed)) == sorted(map(id_of, sent))
    (failed,) = (span for span in processed if span.status.status_code == StatusCode.ERROR)
    assert parent_of(failed) == id_of(sent[2])
    assert trace_of(taken.one("send_back T")) == trace_of(failed)


async def test_a_batch_is_sent_in_one_span_that_all_its_messages_carry(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        await producer.send_batch("T", [b"a", b"b"], keys=[["k"], []], queue_id=0)
        await producer.send_batch("T", [b"c", b"d"], tags="t", queue_id=0)
    async with traced.consumer("g", "T") as consumer:
        parents: list[str] = []
        while len(parents) < 4:
            batch = await consumer.get_batch(10)
            assert batch is not None
            parents += [message.properties["traceparent"] for message in batch]
    first, second = taken.named("send T")
    assert attributes(first)["messaging.batch.message_count"] == 2
    spans = [int(text.split("-")[2], 16) for text in parents]
    assert spans == [id_of(first), id_of(first), id_of(second), id_of(second)]
    linked = [link for span in taken.named("process T") for link in links_of(span)]
    assert linked == spans


async def test_a_context_that_the_program_gives_a_message_is_kept(
    traced: duolog.Client, taken: Taken
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with traced.producer() as producer:
        await producer.send("T", b"x", properties={"traceparent": parent})
        await producer.send("T", b"y", properties={"traceparent": "mine"})
    found: dict[bytes, tuple[int, dict[str, str]]] = {}
    async with traced.consumer("g", "T") as consumer:
        while len(found) < 2:
            message = await received(consumer)
            found[message.body] = message.property_text.count(b"traceparent"), message.properties
    assert [(count, of["traceparent"]) for count, of in (found[b"x"], found[b"y"])] == [
        (1, parent),
        (1, "mine"),
    ]
    assert [links_of(span) for span in taken.named("send T")] == [[0xB7AD6B7169203331], []]
    assert sorted(map(parent_of, taken.named("process T"))) == [0, 0xB7AD6B7169203331]


@pytest.mark.parametrize("size", [31_600, 31_700])
async def test_properties_of_any_size_are_stored_as_without_spans(
    traced: duolog.Client, taken: Taken, size: int
) -> None:
    properties = {"a": "v" * size}
    async with traced.producer() as producer:
        await producer.send("T", b"x", properties=properties)
    async with traced.consumer("g", "T") as consumer:
        message = await received(consumer)
        assert message.properties["a"] == properties["a"]
        assert ("traceparent" in message.properties) == (size < 31_650)
        if "traceparent" in message.properties:  # there is room for what copies have in addition
            await consumer.send_back(message, delay_level=1)
            assert await consumer.get(10) is not None


async def test_the_buffer_of_a_producer_counts_recorded_spans(taken: Taken) -> None:
    bench = Bench()
    from duolog._spans import Spans

    producer = bench.producer
    batcher = producer._batcher
    producer._spans = Spans(taken.provider, "1")
    bench.queues.let.clear()
    posted = [producer.post("T", b"x", key=str(k)) for k in range(400)]
    await asyncio.sleep(0)
    assert batcher.used > 399 * SPAN_BYTES  # while they wait for their queues,
    bench.queues.let.set()
    with batcher.lock:
        batcher.buffer_bytes = batcher.used
    with pytest.raises(duolog.BufferFull):
        for _ in range(10_000):
            posted.append(producer.post("T", b"x"))
    await asyncio.gather(*posted)
    await producer.close()
    assert batcher.used == 0  # and nothing afterwards
    assert len(taken.all) == len(posted)


class Faulty(SpanProcessor):
    """A processor of the program that fails where it is told to."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self._where == "start":
            raise RuntimeError("cannot start")

    def on_end(self, span: object) -> None:
        if self._where == "end":
            raise RuntimeError("cannot end")


@pytest.mark.parametrize("where", ["start", "end"])
async def test_a_tracer_provider_that_fails_costs_spans_and_no_message(
    traced: duolog.Client, taken: Taken, where: str
) -> None:
    taken.provider.add_span_processor(Faulty(where))
    async with traced.producer() as producer, asyncio.timeout(60):
        await producer.send("T", b"0")
        await producer.send("T", b"1", key="k")
        await producer.post("T", b"2")
        await producer.post("T", b"3", key="k")
        await producer.send_batch("T", [b"4"])
        missing = producer.post("T", b"x", queue_id=77)
        with pytest.raises(duolog.BadRequest):
            await missing
    async with traced.transactions("pg") as transactions, transactions.begin("T", b"5"):
        pass
    found: set[bytes] = set()
    async with traced.consumer("g", "T") as consumer:
        async for message in consumer:
            found.add(message.body)
            if len(found) == 6:
                break
        await consumer.send_back(message, delay_level=1)
    assert found == {b"%d" % k for k in range(6)}


async def test_where_no_span_can_begin_the_programs_own_one_stays_current(
    traced: duolog.Client, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    own = NonRecordingSpan(SpanContext(1, 2, False))
    taken.provider.add_span_processor(Faulty("start"))
    _spans._told.clear()
    async with traced.producer() as producer:
        await producer.send_batch("T", [b"x", b"y"])
    async with traced.consumer("g", "T") as consumer:
        with trace.use_span(own):
            for _ in range(2):
                assert await consumer.get(10) is not None
                assert trace.get_current_span() is own
    warned = [one for one in caplog.records if one.levelname == "WARNING" and one.name == "duolog"]
    assert [one.getMessage() for one in warned] == ["the tracer provider failed; spans are missing"]


async def test_a_span_that_another_task_ended_is_nobodys_parent(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        for k in range(6):
            await producer.send("T", b"%d" % k)
    async with traced.consumer("g", "T") as consumer:

        async def take_three() -> None:
            for _ in range(3):
                assert await consumer.get(10) is not None
                await asyncio.sleep(0)

        await asyncio.gather(take_three(), take_three())
        assert await consumer.get(0) is None
        await producer_of_one(traced)
        assert await consumer.get(10) is not None
        await asyncio.create_task(consumer.get(0))
        assert await consumer.get(0) is None
        assert not trace.get_current_span().get_span_context().is_valid
    sent, processed = taken.named("send T"), taken.named("process T")
    assert len(processed) == 7
    assert set(map(parent_of, processed)) == set(map(id_of, sent))


async def producer_of_one(client: duolog.Client) -> None:
    """Send one message."""
    async with client.producer() as producer:
        await producer.send("T", b"last")


async def test_another_attempt_continues_the_trace(traced: duolog.Client, taken: Taken) -> None:
    async with traced.producer() as producer:
        await producer.send("T", b"x")
    async with traced.consumer("g", "T") as consumer:
        message = await received(consumer)
        await consumer.send_back(message, delay_level=1)
        again = await received(consumer)
        assert again.reconsume_times == 1
        await consumer.send_back(again, delay_level=-1)
        assert await consumer.get(0) is None
    async with traced.consumer("undertaker", "%DLQ%g") as consumer:
        assert await consumer.get(10) is not None
    sent = taken.one("send T")
    first, second = taken.named("process T")
    dead = taken.one("process %DLQ%g")
    for span in (first, second, dead, *taken.named("send_back T")):
        assert trace_of(span) == trace_of(sent)
        assert links_of(span) == [id_of(sent)]
    assert [attributes(span)["duolog.reconsume_times"] for span in (first, second)] == [0, 1]
    assert [parent_of(span) for span in taken.named("send_back T")] == [id_of(first), id_of(second)]


async def test_a_delayed_message_and_a_transaction_keep_their_trace(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        await producer.send("T", b"late", delay=0.2)
    async with traced.transactions("pg") as transactions:
        async with transactions.begin("T", b"paid"):
            pass
        half, lost = await transactions.prepare_batch("T", [b"1", b"2"])
        await transactions.commit_all([half])
        await transactions.rollback_all([lost])
    bodies: dict[bytes, int] = {}
    async with traced.consumer("g", "T") as consumer:
        while len(bodies) < 3:
            message = await received(consumer)
            bodies[message.body] = trace.get_current_span().get_span_context().trace_id
    late, paid, both = taken.named("send T")
    assert bodies == {b"late": trace_of(late), b"paid": trace_of(paid), b"1": trace_of(both)}
    assert attributes(late)["messaging.rocketmq.message.type"] == "delay"
    assert attributes(paid)["messaging.rocketmq.message.type"] == "transaction"
    assert [trace_of(span) for span in taken.named("commit T")] == [trace_of(paid), trace_of(both)]
    assert links_of(taken.one("rollback T")) == [id_of(both)]
    assert attributes(taken.one("rollback T"))["duolog.producer.group"] == "pg"


async def test_a_message_that_is_not_stored_fails_its_span(
    traced: duolog.Client, taken: Taken
) -> None:
    async with traced.producer() as producer:
        with pytest.raises(duolog.NoPermission):
            await producer.send("RMQ_SYS_x", b"x", queue_id=0)
        posted = producer.post("RMQ_SYS_x", b"x", queue_id=0)
        with pytest.raises(duolog.UnknownTopic):
            await posted
    failed = taken.named("send RMQ_SYS_x")
    assert {span.status.status_code for span in failed} == {StatusCode.ERROR}
    assert [attributes(span)["error.type"] for span in failed] == ["NoPermission", "UnknownTopic"]


async def test_an_unsampled_trace_is_carried_on_and_recorded_by_nobody(
    node: Node, client: duolog.Client
) -> None:
    taken = Taken(ALWAYS_OFF)
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, tracer_provider=taken.provider) as traced:
        async with traced.producer() as producer:
            await producer.send("T", b"x")
            await producer.post("T", b"y")
        async with traced.consumer("g", "T") as consumer:
            for _ in range(2):
                message = await received(consumer)
                flags = int(message.properties["traceparent"][-2:], 16)
                assert flags & 1 == 0
    assert taken.names == []


async def test_the_spans_of_posted_messages_end_wherever_they_wait(taken: Taken) -> None:
    bench = Bench()
    from duolog._spans import Spans

    producer = bench.producer
    producer._spans = Spans(taken.provider, "1")
    bench.queues.let.clear()  # they wait for their queue first
    posted = [producer.post("T", b"%d" % k, key=str(k)) for k in range(10)]
    late = producer.post("T", b"late", key="late", timeout=0.01)
    with pytest.raises(duolog.Timeout):
        await late
    bench.queues.let.set()
    receipts = await asyncio.gather(*posted)
    await producer.close()
    assert len(taken.all) == 11
    by_id = {attributes(span).get("messaging.message.id") for span in taken.all}
    assert by_id == {None, *(receipt.unique_key for receipt in receipts)}


async def test_the_span_of_a_message_in_hand_ends_with_its_consumer(taken: Taken) -> None:
    async with duolog.Client("127.0.0.1:1", tracer_provider=taken.provider) as client:
        consumer = client.consumer("g", "T")
        assert consumer.processing is not None
        consumer.processing.begin(Message(batch_of(("T", 0), 0, 1, 1), 0))
        await consumer.close()
        assert taken.named("process T")


def test_a_forked_process_does_not_end_its_parents_spans(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[None] = []
    with duolog.sync.Client("127.0.0.1:1", tracer_provider=taken.provider) as client:
        consumer = client.consumer("g", "T")
        monkeypatch.setattr(consumer._of.processing, "end", lambda *_: ended.append(None))
        monkeypatch.setattr(consumer._loop, "forked", True)
        consumer.close()
        consumer.__exit__(None, None, None)
        monkeypatch.undo()
    assert not ended


def _synchronously(endpoint: str, taken: Taken) -> None:
    with duolog.sync.Client(endpoint, tracer_provider=taken.provider) as client:
        with client.producer() as producer, taken.tracer.start_as_current_span("order"):
            producer.send("T", b"0", key="k")
            producer.post("T", b"1", key="k").receipt()
        with client.consumer("g", "T") as consumer:
            for k in range(2):
                message = consumer.get(10)
                assert message is not None
                assert message.body == b"%d" % k
                with taken.tracer.start_as_current_span(f"inside {k}"):
                    pass
        assert not trace.get_current_span().get_span_context().is_valid


async def test_the_synchronous_client_makes_the_same_spans(
    node: Node, client: duolog.Client, taken: Taken
) -> None:
    await asyncio.to_thread(_synchronously, f"127.0.0.1:{node.port}", taken)
    order = taken.one("order")
    assert [parent_of(span) for span in taken.named("send T")] == [id_of(order)] * 2
    processed = taken.named("process T")
    assert [trace_of(span) for span in processed] == [trace_of(order)] * 2
    assert [parent_of(taken.one(f"inside {k}")) for k in range(2)] == [
        id_of(span) for span in processed
    ]
