"""Calls to other brokers and name servers, answered by a node's own port and by nobody."""

import asyncio

import pytest

from duolog_server.compat.remoting.calling import Access, BadAddress, CallRefused, connect, place_of
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader


class Other(asyncio.Protocol):
    """Answers by the code of a request: 1 with success, 2 with a refusal, 3 with no frame."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.frames = transport, FrameReader(FRAME_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        self.frames.feed(data)
        while (request := self.frames.next()) is not None:
            self.answer(request)

    def answer(self, request: Command) -> None:
        if request.code == 1:
            self.transport.write(Command(40, 1, {"consumerGroup": "g"}).frame())  # asks by itself
            self.transport.write(request.answer(0, body=request.body[::-1]).frame())
        elif request.code == 2:
            self.transport.write(request.answer(17, "no such topic").frame())
        elif request.code == 3:
            self.transport.write(b"\xff" * 16)
        elif request.code == 4:
            self.transport.close()


async def _other() -> tuple[asyncio.Server, str]:
    server = await asyncio.get_running_loop().create_server(Other, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_calls_are_answered_in_any_order() -> None:
    server, address = await _other()
    async with server:
        calling = await connect(address)
        bodies = [bytes([n] * 3 + [0]) for n in range(20)]
        answers = await asyncio.gather(*(calling.call(1, body=body) for body in bodies))
        assert [one.body for one in answers] == [body[::-1] for body in bodies]
        calling.close()


async def test_a_refusal_has_its_code_and_remark() -> None:
    server, address = await _other()
    async with server:
        calling = await connect(address)
        with pytest.raises(CallRefused, match="no such topic") as refused:
            await calling.call(2)
        assert refused.value.code == 17
        assert calling.is_open
        calling.close()


@pytest.mark.parametrize("code", [3, 4])
async def test_a_broken_connection_ends_every_call(code: int) -> None:
    server, address = await _other()
    async with server:
        calling = await connect(address)
        silent = asyncio.gather(calling.call(5), return_exceptions=True)
        with pytest.raises(ConnectionError):
            await calling.call(code)
        assert isinstance((await silent)[0], ConnectionError)
        assert not calling.is_open
        with pytest.raises(ConnectionError):
            await calling.call(1)
        with pytest.raises(ConnectionError):
            calling.pass_on_oneway(Command(RequestCode.UNREGISTER_CLIENT))


async def test_a_call_has_a_deadline() -> None:
    server, address = await _other()
    async with server:
        calling = await connect(address)
        with pytest.raises(TimeoutError):
            await calling.call(5, seconds=0.02)
        assert (await calling.call(1, body=b"ab")).body == b"ba"
        calling.close()


async def test_requests_are_signed() -> None:
    server, address = await _other()
    async with server:
        calling = await connect(address, Access(lambda one: Command(2, one.opaque)))
        with pytest.raises(CallRefused):
            await calling.call(1)
        calling.close()


@pytest.mark.parametrize(
    "text", ["", "foo", "foo:", ":1", "foo:bar", "foo:0", "foo:65536", "a:²", "a:" + "1" * 5000]
)
async def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress, match="is not HOST:PORT"):
        await connect(text)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\0b"])
async def test_a_host_that_no_name_server_could_know_is_no_address(host: str) -> None:
    with pytest.raises(BadAddress, match="names no host"):
        await connect(f"{host}:9876")


def test_an_address_has_a_host_and_a_port() -> None:
    assert place_of("10.0.0.1:9876") == ("10.0.0.1", 9876)
    assert place_of("[::1]:9876") == ("::1", 9876)


async def test_an_error_names_the_address_that_cannot_be_reached() -> None:
    server, address = await _other()
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionError, match=f"{address} cannot be reached"):
        await connect(address)
