"""The SDK's public interface, and its pure parts."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _columns
from duolog._connection import Connection
from duolog._errors import DuologError, error_of, status_of
from duolog._nodechannel import AppendStream
from duolog._producer import Producer
from duolog._router import Router
from duolog._topics import TopicCache
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from tests.until import until

CLIENT = Path(__file__).parent.parent.parent / "client"


def test_the_public_names_errors_and_imports_of_the_package_are_listed() -> None:
    shown = {name for name in vars(duolog) if not name.startswith("_")}
    modules = {name for name in shown if type(getattr(duolog, name)).__name__ == "module"}
    assert shown - modules == set(duolog.__all__)
    kinds = [
        getattr(duolog, name)
        for name in duolog.__all__
        if isinstance(getattr(duolog, name), type)
        and issubclass(getattr(duolog, name), DuologError)
    ]
    leaves = [kind for kind in kinds if kind not in (DuologError, duolog.Retryable, duolog.Fatal)]
    assert len({status_of(kind("x"))[1] for kind in leaves}) == len(leaves)
    code = (
        "import sys, duolog, duolog.sync; "
        "bad = {'numpy', 'numba', 'duolog_server', 'pydantic', 'rich', 'taskiq'}; "
        "bad &= set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CLIENT, check=True)


@given(st.lists(st.binary(max_size=20), max_size=30))
def test_packed_values_round_trip(values: list[bytes]) -> None:
    blob, offsets = _columns.pack(values)
    numbers = _columns.unpack_numbers(offsets, "I")
    assert [blob[a:b] for a, b in itertools.pairwise(numbers)] == values


@given(st.binary(max_size=9), st.integers(1, 20))
def test_a_repeated_value_packs_like_a_list_of_it(value: bytes, count: int) -> None:
    if value:
        assert _columns.repeat(value, count) == _columns.pack([value] * count)
    else:
        assert _columns.repeat(value, count) == (b"", b"")


_texts = st.text(st.characters(min_codepoint=32, blacklist_categories=["Cs", "Cc"]), min_size=1)


@given(st.dictionaries(_texts.filter(lambda t: t not in _columns.RESERVED), _texts, max_size=4))
def test_property_texts_round_trip(properties: dict[str, str]) -> None:
    text = _columns.property_text("tag", ["k1", "k2"], properties)
    expected = {**properties, "TAGS": "tag", "KEYS": "k1 k2"}
    assert _columns.parse_properties(text) == expected


@pytest.mark.parametrize("keys", [[""], ["a b"]])
def test_keys_with_spaces_are_refused(keys: list[str]) -> None:
    with pytest.raises(duolog.BadRequest):
        _columns.property_text(None, keys, None)


class _CancelledCall:
    """A gRPC call that ends by cancellation, as a broken connection may make it."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.wrote = asyncio.Event()

    async def write(self, request: object) -> None:
        if self.cancelled.is_set():
            raise asyncio.CancelledError
        self.wrote.set()

    async def read(self) -> object:
        await self.cancelled.wait()
        raise asyncio.CancelledError

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    async def details(self) -> str:
        return ""

    def cancel(self) -> bool:
        self.cancelled.set()
        return True


async def test_calls_that_another_one_cancelled_or_closed_block_nobody() -> None:
    call = _CancelledCall()
    stream = AppendStream(call)
    waiting = asyncio.ensure_future(stream.append(wire.AppendRequest(id=1)))
    await call.wrote.wait()
    call.cancelled.set()
    with pytest.raises(duolog.Unavailable):
        await asyncio.wait_for(waiting, 20)
    with pytest.raises(duolog.Unavailable):
        await asyncio.wait_for(stream.append(wire.AppendRequest(id=2)), 20)
    assert stream.error is not None
    # nobody closes it, and it leaves no task behind
    await until(lambda: len(asyncio.all_tasks()) <= 1)
    connection = Connection(("127.0.0.1:1", "127.0.0.1:2"))
    broken = [asyncio.CancelledError(), grpc.aio.UsageError("Channel is closed.")]

    async def closed(left: float) -> str:
        if broken:
            raise broken.pop()
        return "answer"

    assert await connection.call(closed, 5.0) == "answer"
    task = asyncio.ensure_future(connection.call(lambda left: asyncio.sleep(60), 90.0))
    await asyncio.sleep(0)
    task.cancel()  # our own cancellation is one
    with pytest.raises(asyncio.CancelledError):
        await task
    await connection.close()


async def test_a_write_that_fails_ends_the_calls_that_wait() -> None:
    class Refusing(_CancelledCall):
        """Refuses what is written, while it still reads."""

        async def write(self, request: Any) -> None:
            raise grpc.aio.UsageError("the call was ended")

        async def read(self) -> Any:
            await self.cancelled.wait()

    stream = AppendStream(Refusing())
    with pytest.raises(duolog.Unavailable, match="is closed"):
        await asyncio.wait_for(stream.append(wire.AppendRequest(id=1)), 20)
    await stream.close()


async def test_a_send_given_up_in_the_middle_of_a_write_leaves_the_stream_to_the_others() -> None:
    class Slow(_CancelledCall):
        """Answers what was written; a write that is cancelled ends the call, as grpc.aio's does."""

        def __init__(self) -> None:
            super().__init__()
            self.open = asyncio.Event()
            self.written: asyncio.Queue[Any] = asyncio.Queue()

        async def write(self, request: Any) -> None:
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
            self.written.put_nowait(request)

        async def read(self) -> Any:
            return wire.AppendReply(id=(await self.written.get()).id)

    call = Slow()
    stream = AppendStream(call)
    sends = [
        asyncio.ensure_future(stream.append(wire.AppendRequest(id=number))) for number in (1, 2, 3)
    ]
    await asyncio.sleep(0)
    for given_up in sends[:2]:
        given_up.cancel()
    await asyncio.gather(*sends[:2], return_exceptions=True)
    call.open.set()
    assert (await asyncio.wait_for(sends[2], 20)).id == 3
    assert stream.error is None
    assert not call.cancelled.is_set()
    await stream.close()
    with pytest.raises(duolog.Unavailable):
        await stream.append(wire.AppendRequest(id=4))


async def test_a_send_times_out_even_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = asyncio.Event()

    async def silent(batch: Any, seconds: float) -> list[duolog.Part]:
        under_way.set()
        await asyncio.sleep(seconds)
        raise duolog.ResultUnknown("the deadline passed")

    class OneQueue(TopicCache):
        async def slot(self, topic: str, queue_id: int, *rest: Any) -> tuple[str, int]:
            return "g", queue_id

    router = Router(("127.0.0.1:1",))
    producer = Producer(router, OneQueue(router), 60.0)
    monkeypatch.setattr(producer._sender, "send", silent)
    first = asyncio.ensure_future(producer.send("T", b"1", queue_id=0, timeout=1.0))
    await asyncio.wait_for(under_way.wait(), 20)
    with pytest.raises(duolog.Timeout):  # still waiting to go out: certainly not stored
        await producer.send("T", b"2", queue_id=0, timeout=0.01)
    with pytest.raises(duolog.ResultUnknown):
        await first
    await producer._batcher.close()
    await producer.flush()


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED])
def test_a_connection_broken_in_the_middle_of_a_write_is_retried(code: grpc.StatusCode) -> None:
    failure = grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
    )
    assert isinstance(error_of(failure), duolog.Unavailable)


def test_a_node_that_does_not_know_a_call_is_of_another_version() -> None:
    failure = grpc.aio.AioRpcError(
        grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "Method not found!"
    )
    error = error_of(failure)
    assert isinstance(error, duolog.BadRequest)
    assert str(error).startswith("this node does not know the call: it is of another version")
