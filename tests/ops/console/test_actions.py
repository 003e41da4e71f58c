"""What can be changed in the console, at real nodes."""

import asyncio
import re
from pathlib import Path

import duolog
import httpx
from duolog import GroupQueue
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.console.pages.groups import Move
from duolog_server.serve.server import Node
from tests.node.replicas import WAIT_SECONDS, Elected
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import ORIGIN, as_boss, browser, read, sentence

MASTERSHIP = re.compile(r'<td class="n">(\d+)</td><th scope="row">(\w+)</th>')


async def form_of(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """The hidden fields of an action's form, the proof among them."""
    page = await read(client, path)
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page))


async def act(client: httpx.AsyncClient, path: str, query: str = "", **fields: str) -> str:
    """Fill in an action's form and send it; what the next page says was done."""
    form = await form_of(client, path + query)
    answer = await client.post(path, data={**form, **fields}, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    page = await read(client, answer.headers["location"])
    told = re.search(r'class="told"[^>]*>\s*<span>([^<]*)</span>', page)
    assert told is not None
    assert 'class="told"' not in await read(client, answer.headers["location"]), "said once"
    return told[1]


async def test_a_topic_is_created_altered_and_deleted(node: Node) -> None:
    async with browser(f"127.0.0.1:{node.port}") as at:
        told = await act(at, "/create/topic", topic="orders", queues="3", type="FIFO")
        assert told == "Topic orders was created with 3 queues."
        told = await act(at, "/topics/orders/alter", queues="5", perm="4")
        assert told == "Topic orders has 5 queues now. Clients may receive only."
        assert 'value="4" selected' in await read(at, "/topics/orders/alter")
        assert "0 messages and the offsets of its consumer groups are deleted." in await read(
            at, "/topics/orders/delete"
        )
        wrong = {**await form_of(at, "/topics/orders/delete"), "confirm": "order"}
        answer = await at.post("/topics/orders/delete", data=wrong, headers=ORIGIN)
        assert (answer.status_code, sentence(answer.text)) == (400, "type orders to confirm.")
        told = await act(at, "/topics/orders/delete", confirm="orders")
        assert told == "Topic orders was deleted."
        await read(at, "/topics/orders", 404)


WRONG: list[dict[str, str]] = [
    {"topic": "T", "queues": "0", "type": ""},
    {"topic": "T", "queues": "many", "type": ""},
    {"topic": "T", "queues": "\u0663", "type": ""},
    {"topic": "T", "queues": "9" * 30, "type": ""},
    {"topic": "T", "queues": "1", "type": "LITE"},
    {"topic": "", "queues": "1", "type": ""},
    {"topic": "a/b", "queues": "1", "type": ""},
    {},
]


async def test_a_form_that_is_filled_in_badly_changes_nothing(node: Node) -> None:
    for fields in WRONG:
        async with browser(f"127.0.0.1:{node.port}") as at:
            form = await form_of(at, "/create/topic")
            answer = await at.post("/create/topic", data={**form, **fields}, headers=ORIGIN)
            assert answer.status_code == 400
            assert sentence(await read(at, "/topics")) == "No topics."


async def test_a_reset_says_what_it_skips_and_repeats_and_is_taken_back(
    single: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    for number in range(5):
        await producer.send("T", b"%d" % number)
    async with single.consumer("g", "T") as consumer:
        for _ in range(3):
            assert await consumer.get(10.0) is not None
        await consumer.commit()

    async def committed() -> int | None:
        (queue,) = (await single.admin.group("g")).queues
        return queue.committed

    first = await read(at, "/groups/g/reset")
    assert 'method="post"' not in first.partition("<main")[2], "the preview comes first"
    for query, expected in (
        ("?to=earliest", "Skips 0 messages, repeats 3 messages."),
        ("?to=latest", "Skips 2 messages, repeats 0 messages."),
        ("?to=offset&value=4", "Skips 1 message, repeats 0 messages."),
        ("?to=offset&value=99", "Skips 2 messages, repeats 0 messages."),
        ("?to=time&value=1h", "Skips 0 messages, repeats 3 messages."),
    ):
        assert sentence(await read(at, f"/groups/g/reset{query}&topic=T")) == expected
    assert await committed() == 3
    form = await form_of(at, "/groups/g/reset?to=latest&topic=T")
    wrong = {**form, "confirm": "T"}
    answer = await at.post("/groups/g/reset", data=wrong, headers=ORIGIN)
    assert answer.status_code == 400
    assert await committed() == 3
    right = {**form, "confirm": "g"}
    answer = await at.post("/groups/g/reset", data=right, headers=ORIGIN)
    assert answer.status_code == 303
    assert await committed() == 5
    undo = await form_of(at, "/groups/g")
    assert undo["next"] == "/groups/g"
    answer = await at.post("/undo", data=undo, headers=ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups/g")
    assert await committed() == 3
    await single.admin.commit("g", {("T", "broker-a", 0): 4})
    answer = await at.post("/undo", data=undo, headers=ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups/g")
    page = await read(at, "/groups/g")
    assert "This form was sent before" in page
    assert "<button>Undo</button>" not in page
    assert await committed() == 4, "once"
    for query in ("?to=nowhere", "?to=offset&value=-1", "?to=time&value=soon"):
        await read(at, f"/groups/g/reset{query}&topic=T", 400)
    assert await act(at, "/groups/g/delete", confirm="g") == "Group g was deleted."


@given(st.integers(0, 50), st.integers(0, 50), st.one_of(st.none(), st.integers(0, 60)), st.data())
def test_what_a_reset_skips_and_repeats(
    low: int, kept: int, committed: int | None, data: st.DataObject
) -> None:
    high = low + kept
    to = data.draw(st.integers(low, high))
    move = Move(GroupQueue("T", "a", 0, committed, low, high), to)
    begin = low if committed is None else committed
    gets_before = set(range(max(begin, low), high))
    gets_after = set(range(to, high))
    assert move.skips == len(gets_before - gets_after)
    assert move.repeats == len(gets_after - gets_before)


async def test_a_form_of_another_session_changes_nothing(guarded: str) -> None:
    boss = {"user": "boss", "password": "secret-of-boss"}
    async with browser(guarded, loopback=False) as at, as_boss(guarded) as client:
        await at.post("/login", data=boss, headers=ORIGIN)
        other = await form_of(at, "/create/topic")
        at.cookies.clear()
        await at.post("/login", data=boss, headers=ORIGIN)
        fields = {**other, "topic": "T", "queues": "1", "type": ""}
        answer = await at.post("/create/topic", data=fields, headers=ORIGIN)
        assert answer.status_code == 400
        assert await client.admin.topics() == []
        at.cookies.clear()
        answer = await at.post("/create/topic", data=fields, headers=ORIGIN)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert await client.admin.topics() == []


async def test_a_user_changes_only_what_it_may(guarded: str) -> None:
    async with browser(guarded, loopback=False) as at, as_boss(guarded) as client:
        await client.admin.create_topic("T", 1)
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        form = await form_of(at, "/messages/stop")
        for path, fields in (
            ("/create/topic", {"topic": "mine", "queues": "1", "type": ""}),
            ("/topics/T/alter", {"queues": "9", "perm": "6"}),
            ("/topics/T/delete", {"confirm": "T"}),
        ):
            await read(at, path, 403)
            answer = await at.post(path, data={**form, **fields}, headers=ORIGIN)
            assert answer.status_code == 403, path
        (topic,) = await client.admin.topics()
        assert (topic.topic, topic.queues) == ("T", 1)


async def test_nodes_switch_drain_and_come_back(start_node: StartNode, tmp_path: Path) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        async with asyncio.timeout(WAIT_SECONDS):
            route = (await client.admin.route()).groups[0]
            while not (route.master and all(one.in_sync for one in route.replicas)):
                await asyncio.sleep(0.01)
                route = (await client.admin.route()).groups[0]
        master = route.master
        other = next(one.node for one in route.replicas if one.node != master)
        async with browser(group.endpoints[0]) as at:
            told = await act(at, f"/nodes/broker-a/{other}/switch", confirm=other)
            assert told == f"{other} is taking over."
            async with asyncio.timeout(WAIT_SECONDS):
                while (await client.admin.route()).groups[0].master != other:
                    await asyncio.sleep(0.01)
            led = [(str(route.epoch + 1), other), (str(route.epoch), master)]
            async with asyncio.timeout(WAIT_SECONDS):
                while MASTERSHIP.findall(page := await read(at, "/"))[:2] != led:
                    await asyncio.sleep(0.01)
            assert page.count('<td class="n">current</td>') == 1
            assert "<td>planned switch</td>" in page
            assert page.count('<g class="gap">') == page.count('<g class="span">') - 1
            assert f"{other} leads epoch {route.epoch + 1}; before, no master for " in page
            told = await act(at, f"/nodes/broker-a/{master}/drain", confirm=master)
            assert told == f"{master} is drained."
            async with asyncio.timeout(WAIT_SECONDS):  # the node that is asked learns of it
                while f"/nodes/broker-a/{master}/undrain" not in await read(at, "/"):
                    await asyncio.sleep(0.01)
            told = await act(at, f"/nodes/broker-a/{master}/undrain")
            assert told == f"{master} is no longer drained."
            await read(at, "/nodes/broker-a/nobody/switch", 400)
            await read(at, f"/nodes/other/{other}/switch", 400)
