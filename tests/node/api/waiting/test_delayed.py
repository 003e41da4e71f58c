"""Pages of delayed messages and their recall, at real nodes."""

import asyncio
import json
import time
from pathlib import Path

import duolog
import pytest
from duolog import DelayedMessage, DelayedPage

from duolog_server.node.api.waiting import delayed
from duolog_server.node.deferred.delayservice import TIMER_TOPIC
from duolog_server.serve.server import Node
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.metadata import AUDIT_TOPIC
from tests.keyfiles import access_files
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import StartNode

LEVELS = {"message_delay_level": "1h 2h"}
HOUR = 3_600_000


async def client_of(node: Node, user: str = "") -> duolog.Client:
    endpoint = f"127.0.0.1:{node.port}"
    return duolog.Client(endpoint, timeout=10, user=user, password="pw" if user else "")


async def waiting(client: duolog.Client, count: int, topic: str = "") -> DelayedPage:
    """The first page, once so many wait: they are read some milliseconds after they were stored."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len((page := await client.admin.delayed_page(topic)).rows) < count:
            await asyncio.sleep(0.01)
    return page


async def pages(client: duolog.Client, limit: int, topic: str = "") -> list[DelayedMessage]:
    found: list[DelayedMessage] = []
    after = ""
    while True:
        page = await client.admin.delayed_page(topic, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += page.rows
        after = page.next
        if not after:
            return found


async def test_what_waits_is_listed_by_time(start_node: StartNode) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        for topic in ("T", "U"):
            await client.admin.create_topic(topic, 1)
        assert await client.admin.delayed_page() == DelayedPage((), "", 0, 0, 0, 0)
        await producer.send("T", b"level", delay_level=2, key="k", tags="A")
        await producer.send("U", b"late!", delay=2 * 86_400)
        sent_ms = time.time() * 1000
        receipt = await producer.send("T", b"soon", delay=600, keys=["a", "b"])
        answered_ms = time.time() * 1000
        await producer.send("T", b"level", delay_level=1)
        page = await waiting(client, 4)
        soon, one, two, late = page.rows
        assert [row.topic for row in page.rows] == ["T", "T", "T", "U"]
        assert (page.waiting, page.examined, page.next) == (4, 4, "")
        assert (page.first_due_ms, page.last_due_ms) == (soon.due_ms, late.due_ms)
        assert (soon.waits_in, soon.queue_id, soon.level) == (TIMER_TOPIC, 0, 0)
        assert (soon.unique_key, soon.keys, soon.size) == (receipt.unique_key, "a b", 4)
        assert sent_ms <= soon.due_ms - 600_000 + 1
        assert soon.due_ms - 600_000 <= answered_ms + 10, "rounded up"
        assert (two.waits_in, two.queue_id, two.level) == (SCHEDULE_TOPIC, 1, 2)
        assert (two.keys, two.tags, one.level) == ("k", "A", 1)
        assert abs(two.due_ms - two.stored_ms - 2 * HOUR) < 1000
        for limit in (1, 2, 3):
            assert await pages(client, limit) == list(page.rows)
        assert await pages(client, 2, "U") == [late]
        with pytest.raises(duolog.UnknownTopic):
            await client.admin.delayed_page("none")
        for wrong in ("x", "broker-a=1", "broker-a=1/x/3"):
            with pytest.raises(duolog.BadRequest):
                await client.admin.delayed_page(after=wrong)
        for limit in (0, 1001):
            with pytest.raises(duolog.BadRequest):
                await client.admin.delayed_page(limit=limit)


async def test_a_page_looks_at_few_and_says_where_to_go_on(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "EXAMINED_MAX", 5)
    monkeypatch.setattr(delayed, "AT_ONCE", 2)
    node = await start_node()
    async with await client_of(node) as client, client.producer() as producer:
        for topic in ("T", "U"):
            await client.admin.create_topic(topic, 1)
        for number in range(12):
            await producer.send("U" if number == 11 else "T", b"x", delay=1000 + number)
        await waiting(client, 5)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.admin.delayed_page()).waiting != 12:
                await asyncio.sleep(0.01)
        page = await client.admin.delayed_page("U")
        assert (page.rows, page.examined) == ((), 5)
        assert page.next
        assert [row.topic for row in await pages(client, 3, "U")] == ["U"]
        assert len(await pages(client, 100)) == 12


async def test_many_recalled_messages_do_not_hold_a_page_up(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "LOOKS_MAX", 2)
    monkeypatch.setattr(delayed, "AT_ONCE", 1)
    node = await start_node()
    async with await client_of(node) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        for number in range(6):
            await producer.send("T", b"x", delay=1000 + number)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.admin.delayed_page()).waiting != 6:
                await asyncio.sleep(0.01)
        rows = await pages(client, 10)
        assert len(rows) == 6
        for row in rows[:4]:
            await client.admin.recall_delayed("T", row.queue_offset, row.unique_key)
        page = await client.admin.delayed_page()
        assert page.rows == ()
        assert page.next
        assert await pages(client, 10) == rows[4:]


async def test_one_is_recalled_and_never_delivered(start_node: StartNode) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"x", delay=3600)
        await producer.send("T", b"y", delay=3600)
        (row, other) = (await waiting(client, 2)).rows
        for wrong in (("U", row.queue_offset, row.unique_key), ("T", row.queue_offset, "other")):
            with pytest.raises(duolog.NoSuchMessage):
                await client.admin.recall_delayed(*wrong)
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.recall_delayed("T", 99, row.unique_key)
        assert (await client.admin.delayed_page()).waiting == 2
        await client.admin.recall_delayed("T", row.queue_offset, row.unique_key, group="broker-a")
        assert (await client.admin.delayed_page()).rows == (other,)
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.recall_delayed("T", row.queue_offset, row.unique_key)


async def test_a_user_sees_and_recalls_what_it_may(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"), audit={"topic": True})
    async with await client_of(node, "root") as root, root.producer() as producer:
        await root.access.create_user("root", "pw", is_super=True)
        await root.access.create_user("reader", "pw")
        entry = {"resource": "Topic:T", "actions": ["Sub", "List"], "decision": "Allow"}
        rights = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
        await root.access.set_rights("reader", json.dumps(rights))
        for topic in ("T", "U"):
            await root.admin.create_topic(topic, 1)
            await producer.send(topic, b"x", delay=3600 if topic == "T" else 1800)
        _, mine = (await waiting(root, 2)).rows
        async with await client_of(node, "reader") as reader:
            page = await reader.admin.delayed_page()
            assert page == DelayedPage((mine,), "")
            assert (await reader.admin.delayed_page(limit=1)).rows == (mine,)
            with pytest.raises(duolog.NoPermission):
                await reader.admin.delayed_page("U")
            with pytest.raises(duolog.NoPermission):
                await reader.admin.recall_delayed("T", mine.queue_offset, mine.unique_key)
        entry["actions"] = ["List"]
        await root.access.set_rights("reader", json.dumps(rights))
        async with await client_of(node, "reader") as lister:
            (row,) = (await lister.admin.delayed_page("T")).rows
            assert (row.unique_key, row.due_ms) == ("", mine.due_ms)
        await root.admin.recall_delayed("T", mine.queue_offset, mine.unique_key)
        async with asyncio.timeout(WAIT_SECONDS):
            while b"Admin/RecallDelayed" not in b"".join(await noted(root)):
                await asyncio.sleep(0.01)


async def noted(client: duolog.Client) -> list[bytes]:
    """The audit log."""
    return [one.body for one in await client.pull(AUDIT_TOPIC, 0, 0)]
