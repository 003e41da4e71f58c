"""Every part of the SDK calls as the client's user: at a real node, seen where calls begin."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duolog
import pytest
from duolog._nodechannel import Channel
from duolog._runtime import MACHINE

from duolog_server.serve.server import Node
from tests.nodefixtures import received


class Watched:
    """A channel that writes down the metadata of its calls."""

    def __init__(self, channel: Channel, seen: list[tuple[str, bool]]) -> None:
        self._channel = channel
        self._seen = seen

    def _method(self, made: Callable[..., Any], path: str) -> Callable[..., Any]:
        def call(*request: Any, metadata: Any = (), **how: Any) -> Any:
            known = dict(metadata).get("authorization", "").startswith("Basic ")
            self._seen.append((path.rpartition("/")[2], known))
            return made(*request, metadata=metadata, **how)

        return call

    def unary_unary(self, path: str, *how: Any, **more: Any) -> Callable[..., Any]:
        return self._method(self._channel.unary_unary(path, *how, **more), path)

    def unary_stream(self, path: str, *how: Any, **more: Any) -> Callable[..., Any]:
        return self._method(self._channel.unary_stream(path, *how, **more), path)

    def stream_stream(self, path: str, *how: Any, **more: Any) -> Callable[..., Any]:
        return self._method(self._channel.stream_stream(path, *how, **more), path)

    async def close(self, grace: float | None) -> None:
        await self._channel.close(grace)


async def test_producers_consumers_sinks_and_transactions_call_as_the_user(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog._client.AT_ONCE", 4.0)  # for a machine that stands still
    seen: list[tuple[str, bool]] = []
    runtime = replace(MACHINE, dial=lambda at: Watched(MACHINE.dial(at), seen), frames=False)
    endpoint = f"127.0.0.1:{node.port}"

    async def check(_: duolog.UndecidedMessage) -> bool:
        return True

    async with duolog.Client(endpoint, user="alice", password="pw", runtime=runtime) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer, client.consumer("G", "T") as consumer:
            await producer.send("T", b"x")
            message = await received(consumer)
            await consumer.send_back(message)
        transactions = client.transactions("orders", check)
        async with transactions, transactions.begin("T", b"y"):
            pass
        sink = await client.sink("S")
        await sink.state()
        await client.pull("T", 0, 0)
        assert await client.status_of(endpoint) is not None
        await client.admin.cluster_status()
    assert {path for path, known in seen if not known} == set()
    assert {path for path, _ in seen} >= {
        *("Append", "Subscribe", "Heartbeat", "Leave", "Commit", "SendBack", "Pull", "SinkState"),
        *("EndTransactions", "TransactionChecks", "Route", "ListTopics", "NodeStatus"),
    }
