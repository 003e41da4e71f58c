"""What is in flight when a running node is backed up, and what a restored one makes of it."""

from functools import partial
from pathlib import Path

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.ha import identity
from duolog_server.serve.server import Node
from duolog_server.store.backup import Wanted, backup
from duolog_server.store.restore import restore
from tests.compat.grpc.api import Api
from tests.compat.grpc.test_lite import send as send_lite
from tests.compat.grpc.test_lite import sync, take
from tests.compat.grpc.test_transactions import COMMIT, PATIENT, ROLLBACK, end, half
from tests.compat.grpc.users import Users, as_user, with_users
from tests.node.replicas import broker_of, take_checks
from tests.nodefixtures import StartNode
from tests.until import until

LONG_MS = 600_000
BODIES = {b"%d" % number for number in range(10)}
DONE = {b"1", b"3", b"5"}


async def backed_up(node: Node, target: Path, base: Path | None = None) -> int:
    """Back up what was confirmed; the node's clock before the next record."""
    broker = broker_of(node)
    await until(lambda: not broker.pop._dirty and not broker.pop._saving)
    await broker.metadata.save()
    backup(node.config.node.data, target, Wanted(lambda: broker.store.confirm_offset, base))
    now = int(broker.times.wall_ms())
    await until(lambda: broker.times.wall_ms() > now)
    return now


async def bodies_by_handle(api: Api, count: int, group: str = "g") -> dict[bytes, str]:
    """Messages, each with a lease that does not end."""
    found: dict[bytes, str] = {}

    async def has_all() -> bool:
        more = await api.receive(group, invisible_ms=LONG_MS, poll_ms=0)
        assert not found.keys() & set(more.bodies)
        found.update(zip(more.bodies, more.handles, strict=True))
        return len(found) >= count

    await until(has_all)
    return found


@pytest.mark.parametrize("is_cut", [False, True])
async def test_leases_half_messages_and_lite_topics_go_on_where_they_were(
    tmp_path: Path, start_node: StartNode, is_cut: bool
) -> None:
    """is_cut: the backup has more, and is restored up to a time."""
    node = take_checks(await start_node(transactions=PATIENT))
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.producer() as p,
    ):
        for topic, kind in (("T", ""), ("P", "LITE")):
            await client.admin.create_topic(topic, 1, message_type=kind)
        await client.admin.put_group("g")
        await client.admin.put_group("lite", lite_topic="P")
        await client.admin.put_quota("Topic:T", messages_in=1000)
        await p.send_batch("T", sorted(BODIES))
    api = Api(node)
    handles = await bodies_by_handle(api, len(BODIES))
    for body in DONE:
        assert (await api.ack("g", handles[body])).status.code == Code.OK
    assert await sync(api, "a", "b", group="lite") == Code.OK
    await send_lite(api, "a", b"a0", b"a1")
    await send_lite(api, "b", b"b0")
    assert await take(api, group="lite", count=1)
    committed, gone, left = [await half(api, body) for body in (b"committed", b"gone", b"left")]
    assert await end(api, committed, COMMIT) == await end(api, gone, ROLLBACK) == Code.OK
    made = tmp_path / "backup"
    now = await backed_up(node, made)
    if is_cut:
        for body in BODIES - DONE:
            assert (await api.ack("g", handles[body])).status.code == Code.OK
        assert await end(api, left, COMMIT) == Code.OK
        assert len(await take(api, group="lite")) == 2
        made = tmp_path / "later"
        await backed_up(node, made, tmp_path / "backup")
    restore(
        made,
        tmp_path / "again",
        now if is_cut else None,
        broker_of(node).times.wall_ms(),
        partial(identity.restored, incarnation=9),
    )
    again = take_checks(await start_node(tmp_path / "again", transactions=PATIENT))
    api = Api(again)
    wanted = BODIES - DONE | {b"committed"}
    assert set(await bodies_by_handle(api, len(wanted))) == wanted, "those that were out as well"
    assert await end(api, gone, COMMIT) != Code.OK
    assert await end(api, committed, COMMIT) == Code.OK, "a repeat"
    assert await end(api, left, COMMIT) == Code.OK
    assert set(await bodies_by_handle(api, 1)) == {b"left"}
    assert await sync(api, "a", "b", group="lite") == Code.OK
    assert len(await take(api, group="lite")) == 2
    async with duolog.Client(f"127.0.0.1:{again.port}", timeout=10) as client:
        assert [quota.messages_in for quota in await client.admin.quotas()] == [1000]


async def test_users_are_those_of_the_backup(tmp_path: Path, start_node: StartNode) -> None:
    access = with_users(tmp_path)
    node = await start_node(access=access)
    users = Users(node)
    await users.new("root", super=True)
    await users.new("alice", "Pub,Sub Topic:*")
    await users.new("bob", "Pub Topic:*")
    await backed_up(node, tmp_path / "backup")
    await users.put("alice", password="another")
    await users.new("eve", "Pub Topic:*")
    restore(tmp_path / "backup", tmp_path / "again", None, broker_of(node).times.wall_ms())
    again = await start_node(tmp_path / "again", access=access)
    for name, secret, code in (
        ("alice", "", Code.TOPIC_NOT_FOUND),
        ("bob", "", Code.TOPIC_NOT_FOUND),
        ("alice", "another", Code.UNAUTHORIZED),
        ("eve", "", Code.UNAUTHORIZED),
    ):
        api = as_user(again, name, secret=secret)
        assert (await api.route("T")).status.code == code, name
        await api.close()
