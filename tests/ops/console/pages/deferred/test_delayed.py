"""The page of delayed messages, their path and their recall, at real nodes."""

import asyncio
import re

import duolog
import pytest

from duolog_server.node.api.waiting import delayed as pages
from tests.node.api.waiting.test_delayed import waiting
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import StartNode
from tests.ops.console.test_actions import act, form_of
from tests.ops.console.test_app import (
    ORIGIN,
    TYPED,
    as_boss,
    browser,
    read,
    sentence,
)


def links(page: str, text: str) -> list[str]:
    """Where links of a text lead."""
    found = re.findall(rf'<a [^>]*href="([^"]+)"[^>]*>{text}', page)
    return [link.replace("&amp;", "&") for link in found]


async def test_what_waits_is_shown_and_recalled(start_node: StartNode) -> None:
    node = await start_node(message_delay_level="1h 2h")
    endpoint = f"127.0.0.1:{node.port}"
    async with (
        duolog.Client(endpoint, timeout=10) as client,
        client.producer() as producer,
        browser(endpoint) as at,
    ):
        assert sentence(await read(at, "/waiting")) == "No message waits for its time."
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("U", 1)
        receipt = await producer.send("T", b"early", delay=600, keys=[TYPED.replace(" ", "/")])
        await producer.send("T", b"level", delay_level=1)
        await waiting(client, 2)
        page = await read(at, "/waiting")
        assert sentence(page) == "2 messages wait for their time."
        assert "<script>alert" not in page
        assert page.index(receipt.unique_key) < page.index(">level 1<")
        assert "duolog msg delayed" in page
        assert sentence(await read(at, "/waiting?topic=U")) == (
            "2 messages wait for their time. None of U is on this page."
        )
        await read(at, "/waiting?topic=none", 404)
        await read(at, "/waiting?after=nonsense", 400)
        (way,) = links(page, receipt.unique_key)
        path = await read(at, way)
        assert ">delayed</td>" in path
        assert "not due yet" in path
        (recall,) = links(page, "Recall")
        assert receipt.unique_key in await read(at, recall)
        await read(at, recall.replace(receipt.unique_key, "0" * 32), 404)
        path, _, query = recall.partition("?")
        wrong = {**await form_of(at, recall), "confirm": "U"}
        assert (await at.post(path, data=wrong, headers=ORIGIN)).status_code == 400
        assert (await client.admin.delayed_page()).waiting == 2
        told = await act(at, path, f"?{query}", confirm="T")
        assert told == f"Message {receipt.unique_key} was recalled."
        assert (await client.admin.delayed_page()).waiting == 1
        await read(at, recall, 404)
        for worse in ("due=x", "due=1&place=nowhere&key=k", "due=0&place=broker-a/0/1"):
            await read(at, f"{path}?{worse}", 400)


async def test_pages_lead_on_though_none_is_of_the_topic(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "EXAMINED_MAX", 2)
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with (
        duolog.Client(endpoint, timeout=10) as client,
        client.producer() as producer,
        browser(endpoint) as at,
    ):
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("U", 1)
        for number in range(14):
            await producer.send("U" if number == 13 else "T", b"x", delay=1000 + number)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.admin.delayed_page()).waiting != 14:
                await asyncio.sleep(0.01)
        page = await read(at, "/waiting?topic=U")
        assert sentence(page).endswith("None of U is among the 10 looked at: see the next page.")
        (following,) = links(page, "Next page")
        assert "/topics/U/way" in await read(at, following)


async def test_a_user_sees_and_recalls_what_it_may(guarded: str) -> None:
    async with (
        browser(guarded, loopback=False) as at,
        as_boss(guarded) as client,
        client.producer() as producer,
    ):
        await client.admin.create_topic("secret", 1)
        await producer.send("secret", b"x", delay=3600)
        (row,) = (await waiting(client, 1)).rows
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        page = await read(at, "/waiting")
        assert row.unique_key not in page
        assert sentence(page) == (
            "Messages that wait for their time, of topics that you may see. "
            "None that you may see is on this page."
        )
        await read(at, "/waiting?topic=secret", 403)
        form = await form_of(at, "/messages/stop")
        fields = {"due": str(row.due_ms), "place": "broker-a/0/0", "key": row.unique_key}
        answer = await at.post(
            "/topics/secret/recall", data={**form, **fields, "confirm": "secret"}, headers=ORIGIN
        )
        assert answer.status_code in (403, 404)
        assert (await client.admin.delayed_page()).waiting == 1
