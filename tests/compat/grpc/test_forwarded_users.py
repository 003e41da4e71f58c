"""Users whose clients are connected to a slave: both nodes know who calls, and from where."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duolog
import grpc
import pytest

from duolog_server.compat.grpc.guard import RocketmqGuard
from duolog_server.compat.grpc.protocol.stubs import METHODS, Code, service
from duolog_server.compat.grpc.relay.calls import (
    CLIENT_ID,
    FORWARDED,
    METHOD,
    PEER,
    PLAIN,
    PROOF,
    USER,
)
from duolog_server.compat.grpc.relay.nodes import Marks
from duolog_server.node.identity.access.access import FORWARDED as FOR_FORWARDED
from duolog_server.node.identity.access.secrets import read_key
from duolog_server.node.identity.access.vouching import Vouching
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource
from tests.compat.grpc.test_rights import REFUSED, make_topics
from tests.compat.grpc.test_transactions import PATIENT, Checker, half
from tests.compat.grpc.test_user_attacks import telemetry
from tests.compat.grpc.users import (
    PASSWORD,
    Users,
    as_user,
    codes,
    first_code,
    requests,
    with_users,
)
from tests.node.replicas import (
    Elected,
    Group,
    broker_of,
    caught_up,
    following,
    start_groups,
)
from tests.nodefixtures import StartNode
from tests.until import until


@dataclass
class Pair:
    """A master, its slave, and users."""

    master: Node
    slave: Node
    users: Users

    async def settle(self) -> None:
        await caught_up(self.master, self.slave)

    def forget(self, name: str) -> None:
        """The slave is as if it had not got that user yet."""
        tables = broker_of(self.slave).metadata.tables.access
        del tables.users[name]
        tables.changes += 1


@pytest.fixture
async def pair(start_node: StartNode, tmp_path: Path) -> Pair:
    group, access = Group(start_node, tmp_path), with_users(tmp_path)
    master = await group.start_master(access=access, transactions=PATIENT)
    slave = await group.start_slave(access=access)
    await following(slave)
    await until(lambda: broker_of(master).metadata.refused() is None)
    await make_topics(master, "T", "U")
    users = Users(master)
    await users.new("root", super=True)
    await users.new("alice", "Pub,Sub,Get Topic:T", "Sub Group:g")
    await users.new("bob", "Pub,Sub,Get Topic:U", "Sub Group:h")
    await caught_up(master, slave)
    return Pair(master, slave, users)


@pytest.fixture
async def alice(pair: Pair) -> AsyncIterator[Api]:
    """Connected to the slave."""
    made = as_user(pair.slave, "alice")
    yield made
    await made.close()


async def consume_one(api: Api, body: bytes) -> None:
    """Send, receive, renew and acknowledge a message."""
    assert (await api.send(message(body))).status.code == Code.OK
    received = await api.receive("g", timeout=20)
    assert (received.code, received.bodies) == (Code.OK, [body])
    changed = await api.change("g", received.handles[0], 30_000)
    assert changed.status.code == Code.OK
    assert (await api.ack("g", changed.receipt_handle)).status.code == Code.OK


async def test_a_slave_forwards_the_calls_of_a_user(
    alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    recognise = RocketmqGuard.recognise

    def recording(guard: RocketmqGuard, context: Any, method: str) -> Any:
        seen.append(dict(context.invocation_metadata()))
        return recognise(guard, context, method)

    monkeypatch.setattr(RocketmqGuard, "recognise", recording)
    await consume_one(alice, b"x")
    forwarded = [headers for headers in seen if FORWARDED in headers]
    assert len(forwarded) == 4
    for headers in forwarded:
        assert (headers[USER], headers[CLIENT_ID]) == ("alice", "alice/test@1")
        assert "authorization" not in headers


@pytest.mark.usefixtures("many_failures")
async def test_a_slave_refuses_what_its_master_refuses(pair: Pair) -> None:
    callers = {"bob": Code.FORBIDDEN, "nobody": Code.UNAUTHORIZED}
    for name, code in callers.items():
        api = as_user(pair.slave, name)
        assert await codes(api, requests().items()) == {method: code for method in METHODS}
        await api.close()
    api = as_user(pair.slave, "alice")
    found = await codes(api, requests().items())
    assert not {name: code for name, code in found.items() if code in REFUSED}
    await api.close()


async def test_a_user_that_a_slave_does_not_know_yet_is_known_to_the_master(
    pair: Pair, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.grpc.guarded.PATIENCE_SECONDS", 60)
    pair.forget("alice")
    await consume_one(alice, b"x")
    assert (await alice.route("T")).status.code == Code.OK
    assert await first_code(alice, "PullMessage", requests()["PullMessage"]) == Code.OK
    stream = telemetry(alice, "T")
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0.2)
    assert not reading.done()
    await pair.users.put("alice", disabled=False)  # comes to the slave once more
    assert (await reading).status.code == Code.OK
    stream.cancel()


async def test_a_right_that_a_slave_does_not_know_yet_is_known_to_the_master(
    pair: Pair, alice: Api
) -> None:
    tables = broker_of(pair.slave).metadata.tables.access
    del tables.rights["alice"]
    tables.changes += 1
    await consume_one(alice, b"x")


async def test_a_slave_that_does_not_know_of_a_new_password_is_not_believed(pair: Pair) -> None:
    tables = broker_of(pair.slave).metadata.tables.access
    stale = tables.users["alice"]
    await pair.users.put("alice", password="a new one", signs=True)
    await pair.settle()
    tables.users["alice"] = stale
    tables.changes += 1
    for secret, code in (("", Code.UNAUTHORIZED), ("a new one", Code.OK)):
        api = as_user(pair.slave, "alice", secret=secret)
        assert (await api.send(message(b"x"))).status.code == code
        await api.close()


async def test_the_address_of_the_client_counts_and_not_that_of_the_node(
    pair: Pair, tmp_path: Path
) -> None:
    await pair.users.may("alice", "Get Topic:T 10.0.0.0/8")
    direct = as_user(pair.master, "alice")
    assert (await direct.route("T")).status.code == Code.FORBIDDEN
    await direct.close()
    vouching = Vouching(read_key(with_users(tmp_path)["key_file"]), FOR_FORWARDED)
    marks = Marks(vouching, broker_of(pair.master).times.wall_ms)
    proof = marks.proof("alice", PASSWORD.format("alice"))
    for peer, code in (("ipv4:10.1.2.3:55", Code.OK), ("ipv4:11.1.2.3:55", Code.FORBIDDEN)):
        said = [(FORWARDED, PLAIN), (PEER, peer), (USER, "alice"), (PROOF, proof), (CLIENT_ID, "c")]
        said.append((METHOD, "QueryRoute"))
        api = Api(pair.master, "")
        api.metadata = [(name, str(value)) for name, value in marks.added(said)]
        assert (await api.route("T")).status.code == code
        other = await api.send(message(b"x"))  # with the headers of a call of another method
        assert other.status.code == Code.UNAUTHORIZED
        await api.close()


async def test_a_slave_tells_its_master_the_address_of_the_client(pair: Pair, alice: Api) -> None:
    await alice.send(message(b"x"))
    (found,) = (await alice.receive("g", timeout=20)).messages
    host, _, port = found.system_properties.born_host.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) not in (pair.master.port, pair.slave.port)
    await pair.users.may("alice", "Pub Topic:T 10.0.0.0/8")
    await pair.settle()
    assert (await alice.send(message(b"x"))).status.code == Code.FORBIDDEN


async def test_nodes_with_different_keys_do_not_believe_each_other(
    pair: Pair, tmp_path: Path
) -> None:
    """As those of two groups of a cluster; within one, they do not replicate either."""
    (tmp_path / "other").mkdir()
    key = read_key(with_users(tmp_path / "other")["key_file"])
    assert pair.slave.rocketmq is not None
    guard = pair.slave.rocketmq._guard
    assert isinstance(guard, RocketmqGuard)
    guard._marks = Marks(Vouching(key, FOR_FORWARDED), broker_of(pair.slave).times.wall_ms)
    api = as_user(pair.slave, "root")
    reply = await api.send(message(b"x"))
    assert reply.status.code == Code.UNAUTHORIZED
    assert "access.key_file" in reply.status.message
    await api.close()


async def test_a_telemetry_stream_at_a_slave_ends_with_the_rights_of_its_user(
    pair: Pair, alice: Api
) -> None:
    stream = telemetry(alice, "T")
    assert (await stream.read()).status.code == Code.OK
    await pair.users.may("alice", "Sub Topic:T")
    async with asyncio.timeout(60):
        assert (await stream.read()).status.code == Code.FORBIDDEN
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_poll_at_a_slave_looks_again_before_it_delivers(pair: Pair, alice: Api) -> None:
    polling = asyncio.ensure_future(alice.receive("g", timeout=20))
    await until(lambda: broker_of(pair.master).waiting_calls.count == 1)
    await pair.users.may("alice", "Pub Topic:T")
    root = as_user(pair.master, "root")
    await root.send(message(b"x"))
    received = await polling
    assert (received.code, received.bodies) == (Code.FORBIDDEN, [])
    assert (await root.receive("g", timeout=20)).bodies == [b"x"]
    await root.close()


async def test_a_user_continues_at_the_next_master(start_node: StartNode, tmp_path: Path) -> None:
    """Its telemetry stream is passed on to it, although its signature is of another call."""
    access = with_users(tmp_path)
    group = await Elected.start(start_node, tmp_path, access=access, transactions=PATIENT)
    old = group.the_master()
    await make_topics(old, "T")
    users = Users(old)
    await users.new("root", super=True)
    await users.new("alice", "Pub,Sub,Get Topic:T", "Sub Group:g")
    others = [node for node in group.nodes if node is not old]
    for node in others:
        await caught_up(old, node)
    api = as_user(others[0], "alice")
    producer = Checker(api, "T")
    await producer.settled.wait()
    first = await half(api)
    await until(lambda: first[1] in [asked.transaction_id for asked in producer.asked])
    root = duolog.Client(group.endpoints, timeout=20, user="root", password="the password of root")
    async with root:
        await group.switch(root)
    second = await half(api)
    await until(lambda: second[1] in [asked.transaction_id for asked in producer.asked])
    leave = service.NotifyClientTerminationRequest(group=resource("g"))
    assert (await api.call("NotifyClientTermination", leave)).status.code == Code.OK
    await producer.close()
    await api.close()


async def test_a_user_of_all_replica_groups_may_call_any_node(
    start_node: StartNode, tmp_path: Path
) -> None:
    nodes = await start_groups(start_node, tmp_path, access=with_users(tmp_path))
    for node in nodes.values():
        await make_topics(node, "T")
        users = Users(node)
        await users.new("root", super=True)
        await users.new("alice", "Pub,Sub,Get Topic:T", "Sub Group:g")
    apis = {name: as_user(node, "alice") for name, node in nodes.items()}
    first, second = apis.values()
    route = await first.route("T")
    assert {queue.broker.name for queue in route.message_queues} == set(nodes)
    await second.send(message(b"x"))
    (other,) = (name for name, api in apis.items() if api is second)
    asked = requests()["ReceiveMessage"]
    asked.message_queue.broker.name = other
    call = first.stub.ReceiveMessage(asked, metadata=first.metadata, timeout=20)
    found = [reply.message async for reply in call if reply.HasField("message")]
    assert [one.body for one in found] == [b"x"]
    handle = found[0].system_properties.receipt_handle
    stranger = as_user(nodes[other], "root")
    await Users(nodes[other]).may("alice", "Sub Topic:T")
    assert (await first.ack("g", handle)).status.code == Code.FORBIDDEN
    assert (await stranger.ack("g", handle)).status.code == Code.OK
    for api in (*apis.values(), stranger):
        await api.close()
