"""Requests passed on to the master: once, with its answer, and never without a bound."""

import asyncio

import pytest
from duolog import _errors as sdk

from duolog_server.compat.remoting.calling import Calling
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import ONEWAY, BadRequest, Command, Serialization
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.relay import PASSED_ON, RELAYED, UNSENT_BYTES_MAX
from duolog_server.compat.remoting.replicas import TABLES
from duolog_server.compat.remoting.rules import ADMINISTRATION
from duolog_server.node.identity.quotas.quotas import Who
from tests.compat.remoting.relay.fakes import SEND, SENDER, Quotas, master, relay_to, request
from tests.compat.remoting.requests import write_batch
from tests.compat.remoting.test_members import Client
from tests.node.replicas import WAIT_SECONDS
from tests.until import until


@pytest.mark.parametrize("form", Serialization)
@pytest.mark.parametrize(("body", "code"), [(b"yes", 0), (b"no", 14)])
async def test_the_answer_is_the_masters(form: Serialization, body: bytes, code: int) -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        sent = request(body, serialization=form)
        answer = await relay.pass_on(SENDER, sent)
        assert (answer.code, answer.opaque, answer.remark) == (code, 77, "r")
        assert (answer.fields, answer.body, answer.serialization) == ({"k": "v"}, b"body", form)
        assert answer.is_response
        (got,) = there.taken
        assert (got.code, got.fields, got.body) == (SEND, {"b": "T"}, body)
        assert got.flag & RELAYED
        await relay.stop()


async def test_a_request_is_passed_on_once_and_only_by_another_node() -> None:
    there = relay_to(lambda: "127.0.0.1:1")
    assert there.takes(SENDER, request())
    assert not there.takes(SENDER, request(flag=RELAYED))
    assert not there.takes(SENDER, request(flag=RELAYED | ONEWAY))
    assert not there.takes(SENDER, Command(RequestCode.HEART_BEAT, 1))
    pull = Command(RequestCode.PULL_MESSAGE, 1)
    assert not there.takes(SENDER, pull), "every replica serves readers"
    here = relay_to(str)
    assert not here.takes(SENDER, request())
    with pytest.raises(sdk.Unavailable):
        await here.pass_on(SENDER, request())


def test_what_came_by_tls_does_not_go_on_in_plain_text() -> None:
    there = relay_to(lambda: "127.0.0.1:1")
    assert not there.takes(Client("sender", is_encrypted=True), request())


def test_nothing_is_passed_on_for_which_addresses_are_trusted_and_no_administration() -> None:
    trusted = {*TABLES, RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
    assert PASSED_ON.isdisjoint(trusted | ADMINISTRATION.keys())


async def test_requests_without_an_answer_wait_for_none() -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        assert (await relay.pass_on(SENDER, request(flag=ONEWAY))).code == 0
        await relay.pass_on(SENDER, request(b"then"))
        assert [one.flag for one in there.taken] == [ONEWAY | RELAYED, RELAYED]
        await relay.stop()


@pytest.mark.parametrize("body", [b"end", b"nonsense"])
async def test_a_connection_that_broke_is_made_again(body: bytes) -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        with pytest.raises(sdk.Unavailable, match=f"the master at {there.address} did not answer"):
            await relay.pass_on(SENDER, request(body))
        assert (await relay.pass_on(SENDER, request())).code == 0
        assert len(there.taken) == 2
        await relay.stop()


async def test_many_clients_share_a_connection() -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        clients = [Client(f"client {n}") for n in range(20)]
        await asyncio.gather(*(relay.pass_on(one, request()) for one in clients))
        assert (len(there.taken), len(there.connections)) == (20, 1)
        await relay.stop()


# -- the master changes ----------------------------------------------------------------------------


async def test_the_next_master_is_called_when_there_is_one() -> None:
    async with master() as first, master() as second:
        places = [first.address]
        relay = relay_to(lambda: places[0])
        await relay.pass_on(SENDER, request())
        places[0] = second.address
        await relay.pass_on(SENDER, request())
        assert len(second.taken) == 1
        places[0] = "127.0.0.1:1"
        with pytest.raises(sdk.Unavailable, match="cannot be reached"):
            await relay.pass_on(SENDER, request())
        await relay.stop()


async def test_the_last_master_may_still_answer_and_the_one_before_it_may_not() -> None:
    async with master() as first, master() as second, master() as third:
        places = [first.address]
        relay = relay_to(lambda: places[0])
        under_way = asyncio.ensure_future(relay.pass_on(SENDER, request(b"later")))
        await until(lambda: len(first.later) == 1)
        places[0] = second.address
        await relay.pass_on(SENDER, request())
        assert not under_way.done()
        first.answer_later()
        assert (await under_way).code == 0
        under_way = asyncio.ensure_future(relay.pass_on(SENDER, request(b"later")))
        await until(lambda: len(second.later) == 1)
        for places[0] in (third.address, first.address):
            await relay.pass_on(SENDER, request())
        with pytest.raises(sdk.Unavailable, match="the connection is closed"):
            await under_way
        await relay.stop()
        await until(lambda: all(one.is_closing() for one in third.connections), "no one is left")


async def test_a_master_that_dies_ends_what_waits_for_it() -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        under_way = asyncio.ensure_future(relay.pass_on(SENDER, request(b"later")))
        await until(lambda: len(there.later) == 1)
        there.connections[0].abort()
        with pytest.raises(sdk.Unavailable):
            await under_way
        await relay.stop()


# -- bounds ----------------------------------------------------------------------------------------


async def test_what_waits_has_a_deadline_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.relay.SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.compat.remoting.relay.HELD_BYTES_MAX", 8)
    async with master() as there:
        relay = relay_to(lambda: there.address)
        with pytest.raises(sdk.Busy):
            await relay.pass_on(SENDER, request(b"x" * 7))  # the fields count
        with pytest.raises(sdk.Unavailable, match=r"no answer within 0\.05 s"):
            await relay.pass_on(SENDER, request(b""))
        monkeypatch.setattr("duolog_server.compat.remoting.relay.SECONDS", 10.0)
        whole = await relay.pass_on(SENDER, request(b"x" * 6))
        assert whole.code == 0, "nothing is held any more"
        await relay.stop()


async def test_to_connect_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str) -> Calling:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr("duolog_server.compat.remoting.relay.connect", connect)
    monkeypatch.setattr("duolog_server.compat.remoting.relay.SECONDS", 0.05)
    relay = relay_to(lambda: "127.0.0.1:1")
    async with asyncio.timeout(WAIT_SECONDS):
        for flag in (0, ONEWAY):
            with pytest.raises(sdk.Unavailable, match=r"no answer within 0\.05 s"):
                await relay.pass_on(SENDER, request(flag=flag))
    await relay.stop()


@pytest.mark.parametrize("flag", [0, ONEWAY])
async def test_a_master_that_takes_nothing_is_sent_no_more(
    monkeypatch: pytest.MonkeyPatch, flag: int
) -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        await relay.pass_on(SENDER, request())
        with monkeypatch.context() as patch:
            patch.setattr(Calling, "unsent_bytes", property(lambda _: UNSENT_BYTES_MAX + 1))
            with pytest.raises(sdk.Busy):
                await relay.pass_on(SENDER, request(flag=flag))
        await relay.pass_on(SENDER, request())
        assert len(there.taken) == 2
        await relay.stop()


async def test_only_so_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.answers.WAITING_MAX", 1)
    async with master() as there:
        relay = relay_to(lambda: there.address)
        under_way = asyncio.ensure_future(relay.pass_on(SENDER, request(b"later")))
        await until(lambda: len(there.later) == 1)
        with pytest.raises(sdk.Unavailable, match="1 requests wait"):
            await relay.pass_on(SENDER, request())
        there.answer_later()
        assert (await under_way).code == 0
        await relay.stop()


async def test_quotas_of_the_clients_address_are_counted_here() -> None:
    quotas = Quotas(messages=4)
    async with master() as there:
        relay = relay_to(lambda: there.address, quotas)
        body = write_batch([(0, b"x", b"")] * 3)
        batch = Command(RequestCode.SEND_BATCH_MESSAGE, 1, {"b": "T"}, body)
        await relay.pass_on(SENDER, batch)
        with pytest.raises(sdk.Throttled, match="messages in"):
            await relay.pass_on(SENDER, batch)
        await relay.pass_on(SENDER, request())
        with pytest.raises(sdk.Throttled):
            await relay.pass_on(SENDER, request(flag=ONEWAY))
        await relay.pass_on(SENDER, Command(RequestCode.QUERY_CONSUMER_OFFSET, 1, {}, b"x"))
        assert len(there.taken) == 3
        who = Who("", SENDER.host.address)
        assert quotas.passed == [(who, batch.size, 3), (who, request().size, 1)]
        await relay.stop()


@pytest.mark.parametrize("mark", ["m", "batch"])
async def test_messages_of_a_marked_batch_count_one_by_one(mark: str) -> None:
    quotas = Quotas(messages=4)
    async with master() as there:
        relay = relay_to(lambda: there.address, quotas)
        body = write_batch([(0, b"x", b"")] * 3)
        await relay.pass_on(SENDER, Command(SEND, 1, {mark: "true"}, body))
        assert [count for _, _, count in quotas.passed] == [3]
        await relay.stop()


async def test_what_gets_too_long_on_its_way_ends_no_calls_of_others() -> None:
    async with master() as there:
        relay = relay_to(lambda: there.address)
        waiting = asyncio.ensure_future(relay.pass_on(SENDER, request(b"later")))
        await until(lambda: len(there.later) == 1)
        wide = Command(SEND, 1, {"i": "\u20ac" * 60_000}, b"x")  # 3 bytes each; 6 as it goes on
        with pytest.raises(BadRequest, match="a header of 36"):
            await relay.pass_on(SENDER, wide)
        with pytest.raises(BadRequest, match="a frame of"):
            await relay.pass_on(SENDER, request(bytes(FRAME_BYTES_MAX - 50)))
        there.answer_later()
        assert (await waiting).code == 0
        await relay.stop()
