"""The two sides that are compared: a broker of RocketMQ with its name server, and a node.

Both have the same delay levels, times of transactions and rules for new topics.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.calling import Calling, CallRefused, connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from tests.conformance.brokers import READY_SECONDS, cluster, end_server
from tests.conformance.conftest import SMALL
from tests.process.support import NodeProcess

LEVELS = "1s 2s 1s 1s 1s 1s"
CHECK_MS = 1000
OF_BROKER: dict[str, Any] = {
    "messageDelayLevel": LEVELS,
    "transactionTimeOut": CHECK_MS,
    "transactionCheckInterval": CHECK_MS,
    "autoCreateTopicEnable": "true",
    "defaultTopicQueueNums": 4,
    "enablePropertyFilter": "true",
    "timerWheelEnable": "false",
}
OF_NODE = (
    *SMALL,
    "--set", f"store.message_delay_level={LEVELS}",
    "--set", f"transactions.timeout_ms={CHECK_MS}",
    "--set", f"transactions.check_interval_ms={CHECK_MS}",
    "--set", "limits.auto_create_topic=true",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """Where requests go. names: HOST:PORT of the name server, broker: of the broker."""

    names: str
    broker: str


@contextmanager
def of_rocketmq(root: Path, version: str) -> Iterator[Side]:
    """A broker and a name server; skips the test where their jars cannot be had."""
    root.mkdir()
    made = cluster(root, version, **OF_BROKER)
    with ExitStack() as stack:
        for server in (made.names, made.broker):
            stack.callback(end_server, server)
            server.start()
        for server in (made.names, made.broker):
            server.wait_listening(server.endpoint)
        side = Side(made.name_server, made.address)
        asyncio.run(registered(side))
        yield side


async def registered(side: Side) -> None:
    """Wait until the name server answers, and knows the broker."""
    async with asyncio.timeout(READY_SECONDS):
        while (names := await _connected(side.names)) is None:
            await asyncio.sleep(0.05)
        while side.broker.encode() not in await _brokers(names):
            await asyncio.sleep(0.05)
        names.close()


async def _connected(names: str) -> Calling | None:
    """A name server; None while it does not listen."""
    try:
        return await connect(names)
    except ConnectionError:
        return None


async def _brokers(names: Calling) -> bytes:
    """Those that a name server knows."""
    try:
        return (await names.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    except (CallRefused, TimeoutError):
        return b""


@contextmanager
def of_node(root: Path) -> Iterator[Side]:
    """A node, which is its own name server."""
    listen = free_endpoint()
    node = NodeProcess(root, *OF_NODE, "--set", f"remoting.listen={listen}")
    node.start()
    node.wait_listening(listen)
    try:
        yield Side(listen, listen)
    finally:
        assert node.stop() == 0


__all__ = ["Side", "of_node", "of_rocketmq", "registered"]
