"""The addresses that other nodes of the cluster call from: those of their endpoints.

Where nodes have no key, nothing else tells a call that another node forwards from one whose sender
only says so. It counts as its sender's own if it comes from elsewhere: see `peer_of`.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterator

from duolog_server.node.broker import Broker
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.wirecodec import peer_host

RESOLVE_SECONDS = 5.0  # between two looks at what names of hosts stand for
NAMES_MAX = 256  # that are looked up


class Neighbours:
    """Knows them by the registry; where roles are fixed, by replication."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._resolved: dict[str, frozenset[str]] = {}  # by the name of a host

    def has(self, peer: str) -> bool:
        """Whether a peer, as gRPC names it, has an address of a node; as far as is known by now."""
        address = Who.at("", peer_host(peer).address).address
        return any(
            address == _address_of(host) or address in self._resolved.get(host, ())
            for host in self._hosts()
        )

    def _hosts(self) -> Iterator[str]:
        """Hosts of the endpoints of all nodes, as they are written."""
        broker = self._broker
        failover, master = broker.failover, broker.replication.master
        endpoints = [broker.advertised, broker.replication.master_endpoint[0]]
        if failover is not None:
            for view in failover.routes.values():
                endpoints += [replica.endpoint for replica in view.replicas.values()]
        if master is not None:
            endpoints += [row.endpoint for row in master.rows(broker.times.mono_ms())]
        return (one.rpartition(":")[0].strip("[]") for one in endpoints if one)

    async def run(self) -> None:
        """Look up the names of hosts now and then, until cancelled."""
        while True:
            names = sorted({host for host in self._hosts() if not _address_of(host)})[:NAMES_MAX]
            found = [await self._addresses(name) for name in names]
            self._resolved = dict(zip(names, found, strict=True))
            await asyncio.sleep(RESOLVE_SECONDS)

    async def _addresses(self, name: str) -> frozenset[str]:
        """Resolve a name; its last result while resolution fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                rows = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            return self._resolved.get(name, frozenset())
        return frozenset(Who.at("", str(row[4][0])).address for row in rows)


def _address_of(host: str) -> str:
    """An address, written as a peer's is; empty for a name."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
