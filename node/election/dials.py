"""Finds nodes of its group that a node cannot reach: dials their replication addresses.

Before a failover nobody connects to a node that does not lead: a wrong `ha.advertise` would be
found by those that have to follow it. Rules: a dial has a deadline; two that fail in a row count;
one lookup of a host name at a time, and few of them, as none can be ended.
"""

import asyncio
import os
import socket
from asyncio import Future
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from duolog_server.ha.groupstate import Unreachable, Unreached

log = structlog.get_logger("duolog.ha")

PAUSE_SECONDS = 1.0  # between two rounds
DIAL_SECONDS = 2.0
LOOKUPS_MAX = 4


class Dials:
    """Dials the replication addresses of a group's other nodes."""

    def __init__(self, own_port: int, addresses: Callable[[], Mapping[str, str]]) -> None:
        """own_port: of this node's own replication. addresses: HOST:PORT of the others, by name."""
        self.unreachable: Unreachable = {}
        self._own_port = own_port
        self._addresses = addresses
        self._lookups: dict[tuple[str, int], Future[list[Any]]] = {}
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="duolog-lookup")

    def close(self) -> None:
        """No more lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Dial for as long as the node takes part in elections."""
        while True:
            await self.round()
            await asyncio.sleep(PAUSE_SECONDS)

    async def round(self) -> None:
        """Dial all of them once more; bounded by two deadlines."""
        addresses = dict(self._addresses())
        reasons = await asyncio.gather(*map(self._reason, addresses.values()))
        found = {
            name: Unreached(address, reason)
            for (name, address), reason in zip(addresses.items(), reasons, strict=True)
            if reason
        }
        for name in sorted(found.keys() - self.unreachable.keys()):
            log.warning(
                "cannot reach another node's replication address",
                replica=name,
                address=found[name].address,
                reason=found[name].reason,
            )
        self.unreachable = found

    async def _reason(self, address: str) -> str:
        """Why an address does not lead to another node; empty where it seems to."""
        return await self._dial(address) and await self._dial(address)

    async def _dial(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                found = await self._look_up(host.strip("[]"), int(port))
                return await self._connect([row[4] for row in found])
        except TimeoutError:
            return f"no answer within {DIAL_SECONDS:g} s"
        except OSError as error:
            if error.errno and error.errno > 0:
                return os.strerror(error.errno)
            return error.strerror or str(error)  # of a lookup
        except (ValueError, RuntimeError) as error:  # no HOST:PORT; or this node stops
            return str(error)

    async def _look_up(self, host: str, port: int) -> list[Any]:
        key = (host, port)
        lookup = self._lookups.get(key)
        if lookup is None:
            loop = asyncio.get_running_loop()
            lookup = self._lookups[key] = loop.run_in_executor(
                self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
            lookup.add_done_callback(lambda done: self._looked_up(key, done))
        return await asyncio.shield(lookup)

    def _looked_up(self, key: tuple[str, int], done: Future[list[Any]]) -> None:
        del self._lookups[key]
        if not done.cancelled():
            done.exception()  # seen, even if nobody waits for it any more

    async def _connect(self, places: list[tuple[Any, ...]]) -> str:
        """Connect to one of them. Raises OSError of the last one."""
        failure: OSError = OSError("the name has no address")
        for host, port, *scope in places:
            if scope and scope[1]:  # link-local
                host = f"{host}%{scope[1]}"
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                failure = error
                continue
            here, there = (writer.get_extra_info(name) for name in ("sockname", "peername"))
            writer.transport.abort()
            own = here and there and here[0] == there[0] and there[1] == self._own_port
            return "it leads to the node that dials" if own else ""
        raise failure
