"""How the SDK follows masters: hints, epochs, pauses, and the result of a send."""

import asyncio
import random
import socket
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import duolog
import duolog.sync
import grpc
import grpc.aio
import pytest
from duolog import _connection, _sending
from duolog._backoff import HINTED_SECONDS, LONGEST_SECONDS, BackOff
from duolog._connection import Connection
from duolog._errors import EPOCH_KEY, ERROR_KEY, MASTER_KEY, error_of, status_of, trailing_of
from duolog._nodechannel import Channel, GrpcChannel, uncancelled
from duolog._router import Router
from duolog._runtime import MACHINE, Runtime
from duolog._topics import LogEnd, TopicCache
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from tests.until import until


async def test_hints_are_followed_once_at_their_epoch_and_pauses_grow_with_jitter() -> None:
    pauses = []
    for _ in range(200):
        back_off = BackOff()
        found = [back_off.next() for _ in range(10)]
        assert max(found) <= 1.5 * LONGEST_SECONDS
        assert found[0] < 0.1
        pauses.append(found[-1])
    assert statistics.pstdev(pauses) > 0.05
    back_off = BackOff()
    found = [back_off.next(True) for _ in range(6)]
    assert found[:3] == [HINTED_SECONDS] * 3
    assert min(found[3:]) > HINTED_SECONDS
    slow = BackOff(first_seconds=1.0, longest_seconds=8.0)
    assert 0.5 <= slow.next() <= 1.5
    grown = [slow.next() for _ in range(10)]
    assert 4.0 <= grown[-1] <= max(grown) <= 12.0
    slow.reset()
    assert slow.next() <= 1.5
    connection = Connection(("127.0.0.1:1", "127.0.0.1:2"))
    await connection.rotate(connection.moves, "127.0.0.1:9", 5)
    assert connection.endpoint == "127.0.0.1:9"
    await connection.rotate(connection.moves, "127.0.0.1:8", 4)  # a node that lives in the past
    assert connection.endpoint != "127.0.0.1:8"
    await connection.rotate(connection.moves, "127.0.0.1:8", 6)
    assert connection.endpoint == "127.0.0.1:8"
    connection = Connection(("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    before = connection.moves
    await asyncio.gather(*(connection.rotate(before) for _ in range(8)))
    assert connection.endpoint == "127.0.0.1:2"


def not_master() -> grpc.aio.AioRpcError:
    """As a slave of 10.0.0.1:8081 answers, in epoch 7."""
    trailing = grpc.aio.Metadata(
        (ERROR_KEY, "NotMaster"), (MASTER_KEY, "10.0.0.1:8081"), (EPOCH_KEY, "7")
    )
    return grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), trailing, "a slave"
    )


def test_not_master_carries_the_master_and_its_epoch() -> None:
    error = error_of(not_master())
    assert isinstance(error, duolog.NotMaster)
    assert (error.endpoint, error.epoch) == ("10.0.0.1:8081", 7)


@pytest.mark.parametrize("ends", ["with a result", "with an error"])
async def test_a_cancellation_that_grpc_loses_still_cancels(ends: str) -> None:
    """A task inside grpc.aio consumes the cancellation, and the call ends in another way."""

    async def loses_it() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if ends == "with an error":
                raise not_master() from None

    task = asyncio.ensure_future(uncancelled(asyncio.ensure_future(loses_it())))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_retried_without_time_for_the_answer() -> None:
    connection = Connection(("127.0.0.1:1",))
    tries: list[float] = []

    async def refused(left: float) -> None:
        tries.append(left)
        await asyncio.sleep(1.6)
        raise not_master()

    with pytest.raises(duolog.NotMaster):
        await connection.call(refused, 3.0)
    assert len(tries) == 1
    await connection.close()
    # If the deadline interrupted the retry, the result would be unknown.
    script = Script(wire.IN_SYNC_REPLICAS_NOT_ENOUGH, takes=1.2)
    async with pauses_of_the_loop() as longest:
        with pytest.raises((duolog.Busy, duolog.ResultUnknown, duolog.Timeout)) as failure:
            await send(script, 2.0)
    assert len(script.seen) <= 1
    assert failure.type is duolog.Busy or longest() > 0.2


async def test_a_call_whose_last_try_was_cut_off_says_why_the_one_before_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine that stands still after the pause was found to be short enough."""
    monkeypatch.setattr(_connection, "would_be_cut_off", lambda pause, took, left: False)
    connection = Connection(("127.0.0.1:1",))

    async def refused(left: float) -> None:
        raise duolog.Unavailable("the port may take TLS only")

    with pytest.raises(duolog.Unavailable, match="may take TLS only"):
        await connection.call(refused, 1.0)
    errors: list[duolog.DuologError] = [duolog.Unavailable("the port may take TLS only")]

    async def cut_off(left: float) -> None:
        if errors:
            raise errors.pop()
        await asyncio.sleep(left)
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, nothing, nothing, "too late")

    with pytest.raises(duolog.Timeout, match="too late; the try before it: the port may take TLS"):
        await connection.call(cut_off, 3.0)
    await connection.close()


async def test_a_slave_that_names_its_master_does_not_hide_why_that_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = grpc.aio.Metadata()
    full = grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION,
        nothing,
        grpc.aio.Metadata((ERROR_KEY, "NotMaster")),
        "not stored: DISK_FULL",
    )
    errors = [full, not_master(), full, not_master()]
    monkeypatch.setattr(_connection, "would_be_cut_off", lambda pause, took, left: not errors)
    connection = Connection(("127.0.0.1:1", "127.0.0.1:2"))

    async def refused(left: float) -> None:
        raise errors.pop(0)

    said = "^a slave; the try before it: not stored: DISK_FULL$"
    with pytest.raises(duolog.NotMaster, match=said) as failure:
        await connection.call(refused, 30.0)
    assert failure.value.endpoint == "10.0.0.1:8081"
    await connection.close()


# -- sends against a node that answers as it is told -----------------------------------------------


class Script(stubs.MessagesServicer):
    """Answers appends with the statuses of a list; the last one again and again."""

    def __init__(self, *statuses: int, takes: float = 0.0) -> None:
        """takes: seconds from a request to its answer."""
        self.statuses = list(statuses)
        self.takes = takes
        self.seen: list[wire.AppendRequest] = []
        self.came: list[float] = []  # when, by the loop's clock
        self.master = ""  # that refusals name
        self.retry_after_ms = 0  # of a quota

    async def Append(self, requests: Any, context: Any) -> None:
        async for request in requests:
            self.seen.append(request)
            self.came.append(asyncio.get_running_loop().time())
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            await asyncio.sleep(self.takes if status >= 0 else 60)
            reply = wire.AppendReply(id=request.id, count=1)
            reply.status = status  # type: ignore[assignment]
            if status == wire.NOT_MASTER:
                reply.master, reply.master_epoch = self.master, 1
            if status == wire.THROTTLED:
                reply.retry_after_ms = self.retry_after_ms
            await context.write(reply)


class Admin(stubs.AdminServicer):
    def __init__(self, endpoint: list[str]) -> None:
        self._endpoint = endpoint

    async def Route(self, request: Any, context: Any) -> wire.RouteReply:
        group = wire.GroupRoute(group="g", master="m", master_endpoint=self._endpoint[0])
        group.replicas.add(node="m", endpoint=self._endpoint[0], in_sync=True)
        return wire.RouteReply(cluster="c", group="g", groups=[group])

    async def ListTopics(self, request: Any, context: Any) -> wire.ListTopicsReply:
        reply = wire.ListTopicsReply(topics=[wire.TopicReply(topic="T", queues=1)])
        reply.confirm_offset, reply.confirm_nonce = 700, 77
        return reply


async def serve(script: Script) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    endpoint = [""]
    stubs.add_MessagesServicer_to_server(script, server)
    stubs.add_AdminServicer_to_server(Admin(endpoint), server)
    endpoint[0] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    script.master = script.master or endpoint[0]
    await server.start()
    return server, endpoint[0]


async def send(
    script: Script, timeout: float, runtime: Runtime = MACHINE, accept_weak: bool = False
) -> duolog.Receipt:
    server, endpoint = await serve(script)
    try:
        async with (
            duolog.Client(endpoint, runtime=runtime) as client,
            client.producer(accept_weak=accept_weak) as producer,
        ):
            await client._topics.slots("T", 20)  # the send finds a connection and the queues
            return await producer.send("T", b"x", timeout=timeout)
    finally:
        await server.stop(0)


async def test_an_unknown_answer_is_asked_again_with_the_same_sequence() -> None:
    script = Script(wire.UNKNOWN_ERROR, wire.PUT_OK)
    assert (await send(script, 5)).status == "PUT_OK"
    first, second = script.seen
    assert (first.producer_id, first.sequence) == (second.producer_id, second.sequence)
    assert first.bodies == second.bodies
    assert (first.again, second.again) == (False, True)
    assert first.known_end == second.known_end == 700
    assert first.known_nonce == second.known_nonce == 77


def test_the_newest_epochs_end_is_kept_even_if_an_older_one_reached_further() -> None:
    topics = TopicCache(Router(("127.0.0.1:1",)))
    assert topics.known_end("g") == LogEnd(0, 0)
    for told, kept in (
        (LogEnd(900, 1), LogEnd(900, 1)),
        (LogEnd(800, 1), LogEnd(900, 1)),
        (LogEnd(600, 2), LogEnd(600, 2)),  # an unclean election gave up the rest
        (LogEnd(650, 2), LogEnd(650, 2)),
    ):
        topics.note_end("g", told)
        assert topics.known_end("g") == kept


async def test_unknown_answers_stay_unknown_whatever_follows() -> None:
    script = Script(wire.IN_SYNC_REPLICAS_NOT_ENOUGH, wire.PUT_OK)
    assert (await send(script, 5)).status == "PUT_OK"
    assert [request.again for request in script.seen] == [False, False]
    script = Script(wire.UNKNOWN_ERROR, wire.SEQUENCE_TOO_OLD, wire.PUT_OK)
    with pytest.raises(duolog.ResultUnknown):
        await send(script, 5)
    assert len(script.seen) == 2
    for asked in (
        send(Script(wire.UNKNOWN_ERROR), 2.5),
        send(Script(wire.UNKNOWN_ERROR, wire.IN_SYNC_REPLICAS_NOT_ENOUGH), 2.5),
        send(Script(wire.UNKNOWN_ERROR, wire.MESSAGE_ILLEGAL), 20.0),
    ):
        with pytest.raises(duolog.ResultUnknown):
            await asked


async def test_a_node_that_names_itself_is_asked_again_at_once_and_no_other_one() -> None:
    elsewhere = Script(wire.PUT_OK)
    server, other = await serve(elsewhere)
    script = Script(wire.NOT_MASTER, wire.NOT_MASTER, wire.PUT_OK)
    node, endpoint = await serve(script)
    try:
        async with duolog.Client([endpoint, other]) as client, client.producer() as producer:
            loop = asyncio.get_running_loop()
            await client.admin.topics()
            began = loop.time()
            assert (await producer.send("T", b"x", timeout=20)).status == "PUT_OK"
            assert loop.time() - began < 10
    finally:
        await node.stop(0)
        await server.stop(0)
    assert (len(script.seen), len(elsewhere.seen)) == (3, 0)


async def test_a_refusal_may_wait_for_a_part_of_the_time_and_not_where_another_group_can_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, began = Script(wire.PUT_OK), asyncio.get_running_loop().time()
    await send(script, 4)
    await send(script, 100)
    monkeypatch.setattr(Router, "has_choice", property(lambda self: True))
    await send(script, 100)
    patience = [request.patience_ms for request in script.seen]
    least_left = began + 4 - script.came[0]  # seconds, when it was sent
    assert 250 * least_left - 1 <= patience[0] <= 1000
    assert patience[1:] == [1000 * _sending.PATIENCE_SECONDS, 0]
    script = Script(wire.UNKNOWN_ERROR, wire.PUT_OK)
    await send(script, 100)
    assert [request.patience_ms > 0 for request in script.seen] == [False, True], "stored there"


async def test_what_is_stored_and_not_confirmed_is_sent_again_until_it_is() -> None:
    script = Script(wire.FLUSH_SLAVE_TIMEOUT, wire.FLUSH_DISK_TIMEOUT, wire.PUT_OK)
    assert (await send(script, 20)).status == "PUT_OK"
    assert [request.again for request in script.seen] == [False, True, True]
    assert len({(request.producer_id, request.sequence) for request in script.seen}) == 1


@pytest.mark.parametrize("last", [(), (wire.IN_SYNC_REPLICAS_NOT_ENOUGH,), (wire.NOT_MASTER,)])
async def test_what_is_not_confirmed_in_time_is_unknown_and_says_why(last: tuple[int, ...]) -> None:
    script = Script(wire.FLUSH_SLAVE_TIMEOUT, *last)
    with pytest.raises(duolog.ResultUnknown, match="may be lost") as failure:
        await send(script, 0.5)
    assert failure.value.status == "FLUSH_SLAVE_TIMEOUT"
    assert len(script.seen) > 2


@pytest.mark.parametrize("closes", [False, True])
async def test_a_post_that_is_not_confirmed_in_time_says_why_as_a_send_does(closes: bool) -> None:
    """Also where other messages of its batch may take longer, and where its producer is closed."""
    script = Script(wire.FLUSH_SLAVE_TIMEOUT)
    server, endpoint = await serve(script)
    async with duolog.Client(endpoint, timeout=0.5 if closes else 30) as client:
        producer = client.producer()
        await client._topics.slots("T", 20)
        late = [producer.post("T", b"x", timeout=30 if closes else 0.4) for _ in range(3)]
        longer = producer.post("T", b"y", timeout=30)
        await until(lambda: len(script.seen) > 1)
        if closes:
            with pytest.raises(duolog.ResultUnknown):
                await producer.close()
        for one in [*late, longer] if closes else late:
            with pytest.raises(duolog.ResultUnknown, match="may be lost") as failure:
                await one
            assert failure.value.status == "FLUSH_SLAVE_TIMEOUT"
        script.statuses = [wire.PUT_OK]
        if not closes:
            assert (await longer).status == "PUT_OK"
            await producer.close()
    await server.stop(0)


@pytest.mark.parametrize(
    "status", [wire.FLUSH_SLAVE_TIMEOUT, wire.FLUSH_DISK_TIMEOUT, wire.SLAVE_NOT_AVAILABLE]
)
async def test_a_weak_receipt_is_given_to_who_asks_for_it(status: int) -> None:
    script = Script(status)
    receipt = await send(script, 60, accept_weak=True)
    assert receipt.status == wire.PutStatus.Name(status)
    assert len(script.seen) == 1


async def test_no_way_of_sending_takes_a_weak_status_for_success() -> None:
    """Each of them, asynchronous and not; a weak receipt only where it is asked for."""

    async def posted(producer: Any) -> None:
        handle = producer.post("T", b"x")
        await producer.flush()
        assert handle.receipt().status == "SLAVE_NOT_AVAILABLE"

    def posted_in_thread(client: duolog.sync.Client, accept_weak: bool) -> None:
        with client.producer(accept_weak=accept_weak) as producer:
            ways: list[Callable[[], str]] = [
                lambda: producer.send("T", b"x").status,
                lambda: producer.send_batch("T", [b"x"]).status,
                lambda: producer.post("T", b"x").receipt().status,
            ]
            for send_it in ways:
                if accept_weak:
                    assert send_it() == "SLAVE_NOT_AVAILABLE"
                else:
                    with pytest.raises(duolog.SlaveNotAvailable):
                        send_it()

    async def prepared(client: duolog.Client, accept_weak: bool) -> None:
        async with client.transactions("g", accept_weak=accept_weak) as transactions:
            await transactions.prepare("T", b"x")

    ways: list[Callable[[Any], Any]] = [
        lambda producer: producer.send("T", b"x"),
        lambda producer: producer.send("T", b"x", key="k"),
        lambda producer: producer.send_batch("T", [b"x"] * 3),
        posted,
    ]
    server, endpoint = await serve(Script(wire.SLAVE_NOT_AVAILABLE))
    try:
        async with duolog.Client(endpoint) as client:
            for way in ways:
                async with client.producer(accept_weak=True) as producer:
                    await way(producer)
                async with client.producer() as producer:
                    with pytest.raises(duolog.SlaveNotAvailable):
                        await way(producer)
            await prepared(client, True)
            with pytest.raises(duolog.SlaveNotAvailable):
                await prepared(client, False)
        for accept_weak in (True, False):
            with await asyncio.to_thread(duolog.sync.Client, endpoint) as synchronous:
                await asyncio.to_thread(posted_in_thread, synchronous, accept_weak)
    finally:
        await server.stop(0)


@asynccontextmanager
async def pauses_of_the_loop() -> AsyncIterator[Callable[[], float]]:
    """The longest time in seconds for which the machine let the loop stand still, so far.

    For tests of answers that come shortly before a deadline: one that is cut off is another result.
    """
    loop, longest = asyncio.get_running_loop(), 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            began = loop.time()
            await asyncio.sleep(0.01)
            longest = max(longest, loop.time() - began)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        yield lambda: longest
        looking.cancel()


class Longest(random.Random):
    """Draws the longest pauses."""

    def uniform(self, a: float, b: float) -> float:
        return b


async def test_a_refusal_is_known_unless_an_answer_before_it_was_not() -> None:
    """The last of its tries has half a second: one that is cut off would not be known."""
    async with pauses_of_the_loop() as longest:
        with pytest.raises((duolog.Busy, duolog.ResultUnknown, duolog.Timeout)) as failure:
            await send(
                Script(wire.IN_SYNC_REPLICAS_NOT_ENOUGH), 1.7, replace(MACHINE, chance=Longest())
            )
    assert failure.type is duolog.Busy or longest() > 0.2
    script = Script(wire.SLAVE_NOT_AVAILABLE)
    with pytest.raises(duolog.SlaveNotAvailable) as failure:
        await send(script, 60)
    assert failure.value.status == "SLAVE_NOT_AVAILABLE"
    assert len(script.seen) == 1
    script = Script(wire.UNKNOWN_ERROR, wire.THROTTLED)
    script.retry_after_ms = 60_000
    with pytest.raises(duolog.ResultUnknown):
        await send(script, 20.0)


async def test_a_send_over_a_quota_goes_again_after_the_time_it_was_told() -> None:
    script, loop = Script(wire.THROTTLED, wire.THROTTLED, wire.PUT_OK), asyncio.get_running_loop()
    script.retry_after_ms, began = 300, loop.time()
    await send(script, 5.0)
    assert loop.time() - began >= 0.6
    assert len({(request.producer_id, request.sequence) for request in script.seen}) == 1
    assert [request.again for request in script.seen] == [False] * 3
    script, loop = Script(wire.THROTTLED), asyncio.get_running_loop()
    script.retry_after_ms, began = 60_000, loop.time()
    with pytest.raises(duolog.Throttled) as caught:
        await send(script, 20.0)
    assert caught.value.retry_after_ms == 60_000
    assert loop.time() - began < 15.0
    assert len(script.seen) == 1


async def test_a_call_over_a_quota_waits_in_its_time_and_stays_with_the_node() -> None:
    connection = Connection(("127.0.0.1:1", "127.0.0.1:2"))
    tries: list[float] = []
    loop = asyncio.get_running_loop()

    def over(milliseconds: int) -> grpc.aio.AioRpcError:
        code, _ = status_of(duolog.Throttled())
        trailing = trailing_of(duolog.Throttled("over", milliseconds))
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "over")

    async def called(left: float) -> str:
        tries.append(loop.time())
        if len(tries) == 1:
            raise over(300)
        return connection.endpoint

    assert await connection.call(called, 5.0) == "127.0.0.1:1"
    assert tries[1] - tries[0] >= 0.3

    for milliseconds in (0, 60_000):  # not known; too long
        tries.clear()

        async def refused(left: float, milliseconds: int = milliseconds) -> str:
            tries.append(loop.time())
            raise over(milliseconds)

        with pytest.raises(duolog.Throttled) as caught:
            await connection.call(refused, 5.0)
        assert caught.value.retry_after_ms == milliseconds
        assert len(tries) == 1
    await connection.close()


async def test_a_send_that_only_waited_for_others_is_tried_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time it waited for others does not tell how long an answer takes."""
    monkeypatch.setattr(_sending, "ATTEMPT_SECONDS", 0.5)
    script = Script(wire.PUT_OK)
    server, endpoint = await serve(script)
    try:
        async with duolog.Client(endpoint) as client, client.producer() as producer:
            for _ in range(_sending.IN_FLIGHT_MAX):
                await producer._sender.window.acquire()
            await client._topics.slots("T", 20)
            sending = asyncio.ensure_future(producer.send("T", b"x", timeout=9.0))
            await asyncio.sleep(5.0)
            for _ in range(_sending.IN_FLIGHT_MAX):
                producer._sender.window.release()
            assert (await sending).status == "PUT_OK"
    finally:
        await server.stop(0)


async def test_one_deadline_covers_a_node_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_sending, "ATTEMPT_SECONDS", 60.0)  # one node has so many, if there are
    async with asyncio.timeout(30):
        with pytest.raises(duolog.ResultUnknown):
            await send(Script(-1), 1.0)


async def test_topics_of_one_node_are_asked_for_on_the_clients_runtime() -> None:
    dialled: list[str] = []

    def dial(endpoint: str) -> Channel:
        dialled.append(endpoint)
        return MACHINE.dial(endpoint)

    async with duolog.Client("127.0.0.1:1", runtime=replace(MACHINE, dial=dial)) as client:
        assert await client.topics_at("", ["T"]) == []
        assert dialled == []
        assert await client.topics_at("127.0.0.1:2", ["T"]) == []
    assert dialled == ["127.0.0.1:2"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin in a later turn")
async def test_frames_are_looked_for_where_tasks_begin_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    async def learn(connection: Connection, channel: object) -> None:
        asked.append(channel)
        await asyncio.sleep(0)

    monkeypatch.setattr(Connection, "_learn", learn)
    monkeypatch.setattr(_connection, "GATE_SECONDS", 60.0)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # not in 3.11
    connection = Connection(("127.0.0.1:1",))
    await asyncio.wait_for(connection.settled(60.0), 5.0)
    assert len(asked) == 1
    await connection.close()


async def test_a_call_that_is_retried_after_the_end_of_its_client_opens_nothing() -> None:
    connection = Connection(("127.0.0.1:1",))

    async def closed(left: float) -> None:
        await connection.close()
        raise duolog.Unavailable("the channel was closed")

    with pytest.raises(duolog.Unavailable, match="the client is closed"):
        await connection.call(closed, 5.0)
    with pytest.raises(duolog.Unavailable, match="the client is closed"):
        await connection.append(
            wire.AppendRequest(id=1), b"", asyncio.get_running_loop().time() + 5
        )
    assert connection._grpc is None
    assert connection._following is None


async def test_a_channel_is_closed_also_where_its_close_is_cancelled() -> None:
    class Node:
        """A channel whose append stream does not end."""

        unary_unary = unary_stream = stream_stream = None
        closed = False

        async def close(self, grace: float | None) -> None:
            self.closed = True

    class Stream:
        async def close(self) -> None:
            await asyncio.Event().wait()

    node: Any = Node()
    channel = GrpcChannel(node)
    channel._stream = cast(Any, Stream())
    closing = asyncio.ensure_future(channel.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert node.closed


@pytest.mark.parametrize("frames_break", [False, True])
async def test_grpc_is_left_once_no_call_is_in_flight_on_it_if_frames_are_still_there(
    frames_break: bool,
) -> None:
    class Frames:
        error = None

        async def close(self) -> None:
            pass

    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection((f"127.0.0.1:{silent.getsockname()[1]}",))
        channel = connection._grpc = GrpcChannel(MACHINE.open(connection.endpoint))
        connection._frames = cast(Any, Frames())
        admin = stubs.AdminStub(cast(grpc.aio.Channel, channel))
        calls = [admin.Route(wire.RouteRequest(), timeout=60) for _ in range(2)]
        leaving = asyncio.ensure_future(connection._leave_grpc())
        calls[0].cancel()
        await asyncio.sleep(0.01)
        assert not leaving.done()
        assert not calls[1].done()
        if frames_break:
            connection._frames = None
        calls[1].cancel()
        await asyncio.wait_for(leaving, 30)
        assert connection._grpc is (channel if frames_break else None)
        await connection.close()
