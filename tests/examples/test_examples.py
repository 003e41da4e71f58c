"""The files of examples/, each as its readers use it; they share one node."""

import asyncio
import importlib
import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import duolog
import httpx
import pytest
from duolog.testing import Node

from tests.client.test_taskiq import working
from tests.process.forks import ROOT
from tests.until import WAIT_SECONDS, until


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUOLOG_ENDPOINTS", made.endpoint)
        yield made


def load(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


async def taken(consumer: duolog.Consumer, count: int) -> list[bytes]:
    """The next bodies; of different queues in any order."""
    found = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for message in consumer:
            found.append(message.body)
            if len(found) == count:
                return found
    raise AssertionError("the consumer was closed")


def test_the_page_names_every_example_and_each_has_a_test() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"`examples/(\w+\.py)`", page)) == names
    loaded = re.findall(r'load\("(\w+)"\)', (ROOT / __file__).read_text())
    assert {f"{name}.py" for name in loaded} == names


async def test_orders(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    await load("orders").main(node.endpoint)
    shown = capsys.readouterr().out
    assert shown.count("sent to queue") == 10
    assert {line for line in shown.splitlines() if ": order" in line} == {
        f"['customer-{n % 3}']: order {n}" for n in range(10)
    }


async def test_webshop(node: Node) -> None:
    app = load("webshop").app
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as browser,
    ):
        for amount in (12.5, 3.0):
            answer = await browser.post("/orders", json={"customer": "ann", "amount": amount})
            assert answer.status_code == 202
            assert len(answer.json()["message"]) == 32

        async def billed() -> bool:
            return bool((await browser.get("/billed/ann")).json() == [12.5, 3.0])

        await until(billed)
        assert (await browser.post("/orders", json={"customer": "ann"})).status_code == 422


async def test_outbox(node: Node) -> None:
    outbox = load("outbox")
    database = outbox.connected(":memory:")
    async with duolog.Client(node.endpoint) as client:
        await client.admin.create_topic("outbox-orders", 4)
        async with client.consumer("outbox-mail", "outbox-orders") as consumer:
            shop = outbox.Shop(client, database)
            async with shop.transactions:
                await shop.place("order-1", 12.5)
                with pytest.raises(sqlite3.IntegrityError):
                    await shop.place("order-1", 99.0)
                # The program dies before and after the database has committed.
                for order in ("order-2", "order-3"):
                    body = json.dumps({"id": order, "amount": 1.0}).encode()
                    await shop.transactions.prepare("outbox-orders", body)
                shop.insert("order-3", 1.0)
            async with outbox.Shop(client, database).transactions:
                node.skip(2 * outbox.IMMUNITY_SECONDS)
                orders = [json.loads(body) for body in await taken(consumer, 2)]
            assert {order["id"]: order["amount"] for order in orders} == {
                "order-1": 12.5,
                "order-3": 1.0,
            }
            await until(lambda: undecided(client), "no half message is left")


async def undecided(client: duolog.Client) -> bool:
    return not (await client.admin.halves_page("outbox-orders")).rows


async def test_reminders(node: Node) -> None:
    reminders = load("reminders")
    async with duolog.Client(node.endpoint) as client, client.producer() as producer:
        await client.admin.create_topic(reminders.TOPIC, 4)
        await reminders.remind(producer, "ann", 7200)
        bob = await reminders.remind(producer, "bob", 3600)

        async def both_wait() -> bool:
            return len(await reminders.waiting(client)) == 2

        await until(both_wait)
        assert await reminders.cancel(client, bob)
        assert not await reminders.cancel(client, bob)
        await reminders.remind(producer, "eve", 7300)
        async with client.consumer("mail", reminders.TOPIC) as consumer:
            node.skip(7400)
            assert sorted(await taken(consumer, 2)) == [b"ann", b"eve"]


async def test_table(node: Node) -> None:
    example = load("table")
    async with duolog.Client(node.endpoint) as client, client.producer() as producer:
        await client.admin.create_topic(example.TOPIC, 4)
        visits = [{"page": f"/{n % 7}", "ms": n, "more": "x"} for n in range(1000)]
        await producer.send_batch(example.TOPIC, [json.dumps(one).encode() for one in visits])
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(rows) < 1000:
                rows += (await example.read(client, "reports", idle=0.2)).to_pylist()
    assert sorted((row["ms"], row["page"]) for row in rows) == [
        (n, f"/{n % 7}") for n in range(1000)
    ]
    assert {row["stored"].year >= 2024 for row in rows} == {True}


async def test_tasks(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = load("tasks")
    await tasks.main()
    shown = ""
    async with working(tasks.broker):

        def done() -> bool:
            nonlocal shown
            shown += capsys.readouterr().out
            return "charged ann 12.50" in shown and "reminded ann" in shown

        await until(done)
