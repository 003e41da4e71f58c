"""What a simulated node knows of the cluster's other replica groups, and its way to their masters.

It stands in for the node's election service where the broker asks that for other groups: routes as
they were read last, rows of queues that move, and channels.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import grpc.aio
from duolog import _errors as sdk

from duolog_server.ha.failover import Failover
from duolog_server.ha.groupstate import View, cluster_prefix, groups_of
from duolog_server.ha.registry import Check, Delete, Put, RegistryUnavailable, Snapshot, Transaction
from duolog_server.node.broker import Broker
from sim.channels import Served, SimChannel
from sim.etcd import TIMEOUT_MS, SimEtcd
from sim.network import Network

CLUSTER = "sim"
LOOK_MS = 90.0  # between two readings of the routes


class Host(Protocol):
    """The part of a simulated node that this uses."""

    name: str
    network: Network
    etcd: SimEtcd

    @property
    def others(self) -> Mapping[str, Served]:
        """The nodes of other groups, by name."""

    @property
    def machine(self) -> Failover | None:
        """Its failover machine."""

    def guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        """An action of this process: dropped after its death, delayed while it is paused."""

    def later(self, delay: float, do: Callable[..., None]) -> None:
        """Run an action after some ms, if the process is still alive."""

    def known_master(self) -> tuple[str, int]:
        """Client address of the master that the registry names, and its epoch."""


class RegistryView:
    """Of one process."""

    def __init__(self, node: Host, broker: Broker) -> None:
        self.routes: dict[str, View] = {}
        self._node = node
        self._channels: list[SimChannel] = []
        broker.failover = cast(Any, self)
        broker.other_groups._dial = self._dial
        node.later(1.0, self._look)

    @property
    def machine(self) -> Failover:
        """The machine of the node's election."""
        machine = self._node.machine
        assert machine is not None, "an elected node"
        return machine

    def stop(self) -> None:
        """The process is gone: the kernel ends its connections."""
        for channel in self._channels:
            channel.reset()

    def _dial(self, endpoint: str, options: object) -> grpc.aio.Channel:
        node = self._node.others[endpoint.partition(":")[0]]
        channel = SimChannel(self._node.network, node, source=self._node.name)
        self._channels.append(channel)
        return cast(grpc.aio.Channel, channel)

    def _look(self) -> None:
        node, prefix = self._node, cluster_prefix(CLUSTER)
        node.etcd.call(node.name, lambda table: table.get(prefix), node.guarded(self._seen))
        node.later(LOOK_MS, self._look)

    def _seen(self, snapshot: Snapshot) -> None:
        self.routes = groups_of(snapshot, CLUSTER)

    # -- rows of queues that move, as FailoverService has them -------------------------------------

    async def read_rows(self, prefix: str) -> Snapshot:
        """Read rows. Raises RegistryUnavailable."""
        node = self._node
        found: Snapshot = await self._asked(
            lambda reply: node.etcd.call(node.name, lambda table: table.get(prefix), reply)
        )
        return found

    async def change_rows(
        self, known: tuple[Check, ...], rows: tuple[Put | Delete, ...]
    ) -> int | None:
        """Change rows as the master. Raises NotMaster, RegistryUnavailable."""
        node = self._node
        made: Transaction | None = self.machine.change_rows(known, rows)
        if made is None:
            raise sdk.NotMaster("this node is not the master", *node.known_master())
        revision: int | None = await self._asked(
            lambda reply: node.etcd.commit(node.name, made, reply)
        )
        return revision

    async def _asked(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def reply(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        ask(self._node.guarded(reply))
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                return await answer
        except TimeoutError:
            raise RegistryUnavailable("the registry did not answer in time") from None
