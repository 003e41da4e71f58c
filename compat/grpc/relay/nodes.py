"""Proofs that a call was forwarded by a node of the cluster, and not by a client that claims so.

A forwarding node has recognised the client. It says in headers who that is, from which address and
how it is connected. On a cluster with users it marks them: without the cluster's key nobody can say
so. A client's own signature would not do: on a stream that moves to the next master it is as old as
the stream. Where nodes have no key, the addresses of their endpoints tell: a call from elsewhere
counts as its sender's own (see `peer_of`).
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.compat.grpc.relay.calls import CLIENT_ID, METHOD, OWN, Header
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.vouching import Vouching
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.wirecodec import peer_host

MARK = OWN + "mark"
TIME = OWN + "time"  # milliseconds of the forwarding node's wall clock
SECONDS = 300  # how long a mark is good, and how far clocks may differ


class Marks:
    """Adds marks to headers, and checks them."""

    def __init__(self, vouching: Vouching, wall_ms: Callable[[], int]) -> None:
        self._vouching = vouching
        self._wall_ms = wall_ms

    def added(self, headers: Iterable[Header]) -> list[Header]:
        """The headers, and a mark that covers what this node says in them."""
        made = [*headers, (TIME, str(int(self._wall_ms())))]
        return [*made, (MARK, self._vouching.mark(_covered(dict(made))))]

    def proof(self, user: str, secret: str) -> str:
        """Differs after a change of a user's secret."""
        return self._vouching.mark(("secret", user, secret))

    def check(self, headers: Mapping[str, str | bytes], method: str) -> None:
        """Raise Refused (UNAUTHORIZED) unless a node of the cluster marked them just now, for a
        call of this method.
        """
        if not self._vouching.is_mark(str(headers.get(MARK, "")), _covered(headers)):
            raise Refused(
                Code.UNAUTHORIZED,
                f"only nodes of this cluster may send headers {OWN}*: if one did, give all nodes "
                "the same access.key_file",
            )
        if headers.get(METHOD) != method:
            raise Refused(
                Code.UNAUTHORIZED, f"the headers {OWN}* were made for another method than {method}"
            )
        time = str(headers.get(TIME, ""))
        if not time.isdecimal() or abs(int(time) - self._wall_ms()) > SECONDS * 1000:
            raise Refused(
                Code.UNAUTHORIZED,
                f"the call was forwarded more than {SECONDS} s ago, or the clocks "
                "of two nodes differ by that",
            )


def _covered(headers: Mapping[str, str | bytes]) -> list[str]:
    return [
        word
        for name, value in sorted(headers.items())
        if (name.startswith(OWN) and name != MARK) or name == CLIENT_ID
        for word in (name, str(value))
    ]


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
        master = broker.replication.master
        endpoints = [broker.advertised, broker.replication.master_endpoint[0]]
        for view in broker.views.values():
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
