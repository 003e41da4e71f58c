"""Messages are searched by text and by SQL, with pages that follow the search."""

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

import duolog
import httpx
import pytest

from duolog_server.ops.console import searches as running
from duolog_server.ops.inspection.searching.search import Search
from duolog_server.serve.server import Node
from tests.ops.console.test_actions import form_of
from tests.ops.console.test_app import (
    HOSTILE,
    ORIGIN,
    as_boss,
    browser,
    read,
    sentence,
)

TEXT = "/messages?topic=T&by=text&value="
PROGRESS = re.compile(r'<progress[^>]* max="(\d+)" value="(\d+)"')


async def fill(client: duolog.Client) -> None:
    await client.admin.create_topic("T", 2)
    async with client.producer() as producer:
        for n in range(10):
            await producer.send("T", b"Duck %d" % n, properties={"n": str(n)}, queue_id=n % 2)


async def test_messages_are_found_by_their_text(
    bare_client: duolog.Client, at: httpx.AsyncClient
) -> None:
    await fill(bare_client)
    page = await read(at, f"{TEXT}Duck+7")
    assert sentence(page).startswith("1 message found among 10 messages, in ")
    assert ">1/3</a>" in page
    assert "duolog msg search T --text &#39;Duck 7&#39; --since 1h</code>" in page
    assert PROGRESS.findall(page) == [("10", "10")]
    assert "data-live" not in page
    for query, count in (
        ("text&value=duck", 0),
        ("text&value=duck&case=any", 10),
        ("text&value=Duck&until=1h&since=2h", 0),
        ("text&value=Duck&since=", 10),
        (f"sql&value={quote('n >= 8')}", 2),
    ):
        page = await read(at, f"/messages?topic=T&by={query}")
        assert sentence(page).startswith(f"{count} message"), query
    page = await read(at, f"/messages?topic=T&by=sql&value={quote('n > 1')}&order=oldest")
    assert [*re.findall(r">(\d/\d)</a>", page)][:3] == ["0/1", "1/1", "0/2"]
    assert "--sql &#39;n &gt; 1&#39; --since 1h --oldest-first" in page


WRONG: list[tuple[str, int]] = [
    ("topic=T&by=sql&value=n+%3E", 400),
    ("topic=&by=text&value=x", 400),
    ("topic=none&by=text&value=x", 404),
    ("topic=T&by=text&value=x&since=soon", 400),
    ("topic=T&by=text&value=x&since=1h&until=2h", 400),
    ("topic=T&by=text&value=x&order=up", 400),
    ("topic=T&by=text&value=x&case=none", 400),
    (f"topic=T&by=text&value={'x' * 1025}", 400),
]


async def test_wrong_searches_are_refused(
    bare_client: duolog.Client, at: httpx.AsyncClient
) -> None:
    await fill(bare_client)
    for query, status in WRONG:
        await read(at, f"/messages?{query}", status)
        await read(at, f"/messages?{query}", status)


async def test_hostile_searches_are_text(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", HOSTILE.encode())
        async with browser(endpoint) as at:
            page = await read(at, f"{TEXT}{quote(HOSTILE)}&since=1h")
            assert sentence(page).startswith("1 message found")
            stop = await read(at, f"/messages/stop?topic=T&by=text&value={quote(HOSTILE)}")
    for text in (page, stop):
        assert "<script>alert" not in text
        assert "<img" not in text


class Gate(asyncio.Event):
    """Searches read nothing before it is set. reached: by a search."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before all searches."""
    monkeypatch.setattr(running, "FIRST_SECONDS", 0.0)
    step, gate = Search._step, Gate()

    async def waits(self: Search[Any], *how: Any) -> None:
        gate.reached.set()
        await gate.wait()
        await step(self, *how)

    monkeypatch.setattr(Search, "_step", waits)
    return gate


async def press(at: httpx.AsyncClient, path: str) -> str:
    """Press the button beside the progress; what its answer leads to."""
    page = await read(at, path)
    action = re.search(r'<form class="progress" method="post" action="([^"]+)"', page)
    proof = re.search(r'name="form" value="([^"]+)"', page)
    assert action is not None
    assert proof is not None
    target = action[1].replace("&amp;", "&")
    answer = await at.post(target, data={"form": proof[1]}, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    location: str = answer.headers["location"]
    return location


async def test_a_search_is_stopped_and_made_again(
    bare_client: duolog.Client, at: httpx.AsyncClient, held: Gate
) -> None:
    await fill(bare_client)
    page = await read(at, f"{TEXT}Duck")
    assert "0 messages found so far among " in sentence(page)
    assert '<main id="main" data-live' in page
    assert ">Stop</button>" in page
    assert await press(at, f"{TEXT}Duck") == f"{TEXT}Duck"
    page = await read(at, f"{TEXT}Duck")
    assert sentence(page).endswith("It was stopped.")
    assert "data-live" not in page
    held.set()
    assert "It was stopped." in await read(at, f"{TEXT}Duck"), "its result is kept"
    assert await press(at, f"{TEXT}Duck") == f"{TEXT}Duck"
    async with asyncio.timeout(10):
        while ">Stop<" in (page := await read(at, f"{TEXT}Duck")):
            await asyncio.sleep(0.01)
    assert sentence(page).startswith("10 messages found among 10 messages")
    form = await form_of(at, "/messages/stop?topic=T")
    answer = await at.post("/messages/stop?topic=T", data={"form": "no"}, headers=ORIGIN)
    assert answer.status_code == 400
    answer = await at.post("/messages/stop?topic=T", data=form, headers=ORIGIN)
    assert answer.headers["location"] == "/messages?topic=T"


async def test_a_stream_follows_a_search_to_its_end(node: Node, held: Gate) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await fill(client)
        await read(at, f"{TEXT}Duck")
        held.set()
        answer = await at.get(f"{TEXT}Duck", headers={"accept": "text/event-stream"})
    assert "10 messages found among 10 messages" in answer.text
    assert answer.text.endswith("event: last\ndata:\n\n")


async def test_a_search_is_of_its_session_and_ends_with_it(guarded: str, held: Gate) -> None:
    boss = {"user": "boss", "password": "secret-of-boss"}
    async with as_boss(guarded) as client, browser(guarded, loopback=False) as at:
        await fill(client)
        await at.post("/login", data=boss, headers=ORIGIN)
        page = await read(at, f"{TEXT}Duck")
        assert "found so far" in sentence(page)
        searching = [one for one in asyncio.all_tasks() if "object _run at" in repr(one.get_coro())]
        assert len(searching) == 1
        async with asyncio.timeout(10):
            await held.reached.wait()
        proof = await form_of(at, "/create/topic")
        await at.post("/logout", data=proof, headers=ORIGIN)
        assert searching[0].done()
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        held.set()
        async with asyncio.timeout(10):
            while "user alice: denied" not in await read(at, f"{TEXT}Duck"):
                await asyncio.sleep(0.01)


async def test_what_was_found_is_not_shown_without_the_right_to_read_it(guarded: str) -> None:
    entries = [{"resource": "Topic:T", "actions": ["Sub"], "decision": "Allow"}]
    rights = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": entries}]}
    async with as_boss(guarded) as client, browser(guarded, loopback=False) as at:
        await fill(client)
        await client.access.set_rights("alice", json.dumps(rights))
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        for _ in range(2):
            assert "Duck 7" in await read(at, f"{TEXT}Duck")
        await client.access.set_rights("alice", "")
        assert "Duck 7" not in await read(at, f"{TEXT}Duck", 403)
