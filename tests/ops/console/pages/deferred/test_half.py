"""The page of half messages, and decisions on them, at real nodes."""

from pathlib import Path

import duolog
import pytest

from duolog_server.ops.console.pages import waiting as half
from duolog_server.ops.console.pages import waiting as waiting_pages
from duolog_server.ops.console.pages.lists import Pages
from duolog_server.ops.console.view.render import body
from duolog_server.ops.console.view.visits import Shown
from tests.keyfiles import access_files
from tests.node.api.waiting.test_halves import PATIENT, send_halves, waiting
from tests.nodefixtures import StartNode
from tests.ops.console.pages.deferred.test_delayed import links
from tests.ops.console.test_actions import act, form_of
from tests.ops.console.test_app import ORIGIN, as_boss, browser, make_users, read, sentence

BASE = "/waiting/half/broker-a"


async def test_half_messages_are_shown_and_decided_on(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_pages, "ROWS", 2)
    node = await start_node(transactions=PATIENT)
    endpoint = f"127.0.0.1:{node.port}"
    group = "P<script>alert(1)</script>"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("U", 1)
        await send_halves(client, "T", 3, group)
        await waiting(client, 3)
        page = await read(at, "/waiting/half")
        assert sentence(page) == "3 half messages wait for a decision."
        assert "<script>alert" not in page
        assert page.count(">Commit</a>") == 2
        (following,) = links(page, "Next page")
        assert (await read(at, following)).count(">Commit</a>") == 1
        assert "None of U is on this page." in sentence(await read(at, "/waiting/half?topic=U"))
        await read(at, "/waiting/half?topic=none", 404)
        await read(at, "/waiting/half?after=broker-a%3Dx", 400)
        key = (await client.admin.half(0, group="broker-a")).unique_key
        (way,) = links(page, key)
        assert "not committed" in await read(at, way)
        asked = await read(at, f"{BASE}/0?decision=commit")
        assert "The decision is final" in sentence(asked)
        assert key in asked
        wrong = {**await form_of(at, f"{BASE}/0?decision=commit"), "confirm": "U"}
        assert (await at.post(f"{BASE}/0", data=wrong, headers=ORIGIN)).status_code == 400
        assert list(await client.pull("T", 0, 0)) == []
        told = await act(at, f"{BASE}/0", "?decision=commit", confirm="T")
        assert told == "Half message broker-a/0/0 of T was committed."
        assert [one.unique_key for one in await client.pull("T", 0, 0)] == [key]
        told = await act(at, f"{BASE}/1", "?decision=rollback", confirm="T")
        assert told == "Half message broker-a/0/1 of T was rolled back."
        assert (await client.admin.halves_page()).waiting == 1
        assert len(await client.pull("T", 0, 0)) == 1
        for path, status in (
            (f"{BASE}/0?decision=commit", 404),
            (f"{BASE}/2?decision=maybe", 400),
            (f"{BASE}/2", 400),
            (f"{BASE}/x?decision=commit", 400),
            (f"{BASE}/{1 << 63}?decision=commit", 400),
        ):
            await read(at, path, status)


def test_a_half_message_is_shown_at_the_place_that_names_it() -> None:
    checked = duolog.HalfMessage("T", "P", 3, 9, 0, 1, 0, 0, "", "", "", "broker-a")
    facts = {"sentence": "", "topic": "", "checks_max": 0, "pages": Pages()}
    page = body(Shown("half.html", "Half messages", {**facts, "rows": [half._half_row(checked)]}))
    assert "broker-a/0/3" in page
    assert "broker-a/0/9" not in page


async def test_a_user_decides_only_on_what_it_may(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"), transactions=PATIENT)
    endpoint = f"127.0.0.1:{node.port}"
    await make_users(endpoint)
    async with browser(endpoint, loopback=False) as at, as_boss(endpoint) as client:
        await client.admin.create_topic("secret", 1)
        await send_halves(client, "secret", 1)
        (row,) = (await waiting(client, 1)).rows
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        page = await read(at, "/waiting/half")
        assert row.unique_key not in page
        assert "secret" not in page.replace("secret-of-alice", "").partition("<main")[2]
        await read(at, "/waiting/half?topic=secret", 403)
        form = await form_of(at, "/messages/stop")
        fields = {**form, "decision": "commit", "confirm": "secret"}
        answer = await at.post(f"{BASE}/0", data=fields, headers=ORIGIN)
        assert answer.status_code in (403, 404)
        assert (await client.admin.halves_page()).waiting == 1
