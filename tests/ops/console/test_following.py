"""Pages that follow something, and those for super users."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duolog
import httpx
import pytest

from duolog_server.ops.console.pages import tail as module
from duolog_server.ops.console.pages.tail import tail
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.visits import Visit
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.ops.console.test_actions import act
from tests.ops.console.test_app import ORIGIN, as_boss, browser, make_users, read, sentence


async def test_a_tail_shows_what_comes_and_counts_the_rest(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    node = await start_node()
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.producer() as producer,
    ):
        await client.admin.create_topic("T", 2)
        await producer.send("T", b"before")
        memory: dict[str, object] = {}
        visit = partial(Visit, client, (), {"topic": "T"}, rates=Rates(), memory=memory)
        first = await tail(visit(query={}, now=10.0))
        assert first.facts["sentence"] == "The newest messages; none has arrived since."
        assert [row.line for row in first.facts["rows"]] == ["before"]  # type: ignore[attr-defined]
        for number in range(8):
            await producer.send("T", b"%d" % number, tags="odd" if number % 2 else "even")
        shown = await tail(visit(query={}, now=12.0))
        assert shown.facts["sentence"] == "8 messages arrived, 4.0/s; 3 shown."
        assert [row.line for row in shown.facts["rows"]] == ["7", "6", "5", "before"]  # type: ignore[attr-defined]
        again = await tail(visit(query={}, now=13.0))
        assert [row.line for row in again.facts["rows"]] == ["7", "6", "5", "before"]  # type: ignore[attr-defined]
        await producer.send("T", b"x", tags="odd")
        await producer.send("T", b"y", tags="even")
        filtered = await tail(visit(query={"q": "eve"}, now=14.0))
        assert [row.line for row in filtered.facts["rows"]] == ["y", "7", "6", "5", "before"]  # type: ignore[attr-defined]
        other = await tail(Visit(client, (), {"topic": "T"}, {}, 15.0, Rates()))
        assert "none has arrived" in other.facts["sentence"], "each viewer begins anew"  # type: ignore[operator]
        assert [row.line for row in other.facts["rows"]] == ["y", "x", "7"]  # type: ignore[attr-defined]
        topics = client.admin.topics
        monkeypatch.setattr(client.admin, "topics", partial(without_queues, topics))
        await tail(visit(query={}, now=14.0))
        monkeypatch.setattr(client.admin, "topics", topics)
        back = await tail(visit(query={}, now=14.5))
        assert back.facts["sentence"] == "10 messages arrived, 2.2/s; 4 shown.", "none again"
        with pytest.raises(duolog.UnknownTopic):
            await tail(Visit(client, (), {"topic": "none"}, {}, 15.0, Rates()))


async def test_a_tail_begins_with_the_newest_message_where_older_ones_are_deleted(
    single: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull below the first message of a queue finds none."""
    await producer.send_batch("T", [b"0", b"1", b"2", b"3"], queue_id=0)
    topics, pull, begun = single.admin.topics, single.pull, []

    async def trimmed(*words: Any, **more: Any) -> list[duolog.TopicDescription]:
        parts = await topics(*words, **more)
        stats = (replace(parts[0].stats[0], min_offset=2),)
        return [replace(parts[0], stats=stats)]

    async def noted(topic: str, queue_id: int, offset: int, **more: Any) -> Any:
        begun.append(offset)
        return await pull(topic, queue_id, offset, **more)

    monkeypatch.setattr(single.admin, "topics", trimmed)
    monkeypatch.setattr(single, "pull", noted)
    shown = await tail(Visit(single, (), {"topic": "T"}, {}, 1.0, Rates()))
    assert [row.line for row in shown.facts["rows"]] == ["3", "2"]  # type: ignore[attr-defined]
    assert begun == [2]


async def without_queues(topics: Any, *words: Any, **more: Any) -> list[duolog.TopicDescription]:
    """What is told of a topic while the replica group is away that holds its queues."""
    return [replace(part, stats=()) for part in await topics(*words, **more)]


async def test_dead_letters_are_shown_and_sent_again(
    single: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    await single.admin.put_group("g", retry_times=0)
    assert sentence(await read(at, "/groups/g/dead")) == "No dead letter is kept."
    await producer.send("T", b"poison")
    async with single.consumer("g", "T") as consumer:
        message = await consumer.get(10.0)
        assert message is not None
        await consumer.send_back(message)
        await consumer.commit()
    assert "1 dead letter</a>" in await read(at, "/groups/g")
    page = await read(at, "/topics")
    assert (sentence(page), "%DLQ%" in page) == ("1 topic.", False)
    hidden = re.search(r'href="([^"]+)">Show \d system topics?<', page)
    assert hidden is not None
    assert ">%DLQ%g</a>" in await read(at, hidden[1])
    assert ">%DLQ%g</a>" in await read(at, "/topics?q=dlq")
    page = await read(at, "/groups/g/dead")
    assert sentence(page) == "1 dead letter."
    assert ">poison</td>" in page
    link = re.search(r'<a href="(/topics/[^"]+/0/0\?[^"]+)">', page)
    assert link is not None
    assert ">poison</pre>" in await read(at, link[1])
    told = await act(at, "/groups/g/redeliver", confirm="g", count="10")
    assert told == "1 dead letter sent again."
    assert sentence(await read(at, "/topics/T")) == "2 messages are kept in 1 queue."
    again = await read(at, "/groups/g/redeliver")
    assert "All dead letters were sent again this way" in sentence(again), "each once"
    assert 'class="action"' not in again


async def test_super_users_see_who_may_what_and_what_was_done(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"), audit={"topic": True})
    endpoint = f"127.0.0.1:{node.port}"
    await make_users(endpoint)
    async with browser(endpoint, loopback=False) as at, as_boss(endpoint) as client:
        await client.admin.create_topic("orders", 1)
        boss, alice = (
            {"user": name, "password": f"secret-of-{name}"} for name in ("boss", "alice")
        )
        await at.post("/login", data=boss, headers=ORIGIN)
        assert sentence(await read(at, "/rights")) == "2 users."
        page = await read(at, "/rights?action=Pub&resource=Topic:orders")
        assert sentence(page) == "1 user may Pub Topic:orders."
        assert "allowed: a super user may do everything" in page
        assert "duolog acl who Pub Topic:orders" in page
        entry = '{"resource": "Topic:ord*", "actions": ["Pub"], "decision": "Allow"}'
        policies = f'{{"policies": [{{"policyType": "Custom", "entries": [{entry}]}}]}}'
        await client.access.set_rights("alice", policies)
        page = await read(at, "/rights?action=Pub&resource=orders")
        assert sentence(page) == "2 users may Pub Topic:orders."
        assert "allowed by Custom entry Topic:ord* Pub" in page
        page = await read(at, "/rights?user=alice&action=Sub&resource=orders&source=10.0.0.7")
        assert sentence(page) == (
            "alice may not Sub Topic:orders: denied: no entry matches Sub on Topic:orders from "
            "10.0.0.7."
        )
        assert "duolog acl test alice Sub Topic:orders --source 10.0.0.7" in page
        page = await read(at, "/rights?user=alice&action=Pub&resource=orders")
        decided = r'<td>Custom</td><td><span class="pill ok">allow</span></td><td>yes</td>'
        assert re.search(rf">Topic:ord\* Pub</th>{decided}", page)
        page = await read(at, "/rights?user=alice")
        assert (sentence(page), "duolog acl show alice" in page) == ("The rights of alice.", True)
        assert sentence(await read(at, "/rights?q=ALI")) == "1 user whose names contain “ALI”."
        await read(at, "/rights?action=Pub&resource=Queue:x", 400)
        await read(at, "/rights?user=nobody", 400)
        page = await read(at, "/audit")
        assert "Topic:orders" in page
        assert ">duolog audit</code>" in page
        page = await read(at, "/audit?action=createtopic&user=boss&decision=allowed")
        assert "Topic:orders" in page
        assert "1 entry found among the newest" in sentence(page)
        assert "duolog audit --by boss --action createtopic --decision allowed" in page
        assert "0 entries found" in sentence(await read(at, "/audit?user=nobody"))
        assert sentence(await read(at, "/audit?before=1h")) == "No earlier entries."
        for wrong in ("decision=maybe", "before=soon", "from=broker-a:x"):
            await read(at, f"/audit?{wrong}", 400)
        at.cookies.clear()
        await at.post("/login", data=alice, headers=ORIGIN)
        await read(at, "/rights", 403)
        assert "orders" not in (await at.get("/audit")).text
