"""The address of a viewer: the console vouches for it, the node goes by it, and notes it."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duolog
import grpc.aio
import httpx
import pytest
from duolog._errors import error_of
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.identity.access.lockout import FREE
from duolog_server.node.identity.access.secrets import derived, new_key, read_key
from duolog_server.node.identity.access.vouching import CONSOLE, VIEWER, Viewers, Vouching
from duolog_server.node.runtime.consoleprocess import ConsoleOptions
from duolog_server.ops.console.app import Console
from duolog_server.ops.console.http.security import VIEWER as SEEN
from duolog_server.ops.console.program import client_of, settings_of
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import ORIGIN, as_boss, make_users
from tests.until import until

CONSOLE_HOST, INSIDE, OUTSIDE = "127.0.0.1", "203.0.113.7", "198.51.100.9"
ALICE = {"user": "alice", "password": "secret-of-alice"}


def rights(*sources: str) -> str:
    entries = [
        {
            "resource": resource,
            "actions": ["All"],
            "sourceIps": list(sources),
            "decision": "Allow",
        }
        for resource in ("Topic:*", "Group:*", "Cluster:*")
    ]
    return json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]})


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    audit = {"file": tmp_path / "audit.log"}
    node = await start_node(access=access_files(tmp_path, "pw"), audit=audit)
    endpoint = f"127.0.0.1:{node.port}"
    await make_users(endpoint)
    async with as_boss(endpoint) as client:
        await client.access.set_rights("alice", rights(CONSOLE_HOST, INSIDE))
        await client.admin.create_topic("T", 1)
    return node


def vouching_of(node: Node) -> bytes:
    key_file = node.config.access.key_file
    assert key_file is not None
    return derived(read_key(key_file), CONSOLE)


@asynccontextmanager
async def seen_from(
    node: Node, address: str, vouching: str, origins: tuple[str, ...] = ()
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser with this address, at a console beside the node."""
    options = ConsoleOptions(
        (f"127.0.0.1:{node.port}",), "localhost", origins=origins, vouching=vouching
    )
    console = Console(settings_of(options, 8090), partial(client_of, options))
    transport = httpx.ASGITransport(console.app(), client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as at:
        try:
            yield at
        finally:
            await console.close()


def denied(tmp_path: Path) -> list[dict[str, Any]]:
    lines = (tmp_path / "audit.log").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["decision"] == "denied"]


async def test_a_viewer_may_through_the_console_what_its_own_address_may(
    node: Node, tmp_path: Path
) -> None:
    key = vouching_of(node).hex()
    async with seen_from(node, INSIDE, key) as at:
        assert (await at.post("/login", data=ALICE, headers=ORIGIN)).status_code == 303
        assert ">T</a>" in (await at.get("/topics")).text
        assert (await at.get("/topics/T")).status_code == 200
    async with seen_from(node, OUTSIDE, key) as at:
        assert (await at.post("/login", data=ALICE, headers=ORIGIN)).status_code == 303
        assert ">T</a>" not in (await at.get("/topics")).text
        assert (await at.get("/topics/T")).status_code != 200
    await until(lambda: any(row["user"] for row in denied(tmp_path)))
    found = {(row["user"], row["source"]) for row in denied(tmp_path)}
    assert found - {("", CONSOLE_HOST)} == {("alice", OUTSIDE)}  # before a login it asks as nobody


async def test_what_a_viewer_changes_is_noted_with_its_address(node: Node, tmp_path: Path) -> None:
    key = vouching_of(node).hex()
    options = ConsoleOptions((f"127.0.0.1:{node.port}",), "", vouching=key)
    token = SEEN.set(INSIDE)
    async with client_of(options, **ALICE) as client:
        await client.admin.create_topic("new", 1)
        await client.admin.put_group("g")
        async with client.producer() as producer:
            await producer.send("new", b"x")
    SEEN.reset(token)
    log = tmp_path / "audit.log"
    await until(lambda: "PutGroup" in log.read_text())
    rows = map(json.loads, log.read_text().splitlines())
    found = {row["method"]: row["source"] for row in rows if row["user"] == "alice"}
    assert found == {"Admin/CreateTopic": INSIDE, "Admin/PutGroup": INSIDE}


async def test_a_console_that_vouches_never_calls_over_frames(node: Node) -> None:
    """Not even where something of it calls for no viewer: later calls would name none."""
    key = vouching_of(node).hex()
    options = ConsoleOptions((f"127.0.0.1:{node.port}",), "", vouching=key)
    async with client_of(options, **ALICE) as client:
        await client.admin.create_topic("new", 1)
        assert client._router.seed._frames is None
        token = SEEN.set(OUTSIDE)
        with pytest.raises(duolog.NoPermission):
            await client.admin.create_topic("newer", 1)
        SEEN.reset(token)


async def test_an_address_that_is_vouched_for_gives_no_right_that_the_console_has_not(
    node: Node,
) -> None:
    async with as_boss(f"127.0.0.1:{node.port}") as client:
        await client.access.set_rights("alice", rights(INSIDE))
    async with seen_from(node, INSIDE, vouching_of(node).hex()) as at:
        await at.post("/login", data=ALICE, headers=ORIGIN)
        assert ">T</a>" not in (await at.get("/topics")).text


async def test_wrong_passwords_through_the_console_count_for_their_viewer(
    node: Node,
) -> None:
    key = vouching_of(node).hex()
    for number in range(FREE):
        async with seen_from(node, OUTSIDE, key) as at:  # a console that has just begun
            wrong = {**ALICE, "password": f"guess {number}"}
            assert (await at.post("/login", data=wrong, headers=ORIGIN)).status_code == 401
    async with seen_from(node, OUTSIDE, key) as at:
        answer = await at.post("/login", data=ALICE, headers=ORIGIN)
        assert answer.status_code == 503
        assert "too many logins from 198.51.100.9 failed" in answer.text
    async with seen_from(node, INSIDE, key) as at:
        assert (await at.post("/login", data=ALICE, headers=ORIGIN)).status_code == 303


async def test_behind_a_proxy_the_viewer_is_whom_the_proxy_has_seen(node: Node) -> None:
    own = "https://console.example.org"
    names = {"host": "console.example.org", "origin": own}
    async with seen_from(node, "127.0.0.1", vouching_of(node).hex(), (own,)) as at:
        for address, sees in ((INSIDE, True), (OUTSIDE, False)):
            headers = {**names, "x-forwarded-for": f"{INSIDE}, {address}"}
            answer = await at.post("/login", data=ALICE, headers=headers)
            cookie = answer.headers["set-cookie"].partition(";")[0]
            page = await at.get("/topics", headers={**headers, "cookie": cookie})
            assert (">T</a>" in page.text) is sees


async def refused(node: Node, headers: Mapping[str, str], **who: str) -> str:
    """The error of a call with these headers; empty: it was served."""
    user = {**ALICE, **who}
    word = base64.b64encode(f"{user['user']}:{user['password']}".encode()).decode()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        metadata = [("authorization", f"Basic {word}"), *headers.items()]
        try:
            await client._router.seed.admin.ListTopics(wire.ListTopicsRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return type(error_of(error)).__name__
    return ""


async def test_only_who_has_the_key_names_a_viewer(node: Node, tmp_path: Path) -> None:
    viewers = Viewers(Vouching(vouching_of(node)))
    ours = dict(viewers.told("alice", INSIDE))
    assert await refused(node, ours) == ""
    foreign = Viewers(Vouching(derived(new_key().encode()[:32], CONSOLE)))
    forged: list[Mapping[str, str]] = [
        {VIEWER: INSIDE},
        {**ours, VIEWER: OUTSIDE},
        dict(foreign.told("alice", INSIDE)),
        dict(viewers.told("boss", INSIDE)),
        dict(viewers.told("alice", "not an address")),
    ]
    for headers in forged:
        assert await refused(node, headers) == "Unauthenticated"
    assert await refused(node, {**ours, VIEWER: f" {INSIDE}"}) == "Unauthenticated"
    assert await refused(node, ours, user="boss", password="secret-of-boss") == "Unauthenticated"
    await until(lambda: len(denied(tmp_path)) > 0)
    assert {row["source"] for row in denied(tmp_path)} == {"127.0.0.1"}
    assert broker_of(node).lockout.failures == 0


async def test_a_console_without_the_key_is_judged_by_its_own_address(node: Node) -> None:
    async with seen_from(node, OUTSIDE, "") as at:
        await at.post("/login", data=ALICE, headers=ORIGIN)
        assert ">T</a>" in (await at.get("/topics")).text
    async with as_boss(f"127.0.0.1:{node.port}") as client:
        await client.access.set_rights("alice", rights(INSIDE))
    async with seen_from(node, INSIDE, "") as at:
        await at.post("/login", data=ALICE, headers=ORIGIN)
        assert ">T</a>" not in (await at.get("/topics")).text


def test_the_key_of_a_console_is_not_shown() -> None:
    options = ConsoleOptions(("a:1",), "h", vouching="ab" * 32)
    assert "abab" not in repr(options)
    assert ConsoleOptions.of_line(options.line()) == options
