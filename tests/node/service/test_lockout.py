"""One lock-out for all protocols: each counts, each refuses, and each leaves others alone."""

import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import duolog
import grpc.aio
import pytest
from duolog._errors import error_of
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire
from structlog.testing import capture_logs

from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.node.identity.access.lockout import FAILURE_MS, FREE
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from tests.compat.grpc.users import PASSWORD, Users, as_user
from tests.compat.remoting.client import connected
from tests.compat.remoting.guarding.asked import signs
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

RIGHT = PASSWORD.format("alice")
REFUSED, WAITS, SERVED = "refused", "waits", "served"
Try = Callable[[Node, str], Awaitable[str]]


class Stopped:
    """The clock of a node's lock-out."""

    def __init__(self, node: Node) -> None:
        self.lockout = broker_of(node).lockout
        self.now = int(broker_of(node).times.mono_ms())
        self.lockout._mono_ms = lambda: MonoMs(self.now)


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    node = await start_node(
        access=access_files(tmp_path, "pw"),
        remoting={"listen": free_endpoint()},
        audit={"file": tmp_path / "audit.log"},
    )
    users = Users(node)
    await users.new("root", super=True)
    await users.new("alice", "List,Get Topic:*", "List,Get Cluster:*")
    return node


async def by_native(node: Node, secret: str) -> str:
    word = base64.b64encode(f"alice:{secret}".encode()).decode()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        call = client._router.seed.access.WhoAmI
        try:
            await call(wire.WhoAmIRequest(), metadata=[("authorization", f"Basic {word}")])
        except grpc.aio.AioRpcError as error:
            return WAITS if isinstance(error_of(error), duolog.Throttled) else REFUSED
    return SERVED


async def by_grpc(node: Node, secret: str) -> str:
    api = as_user(node, "alice", secret=secret)
    code = (await api.route("T")).status.code
    await api.close()
    codes = {int(Code.UNAUTHORIZED): REFUSED, int(Code.TOO_MANY_REQUESTS): WAITS}
    return codes.get(code, SERVED)


async def by_remoting(node: Node, secret: str) -> str:
    async with connected(node, sign=signs("alice", secret)) as client:
        answer = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    codes = {int(ResponseCode.NO_PERMISSION): REFUSED, int(ResponseCode.SYSTEM_BUSY): WAITS}
    return codes.get(answer.code, SERVED)


TRIES = {"native": by_native, "rocketmq": by_grpc, "remoting": by_remoting}


@pytest.mark.parametrize("protocol", TRIES)
async def test_wrong_ones_of_a_protocol_lock_a_user_out_of_all_of_them(
    node: Node, protocol: str, tmp_path: Path
) -> None:
    clock, wrong = Stopped(node), TRIES[protocol]
    for number in range(FREE):
        assert await wrong(node, f"guess {number}") == REFUSED
    assert await wrong(node, "one more") == WAITS
    for attempt in TRIES.values():
        assert await attempt(node, RIGHT) == WAITS
    assert (clock.lockout.failures, clock.lockout.refused) == (FREE, 4)
    assert broker_of(node).status()["logins_locked_out"] == 1
    log = tmp_path / "audit.log"
    await until(lambda: '"Login"' in log.read_text())
    rows = [
        row for row in map(json.loads, log.read_text().splitlines()) if row["method"] == "Login"
    ]
    assert [(row["user"], row["source"], row["resource"], row["decision"]) for row in rows] == [
        ("", "127.0.0.1", "User:alice", "denied")  # nobody has proved to be her
    ]
    clock.now += FAILURE_MS
    assert await wrong(node, "at last") == REFUSED
    assert await wrong(node, RIGHT) == WAITS
    clock.now += 2 * FAILURE_MS
    for attempt in TRIES.values():
        assert await attempt(node, RIGHT) == SERVED


async def test_logins_of_a_locked_out_user_are_no_warnings(node: Node) -> None:
    """Who guesses on does not fill the log."""
    Stopped(node)
    for number in range(FREE):
        assert await by_native(node, f"guess {number}") == REFUSED
    with capture_logs() as logs:
        for attempt in TRIES.values():
            assert await attempt(node, RIGHT) == WAITS
    levels = [row["log_level"] for row in logs if "too many logins" in str(row.get("reason"))]
    assert levels == ["debug"] * len(TRIES)


async def test_a_wrong_password_that_is_repeated_locks_nobody_out(node: Node) -> None:
    """A program with an old password beside others of its address and user."""
    Stopped(node)
    for _ in range(2 * FREE):
        assert await by_native(node, "old") == REFUSED
    assert await by_native(node, RIGHT) == SERVED


async def test_open_connections_go_on_while_others_guess(node: Node) -> None:
    Stopped(node)
    api = as_user(node, "alice")
    async with (
        connected(node, sign=signs("alice")) as remoting,
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10, user="alice", password=RIGHT) as client,
    ):
        await client.access.who_am_i()
        assert (await remoting.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        before = (await api.route("T")).status.code
        assert before not in (Code.UNAUTHORIZED, Code.TOO_MANY_REQUESTS)
        for number in range(FREE):
            assert await by_remoting(node, f"guess {number}") == REFUSED
        assert await by_remoting(node, RIGHT) == WAITS
        await client.access.who_am_i()
        assert (await remoting.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        assert (await api.route("T")).status.code == before


async def test_one_pair_of_keys_is_guarded_as_users_are(start_node: StartNode) -> None:
    node = await start_node(
        rocketmq={"access_key": "alice", "secret_key": RIGHT},
        remoting={"listen": free_endpoint()},
    )
    clock = Stopped(node)
    for number in range(FREE // 2):
        assert await by_remoting(node, f"guess {number}") == REFUSED
        assert await by_grpc(node, f"guess {number}") == REFUSED
    for attempt in (by_remoting, by_grpc):
        assert await attempt(node, RIGHT) == WAITS
    clock.now += FAILURE_MS
    assert await by_remoting(node, RIGHT) == SERVED
    assert await by_grpc(node, RIGHT) == SERVED
