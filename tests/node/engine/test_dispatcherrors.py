"""An error of dispatch ends the node, and a node that stops dispatches in one thread only."""

import asyncio
import threading
from typing import Any

import duolog
import pytest

from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store.errors import StoreClosed, StoreFenced
from tests.node.replicas import broker_of


def broken(*_: Any) -> Any:
    raise ValueError("a bug")


def tells_of_dispatch(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    broker.log.dispatched.append(broken)


def dispatches(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.store, "dispatch", broken)


@pytest.fixture(params=[tells_of_dispatch, dispatches])
async def with_a_message(
    node: Node,
    client: duolog.Client,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Broker:
    """A broker whose next dispatch fails, and that has something to dispatch."""
    broker = broker_of(node)
    request.param(broker, monkeypatch)
    async with client.producer() as producer:
        await producer.send("T", b"x")
    return broker


async def test_a_bug_in_dispatch_ends_the_node(with_a_message: Broker) -> None:
    broker = with_a_message
    async with asyncio.timeout(60):
        await broker.failed.wait()
    assert "a bug" in broker.store.fence_reason
    assert not broker.store.flags.writeable


async def test_a_reader_is_refused_by_a_node_whose_dispatch_ends_it(with_a_message: Broker) -> None:
    broker = with_a_message
    broker.log.answered()
    for _ in range(2):  # the one who finds it, and all who come later
        with pytest.raises(StoreFenced, match="a bug"):
            broker.log.catch_up()
    assert broker.failed.is_set()


async def test_nothing_is_dispatched_again_after_a_bug(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, calls = broker_of(node), 0

    def once() -> bool:
        nonlocal calls
        calls += 1
        raise ValueError("a bug")

    monkeypatch.setattr(broker.store, "dispatch", once)
    for plan in (broker.log.pump_soon, broker.log.pump_soon, broker.log.applied):
        plan()
        await asyncio.sleep(0.01)
    assert calls == 1


async def test_a_stop_dispatches_in_its_thread_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was left to dispatch: the loop does nothing to a store that is shut down."""
    broker, here = broker_of(node), threading.get_ident()
    store, loop = broker.store, asyncio.get_running_loop()
    stopping, beside = threading.Event(), []
    shutdown = store.shutdown

    def never_done() -> bool:
        if threading.get_ident() == here and stopping.is_set():
            beside.append("dispatched")
        return True

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0.002)

    def slowly() -> None:
        stopping.set()
        asyncio.run_coroutine_threadsafe(turns(), loop).result()
        shutdown()

    monkeypatch.setattr(store, "dispatch", never_done)
    monkeypatch.setattr(store, "shutdown", slowly)
    broker.log.pump_soon()
    await asyncio.sleep(0)
    await node.stop()
    assert store.closed
    assert beside == []
    with pytest.raises(StoreClosed):
        broker.log.catch_up()


async def test_a_stop_cancels_a_dispatch_that_is_planned_for_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.engine.log.LATER_SECONDS", 600)
    log = broker_of(node).log
    await log.caught_up()
    log.answered()
    planned = log._later
    assert planned is not None
    await node.stop()
    assert planned.cancelled()
