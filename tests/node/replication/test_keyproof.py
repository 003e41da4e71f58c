"""Nodes of a group prove to each other that they have the key of their cluster."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog._nodechannel import uncancelled

from duolog_server.ha import frames
from duolog_server.ha.frames import Frame, Welcome
from duolog_server.ha.localreplica import Member
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.node.identity.access.secrets import read_key
from duolog_server.node.identity.access.vouching import Vouching
from duolog_server.node.replication import masterstream, slavestream
from duolog_server.node.replication.keyproof import CHALLENGE, MARK, NODE, KeyProof, Unproven
from duolog_server.node.replication.masterstream import RULES, ReplicationService
from duolog_server.node.runtime.cautions import cautions
from duolog_server.node.runtime.config import Config, ConfigError
from duolog_server.ops.cli.node import problems_of
from duolog_server.serve.server import Node
from tests.keyfiles import access_files, key_file
from tests.node.replicas import (
    Elected,
    Group,
    broker_of,
    caught_up,
    following,
    in_sync,
    log_bytes,
    master_of,
    slave_of,
)
from tests.node.replication.test_replication import hello
from tests.nodefixtures import StartNode
from tests.until import until

PURPOSE = b"duolog replication v1"
PASSWORD = "a password of the test"
Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def proof_of(
    key: bytes, node: str = "peer", cluster: str = "DefaultCluster", group: str = "broker-a"
) -> KeyProof:
    return KeyProof(Vouching(key, PURPOSE), Member(cluster, group, node, ""))


def keyed(directory: Path, **more: str) -> dict[str, str]:
    directory.mkdir(exist_ok=True)
    return {**access_files(directory, PASSWORD), **more}


# -- what is proved --------------------------------------------------------------------------------

KEY, OTHER = b"k" * 32, b"o" * 32


def exchange(slave: KeyProof, master: KeyProof) -> str:
    """Both ends prove their key: the name that the master learns. Raises Unproven."""
    opening = slave.opening()
    answer = master.answer(dict(opening.headers))
    first = opening.first_message(dict(answer.headers) if answer is not None else {})
    if answer is None:
        return ""
    answer.check(first or b"")
    return answer.slave


def test_nodes_believe_each_other_with_the_same_key() -> None:
    assert exchange(proof_of(KEY, "söme node"), proof_of(KEY, "m")) == "söme node"
    # Without one, it could follow under any.
    for headers in (proof_of(KEY, "").opening().headers, proof_of(KEY).opening().headers[1:]):
        with pytest.raises(Unproven, match="name"):
            proof_of(KEY).answer(dict(headers))
    name, (header, challenge) = proof_of(KEY).opening().headers
    for other in (challenge[:-1], challenge + "0"):
        with pytest.raises(Unproven, match="length"):
            proof_of(KEY).answer(dict((name, (header, other))))
    with pytest.raises(Unproven, match=r"access\.key_file"):
        proof_of(KEY).answer({})
    with pytest.raises(Unproven, match=r"access\.key_file"):
        proof_of(KEY).opening().first_message({})
    offered = KeyProof(Vouching(KEY, PURPOSE), Member("c", "g", "n", ""), required=False)
    assert offered.answer({}) is None
    assert offered.opening().first_message({}) is None
    another = KeyProof(Vouching(OTHER, PURPOSE), Member("c", "g", "m", ""), required=False)
    with pytest.raises(Unproven):
        exchange(offered, another)


@pytest.mark.parametrize(
    "other",
    [
        proof_of(OTHER, "m"),
        proof_of(KEY, "m", "AnotherCluster"),
        proof_of(KEY, "m", group="broker-b"),
    ],
    ids=["key", "cluster", "group"],
)
def test_another_key_cluster_or_group_is_found_by_either_end(other: KeyProof) -> None:
    with pytest.raises(Unproven, match="the master has another key"):
        exchange(proof_of(KEY), other)
    opening = proof_of(KEY).opening()
    answer = other.answer(dict(opening.headers))
    assert answer is not None
    with pytest.raises(Unproven, match="the slave has another key"):
        answer.check(b"DLKP" + b"0" * 64)


def test_a_proof_is_good_for_one_connection_one_role_and_one_name() -> None:
    slave, master = proof_of(KEY, "s"), proof_of(KEY, "m")
    opening = slave.opening()
    answer = master.answer(dict(opening.headers))
    assert answer is not None
    headers = dict(answer.headers)
    proved = opening.first_message(headers)
    assert proved is not None
    answer.check(proved)
    again = master.answer(dict(opening.headers))  # the same call, recorded and said once more
    assert again is not None
    reflected = b"DLKP" + headers[MARK].encode()
    renamed = dataclasses.replace(answer, slave="t")
    for asked, given in ((again, proved), (answer, reflected), (renamed, proved), (answer, b"")):
        with pytest.raises(Unproven):
            asked.check(given)
    with pytest.raises(Unproven):
        slave.opening().first_message(headers)  # of a recorded master
    with pytest.raises(Unproven):
        opening.first_message({**headers, NODE: "n"})


# -- the port --------------------------------------------------------------------------------------


class Caller:
    """Somebody who calls a method of the port, and proves something or nothing."""

    def __init__(self, call: Stream) -> None:
        self.call = call

    async def receive(self) -> Frame | grpc.StatusCode | None:
        """The next frame, or with which status the call ended."""
        async with asyncio.timeout(20):
            try:
                data = await uncancelled(self.call.read())
            except (grpc.aio.AioRpcError, duolog.Unavailable):
                return await self.call.code()
        return frames.decode(data) if isinstance(data, bytes) else None

    async def say(self, *said: bytes) -> None:
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, duolog.DuologError
        ):
            for one in said:
                await self.call.write(one)


@asynccontextmanager
async def called(master: Node, path: str, headers: Any = None) -> AsyncIterator[Caller]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ha_port}") as channel:
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        call = stream(metadata=headers)
        yield Caller(call)
        call.cancel()


HELLO = frames.encode(hello())


async def outcome(
    master: Node, path: str, proof: KeyProof, said: str
) -> Frame | grpc.StatusCode | None:
    """What a caller of a method gets for a kind of proof."""
    opening = proof.opening()
    if said == "nothing":
        async with called(master, path) as caller:
            await caller.say(HELLO)
            return await caller.receive()
    async with called(master, path, opening.headers) as caller:
        headers = dict(await caller.call.initial_metadata())
        if said == "replayed":
            recorded = opening.first_message(headers)
            assert recorded is not None
            async with called(master, path, opening.headers) as second:
                await second.call.initial_metadata()
                await second.say(recorded)
                return await second.receive()
        names = proof.me.node, str(headers[NODE])
        challenges = opening.challenge, str(headers[CHALLENGE])
        mark = proof.marks.mark(proof.words("slave", names, challenges))
        if said == "its master's":
            mark = str(headers[MARK])
        if said == "right":
            await caller.say(b"DLKP" + mark.encode(), HELLO)
        elif said != "late":  # one message: a write to a call that has ended hides why it did
            await caller.say(HELLO if said == "a Hello alone" else b"DLKP" + mark.encode())
        return await caller.receive()


KINDS = ("nothing", "another key's", "replayed", "its master's", "a Hello alone", "late", "right")


async def test_every_method_of_the_port_asks_for_the_key(
    start_node: StartNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    access = keyed(tmp_path / "keys")
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=access)
    service = master._replication
    assert service is not None
    key = read_key(Path(access["key_file"]))
    machine = master_of(master)
    assert set(service.methods) == set(RULES), "a method that is never called here"
    for path in service.methods:
        for said in KINDS:
            seconds = 0.5 if said == "late" else 60.0
            monkeypatch.setattr(masterstream, "PROOF_SECONDS", seconds)
            proof = proof_of(OTHER if said == "another key's" else key)
            found = await outcome(master, path, proof, said)
            if said == "right":
                assert isinstance(found, Welcome), said
                await until(lambda: not machine.sessions)  # its caller has hung up
            else:
                assert found is grpc.StatusCode.UNAUTHENTICATED, said
                assert not machine.sessions, said
        other = await outcome(master, path, proof_of(key, "somebody else"), "right")
        assert other is grpc.StatusCode.UNAUTHENTICATED  # its Hello names another node
        await until(lambda: not machine.sessions)
    _, *logged = capsys.readouterr().out.split("only 'somebody else' was proved as its name")
    assert len(logged) == len(RULES)
    assert "a replication connection broke" not in logged[-1], "one line says it"


async def test_a_method_without_a_rule_cannot_be_served(node: Node) -> None:
    replication = broker_of(node).replication
    service = ReplicationService(replication, broker_of(node).log.threads, None)

    async def method(slave: str, context: Any, offer: Any) -> None:
        """Never reached."""

    with pytest.raises(KeyError):
        service._serve("/duolog.ha.v1.Replication/Another", method)


# -- nodes -----------------------------------------------------------------------------------------


async def test_replication_works_with_the_key_and_not_without(
    start_node: StartNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(slavestream, "PROOF_SECONDS", 1.0)
    ours, others = keyed(tmp_path / "keys"), keyed(tmp_path / "other keys")
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=ours)
    slave = await group.start_slave(access=ours)
    await in_sync(master)
    endpoint = f"127.0.0.1:{master.port}"
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    for name, access in (("none", None), ("other", others)):
        stranger = await group.start_slave(name, access=access)
        machine = slave_of(stranger)

        def is_refused(machine: Slave = machine) -> bool:  # and not cut off, as in a standstill
            unauthorized = machine.reason.startswith("UNAUTHORIZED: ")
            return unauthorized and machine.state is ConnectionState.SUSPEND

        await until(is_refused)
        assert "access.key_file" in machine.reason
        assert broker_of(stranger).store.log.max_offset == 0
        if access is None:  # it has no users yet, so that one without a key file alone can tell
            async with duolog.Client(f"127.0.0.1:{stranger.port}") as client:
                while not (found := problems_of(await client.admin.node_status())):
                    await asyncio.sleep(0.01)  # it tries again just now
            (problem,) = found
            assert problem.startswith("not following its master: UNAUTHORIZED: ")
    assert "a slave was refused" in capsys.readouterr().out


async def test_a_slave_with_a_key_takes_nothing_from_a_master_without_one(
    start_node: StartNode, tmp_path: Path
) -> None:
    """Who takes the master's address could truncate its log otherwise."""
    group = Group(start_node, tmp_path)
    await group.start_master()
    await group.start_slave("as-before")
    slave = await group.start_slave(access=keyed(tmp_path / "keys"))
    machine = slave_of(slave)
    await until(lambda: machine.state is ConnectionState.SUSPEND)
    assert "the master does not prove" in machine.reason
    assert broker_of(slave).store.log.max_offset == 0


async def test_a_master_that_cannot_be_reached_is_not_told_of_as_one_without_the_key(
    start_node: StartNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=keyed(tmp_path / "keys"))
    await master.stop()
    slave = await group.start_slave(access=keyed(tmp_path / "keys"))
    shown: list[str] = []

    def told() -> bool:
        shown.append(capsys.readouterr().out)
        return "not following the master" in "".join(shown)

    await until(told)
    assert "UNAUTHORIZED" not in "".join(shown)
    machine = slave_of(slave)
    assert machine.state is not ConnectionState.SUSPEND


async def test_a_slave_follows_as_soon_as_its_master_has_the_key(
    start_node: StartNode, tmp_path: Path
) -> None:
    """It keeps its log meanwhile, and is not restarted."""
    ours, others = keyed(tmp_path / "keys"), keyed(tmp_path / "other keys")
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=ours)
    slave = await group.start_slave(access=ours)
    await following(slave)
    await caught_up(master, slave)
    before = log_bytes(slave)
    await master.stop()
    master = await group.start_master(access=others)
    machine = slave_of(slave)
    await until(lambda: "the master has another key" in machine.reason)
    assert log_bytes(slave) == before
    await master.stop()
    master = await group.start_master(access=ours)
    await following(slave)
    await caught_up(master, slave)
    assert machine.reason == ""


async def test_the_key_is_introduced_node_by_node(start_node: StartNode, tmp_path: Path) -> None:
    offered = keyed(tmp_path / "keys", node_proof="offered")
    required = keyed(tmp_path / "keys")
    steps = [(None, None), (None, offered), (offered, None), (offered, offered),
             (offered, required), (required, offered), (required, required)]  # fmt: skip
    for step, (of_master, of_slave) in enumerate(steps):
        group = Group(start_node, tmp_path / str(step))
        master = await group.start_master(access=of_master)
        slave = await group.start_slave(access=of_slave)
        await following(slave)
        await slave.stop()
        await master.stop()


async def test_a_master_of_an_earlier_version_is_followed_while_the_key_is_introduced(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing before a Hello, so that the slave waits for a moment only."""

    async def says_nothing(service: ReplicationService, context: Any, headers: Any = ()) -> str:
        return ""

    monkeypatch.setattr(slavestream, "FRAMES_METHOD", "/duolog.ha.v1.Replication/Later")
    monkeypatch.setattr(ReplicationService, "admit", says_nothing)
    monkeypatch.setattr(slavestream, "PROOF_SECONDS", 0.2)
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=keyed(tmp_path / "keys"))
    offering = await group.start_slave(access=keyed(tmp_path / "keys", node_proof="offered"))
    await following(offering)
    strict = await group.start_slave("strict", access=keyed(tmp_path / "keys"))
    machine = slave_of(strict)
    await until(lambda: machine.state is ConnectionState.SUSPEND)
    assert "the master does not prove" in machine.reason
    await caught_up(master, offering)


async def test_elected_nodes_prove_their_key_to_each_next_master(
    start_node: StartNode, tmp_path: Path
) -> None:
    made = await Elected.start(start_node, tmp_path, access=keyed(tmp_path / "keys"))
    async with duolog.Client(made.endpoints, timeout=20, user="root", password=PASSWORD) as client:
        await client.admin.create_topic("T", 1)
        await made.switch(client)
        await until(made.is_whole)
        async with client.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"


# -- settings --------------------------------------------------------------------------------------


def test_offering_the_proof_needs_a_key_and_is_not_safe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs access\.key_file"):
        Config.model_validate({"access": {"node_proof": "offered"}}).check()
    access = {"key_file": str(key_file(tmp_path)), "node_proof": "offered"}
    (one,) = cautions(Config.model_validate({"access": access}))
    assert one.startswith("access.node_proof = offered")
