"""Requests passed on to the master: once, with its answer, and never without a bound."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog import _errors as sdk

from node.broker import Broker
from node.remoting.codec.codes import RequestCode, ResponseCode
from node.remoting.codec.command import ONEWAY, Command, Serialization
from node.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from node.remoting.relay import RELAYED, Relay
from node.remoting.routes import Routes
from store.metadata import TopicConfig

SEND = RequestCode.SEND_MESSAGE_V2


class Master(asyncio.Protocol):
    """Takes requests, and answers those with a body: that it is not the master, for `no`."""

    taken: list[Command]

    def __init__(self, taken: list[Command]) -> None:
        self.taken, self.frames = taken, FrameReader(FRAME_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.frames.feed(data)
        while (request := self.frames.next()) is not None:
            self.taken.append(request)
            if request.body == b"end":
                self.transport.abort()
            elif request.body and not request.is_oneway:
                code = 14 if request.body == b"no" else 0
                self.transport.write(request.answer(code, "r", {"k": "v"}, b"body").frame())


@asynccontextmanager
async def master() -> AsyncIterator[tuple[str, list[Command]]]:
    taken: list[Command] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Master(taken), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", taken


def request(body: bytes = b"x", opaque: int = 77, **more: Any) -> Command:
    return Command(SEND, opaque, {"b": "T"}, body, **more)


@pytest.mark.parametrize("form", Serialization)
@pytest.mark.parametrize(("body", "code"), [(b"yes", 0), (b"no", 14)])
async def test_the_answer_is_the_masters(form: Serialization, body: bytes, code: int) -> None:
    async with master() as (address, taken):
        relay = Relay(lambda: address)
        sent = request(body, serialization=form)
        answer = await relay.pass_on(sent)
        assert (answer.code, answer.opaque, answer.remark) == (code, 77, "r")
        assert (answer.fields, answer.body, answer.serialization) == ({"k": "v"}, b"body", form)
        assert answer.is_response
        (got,) = taken
        assert (got.code, got.fields, got.body) == (SEND, {"b": "T"}, body)
        assert got.flag & RELAYED
        await relay.stop()


async def test_a_request_is_passed_on_once_and_only_by_another_node() -> None:
    there = Relay(lambda: "127.0.0.1:1")
    assert there.takes(request())
    assert not there.takes(request(flag=RELAYED))
    assert not there.takes(Command(RequestCode.HEART_BEAT, 1))
    assert not there.takes(Command(RequestCode.PULL_MESSAGE, 1)), "every replica serves readers"
    here = Relay(str)
    assert not here.takes(request())
    with pytest.raises(sdk.Unavailable):
        await here.pass_on(request())


async def test_requests_without_an_answer_wait_for_none() -> None:
    async with master() as (address, taken):
        relay = Relay(lambda: address)
        assert (await relay.pass_on(request(flag=ONEWAY))).code == 0
        await relay.pass_on(request(b"then"))
        assert [one.flag for one in taken] == [ONEWAY | RELAYED, RELAYED]
        await relay.stop()


async def test_a_connection_that_broke_is_made_again() -> None:
    async with master() as (address, taken):
        relay = Relay(lambda: address)
        with pytest.raises(sdk.Unavailable, match=f"the master at {address} did not answer"):
            await relay.pass_on(request(b"end"))
        assert (await relay.pass_on(request())).code == 0
        assert len(taken) == 2
        await relay.stop()


async def test_the_next_master_is_called_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with master() as (first, _), master() as (second, taken):
        places = [first]
        relay = Relay(lambda: places[0])
        await relay.pass_on(request())
        places[0] = second
        await relay.pass_on(request())
        assert len(taken) == 1
        places[0] = "127.0.0.1:1"
        with pytest.raises(sdk.Unavailable, match="cannot be reached"):
            await relay.pass_on(request())
        await relay.stop()


async def test_what_waits_has_a_deadline_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.remoting.relay.SECONDS", 0.05)
    monkeypatch.setattr("node.remoting.relay.HELD_BYTES_MAX", 8)
    async with master() as (address, _):
        relay = Relay(lambda: address)
        with pytest.raises(sdk.Busy):
            await relay.pass_on(request(b"x" * 9))
        with pytest.raises(sdk.Unavailable, match=r"no answer within 0\.05 s"):
            await relay.pass_on(request(b""))
        assert (await relay.pass_on(request(b"x" * 8))).code == 0, "nothing is held any more"
        await relay.stop()


# -- routes ----------------------------------------------------------------------------------------


class Untold:
    """Refusals that wait for nothing."""

    def told_later(self, patience_ms: int) -> None:
        return None


def routes(known: str, lost: bool = False, away_seconds: float = 0.0) -> Routes:
    """Of a slave at 127.0.0.2; others are at .1 and .3."""
    replicas = {
        name: SimpleNamespace(endpoint=f"127.0.0.{number}:8081")
        for name, number in (("a", 1), ("b", 2), ("c", 3))
    }
    found = SimpleNamespace(
        advertised="127.0.0.2:8081",
        group="g",
        node=SimpleNamespace(cluster="c"),
        limits=SimpleNamespace(auto_create_topic=False),
        metadata=SimpleNamespace(topics={"T": TopicConfig("T", 1)}),
        failover=SimpleNamespace(lease_seconds=3, routes={"g": SimpleNamespace(replicas=replicas)}),
        replication=SimpleNamespace(
            refusals=Untold(),
            not_master=lambda: "a slave",
            master_endpoint=(known, 4),
            next_master=("" if lost else known, 4),
            follower=SimpleNamespace(lost=lost, away_seconds=away_seconds),
        ),
    )
    return Routes(cast(Broker, found), "127.0.0.2:9876")


def addresses(made: Routes) -> str:
    found = made.route(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "T"}))
    assert isinstance(found, Command)
    assert found.code == ResponseCode.SUCCESS
    return found.body.decode().partition('"brokerAddrs":')[2].partition("}")[0] + "}"


def test_a_route_names_no_master_that_may_be_gone() -> None:
    first, own, last = (f'"127.0.0.{number}:9876"' for number in (1, 2, 3))
    led = routes("127.0.0.1:8081")
    assert addresses(led) == f'{{"0":{first},"1":{own},"2":{last}}}'
    assert led.master_elsewhere() == "127.0.0.1:9876"
    lost = routes("127.0.0.1:8081", lost=True)
    assert addresses(lost) == f'{{"1":{first},"2":{own},"3":{last}}}'
    assert lost.master_elsewhere() == ""
    back = routes("127.0.0.1:8081", lost=True, away_seconds=5.0)
    assert addresses(back) == addresses(led), "its lease was renewed: this node is cut off"
    assert addresses(routes("")) == addresses(lost)
    over = routes("127.0.0.2:8081")
    assert over.master_elsewhere() == "", "not passed on to itself"
    assert addresses(over) == addresses(lost), "this node's own mastership is over"
