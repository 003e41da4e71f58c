"""Pages of half messages, and an operator's decisions, at real nodes."""

import asyncio
import json
from pathlib import Path

import duolog
import pytest
from duolog import HalfMessage, HalvesPage, UndecidedMessage
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.waiting import halves
from duolog_server.node.core import turnbudget
from duolog_server.serve.server import Node
from duolog_server.store.metadata import AUDIT_TOPIC
from tests.keyfiles import access_files
from tests.node.replicas import WAIT_SECONDS, broker_of, take_checks
from tests.nodefixtures import StartNode

PATIENT = {"timeout_ms": 3_600_000, "check_interval_ms": 3_600_000}


async def undecided(message: UndecidedMessage) -> bool | None:
    return None


async def send_halves(client: duolog.Client, topic: str, count: int, group: str = "P") -> None:
    """Half messages, whose producer has gone away."""
    async with client.transactions(group, undecided) as transactions:
        for number in range(count):
            await transactions.prepare(topic, b"half", key=f"k{number}")


async def waiting(client: duolog.Client, count: int) -> HalvesPage:
    """The first page, once so many wait: they are read some milliseconds after they were stored."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                page = await client.admin.halves_page()
            except duolog.Unavailable:
                page = HalvesPage((), "")
            if len(page.rows) >= count:
                return page
            await asyncio.sleep(0.01)


async def pages(client: duolog.Client, limit: int, topic: str = "") -> list[HalfMessage]:
    found: list[HalfMessage] = []
    after = ""
    while True:
        page = await client.admin.halves_page(topic, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += page.rows
        after = page.next
        if not after:
            return found


def client_of(node: Node, user: str = "") -> duolog.Client:
    endpoint = f"127.0.0.1:{node.port}"
    return duolog.Client(endpoint, timeout=10, user=user, password="pw" if user else "")


async def test_what_waits_is_listed_and_decided_on(start_node: StartNode) -> None:
    node = await start_node(transactions=PATIENT)
    async with client_of(node) as client:
        for topic in ("T", "U"):
            await client.admin.create_topic(topic, 1)
        await send_halves(client, "T", 3)
        await send_halves(client, "U", 1, "Q")
        page = await waiting(client, 4)
        assert (page.waiting, page.next) == (4, "")
        assert page.checks_max > 0
        assert [(row.topic, row.producer_group, row.half) for row in page.rows] == [
            *(("T", "P", number) for number in range(3)),
            ("U", "Q", 3),
        ]
        first, second, third, other = page.rows
        assert (first.keys, first.size, first.checks, first.group) == ("k0", 4, 0, "broker-a")
        assert abs(first.next_check_ms - first.stored_ms - 3_600_000) < 5000
        for limit in (1, 2, 3):
            seen = await pages(client, limit)
            assert [row.half for row in seen] == [row.half for row in page.rows]
        assert [row.half for row in await pages(client, 1, "U")] == [3]
        assert (await client.admin.half(1, group="broker-a")).unique_key == second.unique_key
        await client.admin.decide_half("P", first.half, commit=True, group="broker-a")
        await client.admin.decide_half("P", second.half, commit=False, group="broker-a")
        await client.admin.decide_half("P", second.half, commit=False, group="broker-a")
        (stored,) = await client.pull("T", 0, 0)
        assert stored.unique_key == first.unique_key
        for group, half, commit, error in (
            ("P", second.half, True, duolog.NoSuchMessage),
            ("Q", third.half, True, duolog.BadRequest),
            ("", third.half, True, duolog.BadRequest),
            ("P", 99, True, duolog.NoSuchMessage),
        ):
            with pytest.raises(error):
                await client.admin.decide_half(group, half, commit=commit, group="broker-a")
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.half(first.half, group="broker-a")
        left = await client.admin.halves_page()
        assert [row.half for row in left.rows] == [third.half, other.half]
        with pytest.raises(duolog.UnknownTopic):
            await client.admin.halves_page("none")
        for wrong in ("x", "broker-a=x", f"broker-a={'9' * 30}"):
            with pytest.raises(duolog.BadRequest):
                await client.admin.halves_page(after=wrong)


async def test_a_page_looks_at_few_places(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "EXAMINED_MAX", 2)
    node = await start_node(transactions=PATIENT)
    async with client_of(node) as client:
        for topic in ("T", "U"):
            await client.admin.create_topic(topic, 1)
        await send_halves(client, "T", 5)
        await send_halves(client, "U", 1)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.admin.halves_page()).waiting != 6:
                await asyncio.sleep(0.01)
        page = await client.admin.halves_page("U")
        assert page.rows == ()
        assert page.next
        assert [row.topic for row in await pages(client, 9, "U")] == ["U"]
        assert len(await pages(client, 9)) == 6


async def test_one_that_was_checked_tells_so(start_node: StartNode) -> None:
    timing = {"timeout_ms": 1, "check_interval_ms": 3_600_000}
    node = take_checks(await start_node(transactions=timing))
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        await send_halves(client, "T", 1)
        async with asyncio.timeout(WAIT_SECONDS):
            while not (rows := (await client.admin.halves_page()).rows) or not rows[0].checks:
                await asyncio.sleep(0.01)
        (row,) = rows
        assert (row.half, row.checks) == (0, 1)
        assert row.queue_offset > 0
        assert row.next_check_ms - row.stored_ms > 3_000_000


async def test_a_user_sees_and_decides_what_it_may(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(
        access=access_files(tmp_path, "pw"), audit={"topic": True}, transactions=PATIENT
    )
    async with client_of(node, "root") as root:
        await root.access.create_user("root", "pw", is_super=True)
        await root.access.create_user("other", "pw")
        entry = {"resource": "Topic:T", "actions": ["List"], "decision": "Allow"}
        rights = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
        await root.access.set_rights("other", json.dumps(rights))
        for topic in ("U", "T"):
            await root.admin.create_topic(topic, 1)
            await send_halves(root, topic, 1)
        await waiting(root, 2)
        async with client_of(node, "other") as other:
            page = await other.admin.halves_page(limit=1)
            assert [(row.topic, row.keys, row.unique_key) for row in page.rows] == [("T", "", "")]
            assert page.waiting is None
            for call in (
                other.admin.halves_page("U"),
                other.admin.decide_half("P", 0, commit=True, group="broker-a"),
            ):
                with pytest.raises(duolog.NoPermission):
                    await call
            with pytest.raises(duolog.NoSuchMessage):
                await other.admin.half(0, group="broker-a")
        await root.admin.decide_half("P", 0, commit=True, group="broker-a")
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                noted = b"".join(one.body for one in await root.pull(AUDIT_TOPIC, 0, 0))
                if b"Admin/DecideHalf" in noted:
                    break
                await asyncio.sleep(0.01)


async def test_others_have_a_turn_between_the_rows_of_a_page(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    node = await start_node(transactions=PATIENT)
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        await send_halves(client, "T", 8)
        await waiting(client, 8)
        page = asyncio.ensure_future(
            halves.Halves(broker_of(node)).page(wire.ListHalvesRequest(), lambda topic: True)
        )
        turns = 0
        while not page.done():
            turns += 1
            await asyncio.sleep(0)
        assert len((await page).messages) == 8
        assert turns > 8


async def test_a_page_goes_on_where_one_is_decided_on_meanwhile(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    node = await start_node(transactions=PATIENT)
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        await send_halves(client, "T", 8)
        await waiting(client, 8)
        page = asyncio.ensure_future(client.admin.halves_page())
        await asyncio.gather(
            *(client.admin.decide_half("P", n, commit=True, group="broker-a") for n in range(8))
        )
        assert len((await page).rows) <= 8
        assert (await client.admin.halves_page()).rows == ()
