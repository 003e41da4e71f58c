"""The console of a node that does not lead, of three: what changes while somebody looks."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import duolog
import httpx
import pytest

from duolog_server.ops.console.pages.cluster import block_of
from duolog_server.ops.console.pages.cluster import sentence as told_of
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.visits import Visit
from duolog_server.ops.inspection.doctor.findings import Seen
from duolog_server.serve.server import Node
from tests.node.replicas import GROUPS, WAIT_SECONDS, Elected, start_groups
from tests.nodefixtures import StartNode
from tests.ops.console.test_actions import act, form_of
from tests.ops.console.test_app import ORIGIN, browser, read, sentence
from tests.ops.inspection.doctor.test_diagnosis import HEALTHY, with_node
from tests.until import until


@pytest.fixture
async def group(start_node: StartNode, tmp_path: Path) -> Elected:
    return await Elected.start(start_node, tmp_path)


@pytest.fixture
async def slave(group: Elected) -> Node:
    return next(node for node in group.nodes if node is not group.master)


@pytest.fixture
async def tab(slave: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at the console of a slave."""
    async with browser(f"127.0.0.1:{slave.port}") as made:
        yield made


def client_of(group: Elected) -> duolog.Client:
    return duolog.Client(group.endpoints, timeout=WAIT_SECONDS)


async def test_a_slaves_console_changes_and_shows_what_its_master_holds(
    tab: httpx.AsyncClient,
) -> None:
    await act(tab, "/create/topic", topic="orders", queues="1", type="")
    told = await act(tab, "/topics/orders/send", body="x", confirm="orders")
    assert told.startswith("Stored as orders/0@0.")
    assert sentence(await read(tab, "/topics/orders")) == "1 message is kept in 1 queue."
    assert sentence(await read(tab, "/")).startswith("All 3 replicas in sync.")


async def test_pages_go_on_when_the_node_they_ask_first_is_gone(
    group: Elected, slave: Node, tab: httpx.AsyncClient
) -> None:
    await act(tab, "/create/topic", topic="orders", queues="1", type="")
    await slave.stop()
    for path in ("/topics", "/topics/orders", "/groups", "/messages?topic=orders&by=time"):
        await read(tab, path)
    page = await read(tab, "/")
    assert ">Unreachable</span>" in page or ">Down</span>" in page
    assert "All 3 replicas in sync" not in page


def test_a_node_that_is_down_is_not_shown_as_in_sync_while_the_set_still_has_it() -> None:
    seen = with_node("b", role="DOWN", stale=True)
    assert told_of(seen, []) == "2 of 3 replicas in sync. a leads epoch 4. b is down."


@pytest.mark.parametrize(
    "seen",
    [
        with_node("b", stale=True),  # its lease has not expired yet
        replace(HEALTHY, unreachable=frozenset({("g", "b")})),
    ],
)
def test_a_node_that_does_not_answer_is_not_shown_as_in_sync(seen: Seen) -> None:
    assert told_of(seen, []) == "2 of 3 replicas in sync. a leads epoch 4. b does not answer."


def test_a_member_of_which_no_node_tells_is_missing() -> None:
    seen = replace(HEALTHY, nodes=HEALTHY.nodes[:2])
    assert told_of(seen, []) == "2 of 3 replicas in sync. a leads epoch 4."


def test_a_master_that_does_not_answer_has_no_rates_and_a_slave_no_lag() -> None:
    client: Any = None
    rates = Rates()
    away = replace(HEALTHY, unreachable=frozenset({("g", "a"), ("g", "b")}))
    for now, seen in enumerate((HEALTHY, HEALTHY, away)):
        visit = Visit(client, (), {}, {}, float(now), rates)
        block = block_of(visit, seen, seen.route.groups[0])
    assert block.master is None
    assert {flow.now for flow in block.flows.values()} == {None}
    shown = {row.node.name: (row.state, row.role, row.lag_bytes) for row in block.nodes}
    assert shown["a"] == ("Unreachable", "was master", None)
    assert shown["b"] == ("Unreachable", "was slave", None)


async def test_a_slave_that_is_gone_is_down_until_it_is_forgotten(
    group: Elected, slave: Node, tab: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.election.failover.ROLL_SECONDS", 0.02)
    gone = next(node for node in group.nodes if node not in (group.master, slave))
    name = gone.config.node.name
    path = f"/nodes/{GROUPS[0]}/{name}/forget"

    async def told(begin: str, end: str = "") -> bool:
        now = sentence(await read(tab, "/"))
        return now.startswith(begin) and now.endswith(end)

    await gone.stop()
    await until(lambda: told("2 of 3 replicas in sync.", f"{name} is down."), seconds=WAIT_SECONDS)
    page = await read(tab, "/")
    assert ">Down</span>" in page
    assert path in page
    assert (await act(tab, path, confirm=name)) == f"{name} is forgotten."
    await until(lambda: told("All 2 replicas in sync."), seconds=WAIT_SECONDS)


async def test_a_form_is_of_no_master(group: Elected, tab: httpx.AsyncClient) -> None:
    """The master changes between a form and what it asks for."""
    form = {**await form_of(tab, "/create/topic"), "topic": "orders", "queues": "1", "type": ""}
    async with client_of(group) as client:
        await group.switch(client)
        for _ in range(2):
            answer = await tab.post("/create/topic", data=form, headers=ORIGIN)
            assert answer.status_code == 303, answer.text
        async with asyncio.timeout(WAIT_SECONDS):  # a slave may be asked, which hears of it later
            while not (topics := await client.admin.topics()):
                await asyncio.sleep(0.01)
        assert [one.topic for one in topics] == ["orders"]


async def test_a_switch_is_of_the_epoch_that_its_page_showed(
    group: Elected, tab: httpx.AsyncClient
) -> None:
    async with client_of(group) as client:
        first = group.the_master().config.node.name
        route = (await client.admin.route()).groups[0]
        second, third = (one.node for one in route.replicas if one.node != first)
        await read(tab, f"/nodes/broker-a/{first}/switch", 400)
        path = f"/nodes/broker-a/{third}/switch"
        form = {**await form_of(tab, path), "confirm": third}
        await client.admin.failover(second)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.admin.route()).groups[0].master != second:
                await asyncio.sleep(0.01)
        answer = await tab.post(path, data=form, headers=ORIGIN)
        assert answer.status_code == 400, answer.text
        assert f"epoch {route.epoch} is over: {second} leads" in sentence(answer.text)
        assert (await client.admin.route()).groups[0].master == second


async def test_messages_of_several_replica_groups_have_pages(
    start_node: StartNode, tmp_path: Path
) -> None:
    """Each of them has a queue 0 and an offset 0."""
    nodes = await start_groups(start_node, tmp_path)
    endpoints = [f"127.0.0.1:{node.port}" for node in nodes.values()]
    async with duolog.Client(endpoints, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        for group in GROUPS:
            body = f"body in {group}".encode()
            await producer.send("T", body, keys=["k"], queue_id=0, group=group)
        async with browser(endpoints[0]) as tab:
            page = await read(tab, "/topics/T")
            assert sentence(page) == "2 messages are kept in 2 queues in 2 replica groups."
            ways = [unescape(one) for one in re.findall(r'href="([^"]+by=offset[^"]+)"', page)]
            ways += ["/messages?topic=T&by=key&value=k", "/messages?topic=T&by=time"]
            found = []
            for way in ways:
                links = re.findall(r'<a href="([^"]+)">0/0<', await read(tab, way))
                pages = [await read(tab, unescape(link)) for link in links]
                found.append([group for page in pages for group in GROUPS if f"in {group}" in page])
    assert found == [[GROUPS[0]], [GROUPS[1]], list(GROUPS), list(GROUPS)]
