"""The page of a group's dead letters, their redelivery and their export, at real nodes."""

import base64
import json
import re
from typing import Any
from urllib.parse import quote

import duolog
import httpx
import pytest

from duolog_server.ops.console.pages import deadletters as dead
from duolog_server.ops.console.pages import deadletters as redelivery
from duolog_server.ops.console.requests import pages as downloads
from duolog_server.ops.console.requests.pages import file_name
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.visits import FORM_BYTES
from duolog_server.ops.inspection.deadletters import letters as places
from duolog_server.ops.inspection.deadletters.letters import lines, selected
from duolog_server.serve.server import Node
from tests.nodefixtures import StartNode
from tests.ops.console.test_actions import act, form_of
from tests.ops.console.test_app import (
    HOSTILE,
    ORIGIN,
    TYPED,
    as_boss,
    browser,
    read,
    sentence,
)

EXPORT = "/groups/g/dead/export"


async def bury(client: duolog.Client, topic: str, count: int) -> None:
    """Group g gives up that many messages of a topic."""
    async with client.consumer("g", topic) as consumer:
        for _ in range(count):
            message = await consumer.get(10.0)
            assert message is not None
            await consumer.send_back(message)
        await consumer.commit()


async def make_letters(
    client: duolog.Client, bodies: list[bytes], topic: str = "T", **how: Any
) -> None:
    """Dead letters of group g, that were sent to a topic."""
    await client.admin.create_topic(topic, 1)
    await client.admin.put_group("g", retry_times=0)
    async with client.producer() as producer:
        for number, body in enumerate(bodies):
            await producer.send(topic, body, **{"keys": [f"k{number}"], **how})
    await bury(client, topic, len(bodies))


def names(page: str) -> list[str]:
    """The check boxes of a page."""
    return re.findall(r'name="(letter:[^"]+)"', page)


def linked(page: str, rel: str) -> str:
    found = re.search(rf'<a rel="{rel}" href="([^"]+)">', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


async def exported(at: httpx.AsyncClient, query: str = "") -> list[dict[str, object]]:
    answer = await at.get(EXPORT + query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_pages_lead_through_all_dead_letters_and_back(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "ROWS", 3)
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await make_letters(client, [b"%d" % number for number in range(8)])
        page = await read(at, "/groups/g/dead")
        assert sentence(page) == "8 dead letters; 1 to 3 are shown."
        assert 'rel="prev"' not in page
        boxes = [names(page)]
        while 'rel="next"' in page:
            page = await read(at, linked(page, "next"))
            boxes.append(names(page))
        assert sentence(page) == "8 dead letters; 7 to 8 are shown."
        assert [len(some) for some in boxes] == [3, 3, 2]
        assert len({name for some in boxes for name in some}) == 8
        assert "duolog group dead g --at broker-a/0/6" in page
        back = await read(at, linked(page, "prev"))
        assert names(back) == boxes[1]
        beyond = await read(at, "/groups/g/dead?at=broker-a/0/99")
        assert (sentence(beyond), names(beyond)) == ("8 dead letters.", [])
        assert names(await read(at, linked(beyond, "prev"))) == [*boxes[1][2:], *boxes[2]]
        for wrong in ("broker-a", "broker-a/x/1", f"a/0/{1 << 63}", "a/0/-1", HOSTILE):
            await read(at, f"/groups/g/dead?at={quote(wrong)}", 400)


async def test_what_is_selected_is_sent_again_and_nothing_else(
    bare_client: duolog.Client, at: httpx.AsyncClient
) -> None:
    await make_letters(bare_client, [b"a", b"b"])
    await make_letters(bare_client, [b"gone"], "U")
    await bare_client.admin.delete_topic("U")
    _, second, third = names(await read(at, "/groups/g/dead"))
    chosen = [second, third, "letter:broker-a/0/77"]
    some = "?selected=1&" + "&".join(f"{quote(name)}=on" for name in chosen)
    asked = await read(at, f"/groups/g/redeliver{some}")
    assert sentence(asked) == (
        "2 dead letters to 2 topics: every group there gets them. "
        "Of the selection: 1 no longer kept."
    )
    assert '<th scope="row">U</th><td class="n">1</td><td class="n">no</td>' in asked
    form = await form_of(at, f"/groups/g/redeliver{some}")
    answer = await at.post("/groups/g/redeliver", data={**form, "confirm": "h"}, headers=ORIGIN)
    assert answer.status_code == 400
    assert await bare_client.pull("T", 0, 2) is not None
    told = await act(at, "/groups/g/redeliver", some, confirm="g")
    assert told.startswith("1 dead letter sent again. 2 not sent: broker-a/0/2 to U: topic")
    assert told.endswith("; broker-a/0/77: it is no longer kept.")
    (copy,) = await bare_client.pull("T", 0, 2)
    assert (copy.body, copy.keys) == (b"b", ["k1"])
    assert copy.properties["REDELIVERED_FROM"] == "g/broker-a/0/1"
    again = await act(at, "/groups/g/redeliver", f"?{quote(second)}=on", confirm="g")
    assert again == "1 dead letter sent again.", "twice is what it was told to do"
    assert [one.body for one in await bare_client.pull("T", 0, 2)] == [b"b", b"b"]
    await bury(bare_client, "T", 2)
    page = await read(at, "/groups/g/dead")
    assert page.count(">a copy that failed again") == 2
    nothing = await at.get("/groups/g/redeliver?selected=1")
    assert sentence(nothing.text) == "no dead letter is selected."
    many = "&".join(f"letter:a/0/{number}=on" for number in range(redelivery.CHOSEN_MAX + 1))
    assert (await at.get(f"/groups/g/redeliver?{many}")).status_code == 400
    longest = f"{'a' * 127}/2147483647/{(1 << 63) - 1}"
    assert redelivery.CHOSEN_MAX * len(quote(f"{longest} ", safe="")) < FORM_BYTES


async def test_all_are_sent_once_and_one_that_cannot_be_keeps_no_other(
    bare_client: duolog.Client, at: httpx.AsyncClient
) -> None:
    await make_letters(bare_client, [b"gone"], "U")
    await make_letters(bare_client, [b"a", b"b", b"c"])
    await bare_client.admin.delete_topic("U")
    ask = await read(at, "/groups/g/redeliver")
    assert sentence(ask).startswith("4 dead letters not sent again this way yet.")
    cells = r'<th scope="row">(\w)</th><td class="n">(\d)</td><td class="n">(\w+)'
    rows = re.findall(cells, ask)
    assert rows == [("T", "3", "yes"), ("U", "1", "no")]
    told = await act(at, "/groups/g/redeliver", confirm="g", count="2")
    assert told.startswith("1 dead letter sent again. 1 not sent: broker-a/0/0 to U:")
    assert (await read(at, "/groups/g/dead")).count(">sent again</td>") == 2
    told = await act(at, "/groups/g/redeliver", confirm="g", count="1")
    assert told == "1 dead letter sent again."
    told = await act(at, "/groups/g/redeliver", confirm="g", count="10")
    assert told == "1 dead letter sent again."
    assert [one.body for one in await bare_client.pull("T", 0, 3)] == [b"a", b"b", b"c"]
    first = quote(names(await read(at, "/groups/g/dead"))[1])
    assert "1 sent again already" in sentence(await read(at, f"/groups/g/redeliver?{first}=on"))


async def test_a_message_with_words_of_the_node_is_sent_again(
    single: duolog.Client, at: httpx.AsyncClient
) -> None:
    await single.admin.put_group("g", retry_times=0)
    async with single.producer() as producer:
        await producer.send("T", b"timed", key="k", delay=0.05, properties={"own": "x"})
    await bury(single, "T", 1)
    told = await act(at, "/groups/g/redeliver", confirm="g", count="10")
    assert told == "1 dead letter sent again."
    (copy,) = await single.pull("T", 0, 1)
    assert (copy.keys, copy.properties["own"]) == (["k"], "x")
    assert "TIMER_DELIVER_MS" not in copy.properties


async def test_an_export_is_a_file_of_json_lines(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    bodies = [HOSTILE.encode(), b"\xff\x00", b"x" * 60_000]
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        assert (await at.get(EXPORT)).status_code == 404
        await make_letters(client, bodies)
        answer = await at.get(EXPORT)
        headers = answer.headers
        assert headers["content-type"].startswith("application/x-ndjson")
        assert headers["content-disposition"] == 'attachment; filename="dead-letters-g.jsonl"'
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "\x1b" not in answer.text, "it may be shown on a terminal"
        first, second, third = (json.loads(line) for line in answer.text.splitlines())
        assert first["body"].encode() == bodies[0]
        assert base64.b64decode(second["body_base64"]) == bodies[1]
        assert third["body"].encode() == bodies[2]
        assert (first["place"], first["topic"], first["keys"]) == ("broker-a/0/0", "T", ["k0"])
        assert first["properties"]["DLQ_ORIGIN_TOPIC"] == "T"
        assert first["attempts"] == 1
        name = quote(names(await read(at, "/groups/g/dead"))[1])
        assert await exported(at, f"?selected=1&{name}=on") == [second]
        assert (await at.get(f"{EXPORT}?selected=1")).status_code == 400


async def test_a_page_of_large_bodies_is_short(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PAGE_BYTES", 2500)
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await make_letters(client, [b"x" * 1000] * 3 + [b"x" * 9000])
        page = await read(at, "/groups/g/dead")
        assert sentence(page) == "4 dead letters; 1 to 2 are shown."
        page = await read(at, linked(page, "next"))
        assert sentence(page) == "4 dead letters; 3 to 3 are shown."
        page = await read(at, linked(page, "next"))
        assert sentence(page) == "4 dead letters; 4 to 4 are shown.", "one at least"


async def test_an_export_ends_with_its_session_and_says_so(
    bare_client: duolog.Client, at: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_letters(bare_client, [b"0", b"1", b"2"])
    monkeypatch.setattr(Viewers, "lasts", lambda viewers, session: False)
    first, last = await exported(at)
    assert first["place"] == "broker-a/0/0"
    assert last == {"stopped": "the session ended", "continue_at": ""}


async def test_an_export_over_its_bound_says_where_to_go_on(bare_client: duolog.Client) -> None:
    await make_letters(bare_client, [b"x" * 1000] * 4)
    found = [json.loads(one) async for one in lines(selected(bare_client, "g", []), bytes_max=3500)]
    assert [one.get("place") for one in found] == ["broker-a/0/0", "broker-a/0/1", None]
    assert found[-1] == {
        "stopped": "an export has at most 3500 bytes",
        "continue_at": "broker-a/0/2",
    }
    late = [one async for one in lines(selected(bare_client, "g", []), seconds_max=-1.0)]
    assert len(late) == 1, "its time is over before the first"


async def test_a_user_exports_only_what_it_may_read(guarded: str) -> None:
    async with browser(guarded, loopback=False) as at, as_boss(guarded) as client:
        await make_letters(client, [b"secret"])
        assert (await at.get(EXPORT)).headers["location"].startswith("/login")
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        for path in (EXPORT, "/groups/g/dead", f"{EXPORT}?letter:broker-a/0/0=on"):
            answer = await at.get(path)
            assert answer.status_code in (403, 404), path
            assert "secret" not in answer.text.partition("<main")[2]
        form = await form_of(at, "/messages/stop")
        for fields in ({"count": "10"}, {"letters": "broker-a/0/0"}):
            answer = await at.post(
                "/groups/g/redeliver", data={**form, **fields, "confirm": "g"}, headers=ORIGIN
            )
            assert answer.status_code in (403, 404), fields
        assert [one.body for one in await client.pull("T", 0, 0)] == [b"secret"]


async def test_downloads_are_few(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "DOWNLOADS_MAX", 0)
    node = await start_node()
    async with browser(f"127.0.0.1:{node.port}") as at:
        answer = await at.get(EXPORT)
        assert answer.status_code == 503
        assert "0 downloads are running" in sentence(answer.text)
        monkeypatch.setattr(downloads, "DOWNLOADS_MAX", 1)
        for _ in range(3):
            assert (await at.get(EXPORT)).status_code == 404, "the last one is no longer counted"


async def test_hostile_dead_letters_are_text(single: duolog.Client, at: httpx.AsyncClient) -> None:
    await single.admin.put_group("g", retry_times=0)
    async with single.producer() as producer:
        await producer.send("T", HOSTILE.encode(), keys=[TYPED.replace(" ", "/")])
    await bury(single, "T", 1)
    page = await read(at, "/groups/g/dead")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("dead-letters-g.jsonl", "dead-letters-g.jsonl"),
        ('a"b\r\nset-cookie: x/..\\c%d.jsonl', "a_b_set-cookie_x_.._c_d.jsonl"),
        ("../../etc/passwd.jsonl", "_.._etc_passwd.jsonl"),
        (f"{'x' * 300}.jsonl", f"{'x' * 100}.jsonl"),
        ("\u202egnp.jsonl", "_gnp.jsonl"),
    ],
)
def test_the_name_of_a_file_is_harmless(name: str, safe: str) -> None:
    assert file_name(name) == safe
