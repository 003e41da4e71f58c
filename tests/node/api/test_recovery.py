"""The Recovery service of a node: what it does for whom."""

import asyncio
import base64
import contextlib
from pathlib import Path

import duolog
import grpc
import grpc.aio
import pytest
from duolog._runtime import MACHINE
from typer.testing import CliRunner

from duolog_server.node.api import native
from duolog_server.node.api.native import _other_groups
from duolog_server.node.identity.access.recovery import Claims, Place
from duolog_server.node.identity.access.secrets import read_key
from duolog_server.node.wire import recovery_pb2 as wire
from duolog_server.node.wire import recovery_pb2_grpc as stubs
from duolog_server.ops.cli import user
from duolog_server.ops.cli.recovery import recover_at, recover_everywhere
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.replicas import Group, broker_of, caught_up, following, start_groups
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"
NEW = "a brand new word"
REQUESTS = {"Begin": wire.BeginRequest(), "Recover": wire.RecoverRequest(user="root")}


@pytest.fixture
def access(tmp_path: Path) -> dict[str, str]:
    return access_files(tmp_path, PASSWORD)


def client_of(node: Node, user: str, password: str) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=30, user=user, password=password)


async def users_of(node: Node, password: str = PASSWORD) -> list[duolog.User]:
    async with client_of(node, "root", password) as client:
        return await client.access.users()


@pytest.fixture
async def node(start_node: StartNode, access: dict[str, str]) -> Node:
    """With a super user root, and alice, who is disabled."""
    made = await start_node(access=access)
    async with client_of(made, "root", PASSWORD) as client:
        await client.access.create_user("root", PASSWORD, is_super=True, signs=True)
        await client.access.create_user("alice", PASSWORD, disabled=True)
    return made


async def test_every_method_of_recovery_is_of_use_with_the_key_alone(
    node: Node, access: dict[str, str]
) -> None:
    """Who has no key may get challenges, and cannot answer them."""
    before = await users_of(node)
    methods = wire.DESCRIPTOR.services_by_name["Recovery"].methods_by_name
    assert set(methods) == set(REQUESTS)
    key = read_key(Path(access["key_file"]))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        stub = stubs.RecoveryStub(channel)

        async def tried(claims: Claims, challenge: str, **changes: str) -> grpc.StatusCode:
            claim, mark = claims.answer(challenge, Place("DefaultCluster", "broker-a", "test"))
            request = wire.RecoverRequest(
                challenge=claim.challenge, user=claim.user, password_hash=claim.password_hash,
                mark=mark,
            )  # fmt: skip
            for name, value in changes.items():
                setattr(request, name, value)
            try:
                await stub.Recover(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        async def challenge() -> str:
            return (await stub.Begin(wire.BeginRequest(), timeout=20)).challenge

        ours, theirs = Claims(key, "alice", NEW), Claims(b"o" * 32, "alice", NEW)
        used = await challenge()
        for claims, drawn, changes in (
            (theirs, await challenge(), {}),
            (ours, "made up", {}),
            (ours, await challenge(), {"mark": ""}),
            (ours, await challenge(), {"user": "mallory"}),
            (ours, await challenge(), {"password_hash": "x"}),
        ):
            found = await tried(claims, drawn, **changes)
            assert found is grpc.StatusCode.UNAUTHENTICATED
        assert await users_of(node) == before
        assert await tried(ours, used) is grpc.StatusCode.OK
        assert await tried(ours, used) is grpc.StatusCode.UNAUTHENTICATED, "replayed"


async def test_a_user_is_recovered_on_the_master_and_listed_until_its_next_password(
    start_node: StartNode,
    tmp_path: Path,
    access: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whichever node is asked; a disabled and normal one as well; open sessions end."""
    group = Group(start_node, tmp_path)
    master = await group.start_master(access=access)
    slave = await group.start_slave(access=access)
    await following(slave)
    claims = Claims(read_key(Path(access["key_file"])), "alice", NEW)
    endpoint = f"127.0.0.1:{slave.port}"
    async with client_of(master, "root", PASSWORD) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD, disabled=True, signs=True)
        async with client_of(slave, "alice", NEW) as alice:
            runtime = alice._router.runtime
            (found,) = await recover_everywhere((endpoint,), runtime, claims, 30)
            assert (found.place.node, found.created) == ("m", False)
            me = await alice.access.who_am_i()
            assert (me.is_super, me.disabled, me.signs) == (True, False, False)
            assert me.recovered_ms > 0
            await alice.access.alter_user("alice", password=PASSWORD)
        (listed, _) = await root.access.users()
        assert (listed.name, listed.recovered_ms) == ("alice", 0)
    await caught_up(master, slave)
    logged = capsys.readouterr().out
    assert "[warning  ] a super user was recovered with the key file" in logged
    assert NEW not in logged


async def test_a_user_is_recovered_in_every_group_of_the_cluster(
    start_node: StartNode, tmp_path: Path, access: dict[str, str]
) -> None:
    nodes = await start_groups(start_node, tmp_path, access=access)
    claims = Claims(read_key(Path(access["key_file"])), "operator", NEW)
    one = nodes["broker-b"]
    found = await recover_everywhere((f"127.0.0.1:{one.port}",), MACHINE, claims, 30)
    assert [(each.place.group, each.created) for each in found] == [
        ("broker-b", True),
        ("broker-a", True),
    ]
    for node in nodes.values():
        async with client_of(node, "operator", NEW) as client:
            assert (await client.access.who_am_i()).is_super


async def test_a_group_without_a_node_that_can_be_reached_is_not_passed_over(
    start_node: StartNode, tmp_path: Path, access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await start_groups(start_node, tmp_path, access=access)
    claims = Claims(read_key(Path(access["key_file"])), "operator", NEW)
    endpoint = f"127.0.0.1:{nodes['broker-b'].port}"
    away = f"127.0.0.1:{nodes['broker-a'].port}"
    await nodes["broker-a"].stop()
    await until(lambda: _other_groups(broker_of(nodes["broker-b"])) == {"broker-a": []})
    for addresses in ([], [away]):
        with monkeypatch.context() as patch:
            patch.setattr(native, "_other_groups", lambda _: {"broker-a": addresses})  # noqa: B023
            with pytest.raises(duolog.Unavailable, match=r"in replica group 'broker-a': .*repeat"):
                await recover_everywhere((endpoint,), MACHINE, claims, 5)
    async with client_of(nodes["broker-b"], "operator", NEW) as client:
        assert (await client.access.who_am_i()).is_super
        with pytest.raises(duolog.Unavailable, match="replica group 'broker-a'"):
            await client.access.create_user("alice", NEW)
        with pytest.raises(duolog.Unavailable, match="replica group 'broker-a'"):
            await client.access.delete_user("operator")


async def test_neither_the_key_nor_the_password_travels(node: Node, access: dict[str, str]) -> None:
    """Nor anything that a caller could use again, as its password in base64."""
    seen = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", node.port)
            await asyncio.gather(copy(reader, ours), copy(theirs, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done = await asyncio.to_thread(
        CliRunner().invoke,
        user.app,
        ["recover", "root", "--key-file", access["key_file"], "-e", f"127.0.0.1:{port}"],
        input=f"{NEW}\n",
    )
    server.close()
    assert done.exit_code == 0, done.output
    assert b"scrypt$" in seen
    assert b"authorization" not in seen
    key = Path(access["key_file"]).read_text().strip()
    for secret in (NEW, key, base64.b64encode(f"root:{NEW}".encode()).decode()):
        assert secret.encode() not in seen
    assert (await users_of(node, NEW))[1].recovered_ms > 0


async def test_another_key_recovers_nobody_and_a_node_without_users_has_no_recovery(
    start_node: StartNode, node: Node, tmp_path: Path
) -> None:
    async with client_of(node, "root", NEW) as client:
        runtime = client._router.runtime
        others = Claims(b"o" * 32, "root", NEW)
        with pytest.raises(duolog.Unauthenticated, match="another key"):
            await recover_at((f"127.0.0.1:{node.port}",), runtime, others, 10)
        plain = await start_node(tmp_path / "plain")
        with pytest.raises(duolog.BadRequest, match=r"no users to recover.*access\.key_file"):
            await recover_at((f"127.0.0.1:{plain.port}",), runtime, others, 5)
