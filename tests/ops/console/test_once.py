"""A form that is sent twice does its work once, at real nodes."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import duolog
import httpx
import pytest

from duolog_server.ops.console import app as console
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.visits import Done, Visit
from duolog_server.serve.server import Node
from tests.nodefixtures import StartNode
from tests.ops.console.deadlines import PageDeadlines
from tests.ops.console.pages.deferred.test_dead import make_letters
from tests.ops.console.test_actions import form_of
from tests.ops.console.test_app import ORIGIN, browser, read, sentence

AGAIN = "This form was sent before, so nothing was done again. "


async def kept(client: duolog.Client, topic: str = "T") -> int:
    """Messages of a topic."""
    parts = await client.admin.topics([topic])
    return sum(queue.max_offset for part in parts for queue in part.stats)


async def told(client: httpx.AsyncClient, path: str) -> str:
    """What a page says was done."""
    found = re.search(r'class="told"[^>]*>\s*<span>([^<]*)</span>', await read(client, path))
    assert found is not None
    return found[1]


async def with_topic(client: duolog.Client) -> None:
    await client.admin.create_topic("T", 1)


async def with_message(client: duolog.Client) -> None:
    await with_topic(client)
    async with client.producer() as producer:
        await producer.send("T", b"body")


async def with_letter(client: duolog.Client) -> None:
    await make_letters(client, [b"dead"])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "ready", "came"),
    [
        ("/topics/T/send", {"body": "x", "confirm": "T"}, with_topic, 1),
        ("/topics/T/0/0/again", {"confirm": "T"}, with_message, 2),
        ("/groups/g/redeliver", {"confirm": "g"}, with_letter, 2),
        ("/groups/g/redeliver?letter:broker-a/0/0=on", {"confirm": "g"}, with_letter, 2),
    ],
)
async def test_a_message_is_stored_once(
    node: Node,
    together: bool,
    path: str,
    fields: dict[str, str],
    ready: Callable[[duolog.Client], Awaitable[None]],
    came: int,
) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as tab:
        await ready(client)
        form = {**await form_of(tab, path), **fields, "count": "1"}

        async def post() -> str:
            answer = await tab.post(path, data=form, headers=ORIGIN)
            assert answer.status_code == 303, answer.text
            return str(answer.headers["location"])

        if together:
            first, second = await asyncio.gather(post(), post())
            assert AGAIN not in await told(tab, second)
        else:
            first = await post()
            result = await told(tab, first)
            second = await post()
            assert await told(tab, second) == AGAIN + result
        assert first == second
        assert await kept(client) == came
        form = {**await form_of(tab, path), **fields, "count": "1"}
        await tab.post(path, data=form, headers=ORIGIN)
        further = 0 if path == "/groups/g/redeliver" else 1  # which sends each letter once
        assert await kept(client) == came + further


async def test_wrong_or_repeated_forms_create_nothing(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as tab:
        await with_topic(client)
        form = {**await form_of(tab, "/topics/T/send"), "body": "x"}
        for confirm, status in (("t", 400), ("", 400), ("T", 303), ("t", 303)):
            fields = {**form, "confirm": confirm}
            answer = await tab.post("/topics/T/send", data=fields, headers=ORIGIN)
            assert answer.status_code == status
        assert await kept(client) == 1
        fields = {"topic": "T", "queues": "1", "type": ""}
        form = {**await form_of(tab, at.TOPIC_CREATE), **fields}
        answer = await tab.post(at.TOPIC_CREATE, data=form, headers=ORIGIN)
        assert answer.status_code == 303
        await client.admin.delete_topic("T")
        answer = await tab.post(at.TOPIC_CREATE, data=form, headers=ORIGIN)
        assert answer.status_code == 303
        assert await client.admin.topics(["T"]) == []
    async with browser(f"127.0.0.1:{node.port}") as tab:
        answer = await tab.get(at.TOPIC_CREATE, headers={"accept": "text/event-stream"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert 'name="once"' in answer.text


async def test_an_action_that_takes_too_long_may_have_been_done_and_is_not_done_again(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines, calls = PageDeadlines(monkeypatch), 0

    async def hang(visit: Visit, form: object) -> Done:
        nonlocal calls
        calls += 1
        deadlines.come()
        await asyncio.Event().wait()
        raise AssertionError("never")

    slow = replace(console.ACTIONS[at.TOPIC_CREATE], do=hang)
    monkeypatch.setattr(console, "ACTIONS", {at.TOPIC_CREATE: slow})
    node = await start_node()
    async with browser(f"127.0.0.1:{node.port}") as tab:
        form = await form_of(tab, at.TOPIC_CREATE)
        answer = await tab.post(at.TOPIC_CREATE, data=form, headers=ORIGIN)
        assert answer.status_code == 503
        assert "<h1>Result unknown</h1>" in answer.text
        assert "it may or may not have been done" in sentence(answer.text)
        answer = await tab.post(f"{at.TOPIC_CREATE}?x=1", data=form, headers=ORIGIN)
        assert answer.status_code == 400
        assert "it may or may not have been done" in sentence(answer.text)
        assert f'<a href="{at.TOPIC_CREATE}?x=1">Open the page again</a>' in answer.text
        assert calls == 1
