"""Keeps name servers informed of this node: as a broker of its group, master or slave.

A change is made known at once: of the node's role, of its number, of topics. Where there are so
many topics that a registration takes long to make, further changes of topics wait the longer.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Collection

from duolog._background import Background

from duolog_server.compat.remoting.calling import ANYBODY, Access
from duolog_server.compat.remoting.codec.routes import MASTER_ID
from duolog_server.compat.remoting.naming.nameserver import NameServer
from duolog_server.compat.remoting.naming.registration import Registration, Registrations, Standing
from duolog_server.compat.remoting.routes import default_topics
from duolog_server.node.broker import Broker
from duolog_server.node.runtime.config import RemotingSection
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.queueends import QueueKey

LOOK_SECONDS = 1.0  # a master may be over before its role is
PAUSE_RATIO = 10.0  # of the time that making a registration took
CHANGES = (SYSTEM_TOPIC, 0)


class Registrar:
    """Registers the node at name servers."""

    def __init__(self, broker: Broker, section: RemotingSection, advertised: str) -> None:
        """advertised: HOST:PORT for clients. Raises OSError (certificates)."""
        self._broker = broker
        self._advertised = advertised
        self._number = section.broker_id
        self._registrations = Registrations(default_topics(broker))
        ca = section.namesrv_ca
        tls = ssl.create_default_context(cafile=ca) if ca is not None else None
        access = ANYBODY if tls is None else Access(tls=lambda: tls)
        self._servers = [NameServer(address, access) for address in section.namesrv_addr]
        self._running = Background(broker.give_up)
        self._stirred = asyncio.Event()  # something may have changed
        self._turned = asyncio.Event()  # the role has
        self._made = asyncio.Event()  # replaced with each registration

    def start(self) -> None:
        """Begin to register."""
        if not self._servers:
            return
        self._broker.log.dispatched.append(self._dispatched)
        self._broker.role_changed.append(self._role_changed)
        self._broker.dialects.name_servers = self.counts
        self._running.start(self._look())
        for server in self._servers:
            self._running.start(server.run(self._newer))

    async def stop(self) -> None:
        """Unregister this node at the name servers, within a moment."""
        await self._running.stop()
        registration = await self._newest() if self._servers else None
        if registration is not None:
            async with asyncio.TaskGroup() as tasks:
                for server in self._servers:
                    tasks.create_task(server.leave(registration))

    def counts(self) -> dict[str, int]:
        """For an operator: name servers, and those that do not know this node as it is."""
        lost = sum(not server.is_reached for server in self._servers)
        return {"name_servers": len(self._servers), "name_servers_lost": lost}

    def _dispatched(self, keys: Collection[QueueKey]) -> None:
        if CHANGES in keys:
            self._stirred.set()

    def _role_changed(self) -> None:
        self._turned.set()
        self._stirred.set()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._stirred.clear()
            self._turned.clear()
            began = loop.time()
            before = self._registrations.made
            if await self._newest() is not before:
                made, self._made = self._made, asyncio.Event()
                made.set()
                await _wait(self._turned, PAUSE_RATIO * (loop.time() - began))
            await _wait(self._stirred, LOOK_SECONDS)

    async def _newest(self) -> Registration | None:
        """The registration of now; None while it is not known who the node is."""
        standing, topics = self._standing(), self._broker.metadata.topics
        if standing is None or not self._registrations.is_due(standing, topics):
            return self._registrations.made
        now = self._broker.times.wall_ms()
        return await self._registrations.make(standing, dict(topics), now)

    async def _newer(self, seen: Registration | None, seconds: float) -> Registration | None:
        """Another registration than this one, if it comes within so many seconds; the newest."""
        if self._registrations.made is seen:
            await _wait(self._made, seconds)
        return self._registrations.made

    def _standing(self) -> Standing | None:
        broker, replication = self._broker, self._broker.replication
        if replication.not_master():
            number, epoch = self._slave_number(), replication.master_endpoint[1]
            if number == MASTER_ID:
                return None
        else:
            assert replication.master is not None, "this node is the master"
            number, epoch = MASTER_ID, replication.master.epoch
        return Standing(broker.node.cluster, broker.group, self._advertised, number, max(0, epoch))

    def _slave_number(self) -> int:
        """The id as a slave; 0 while it is not known.

        By the names of all nodes that the group ever had: those of living ones would get the ids of
        others that are away for a moment.
        """
        failover, name = self._broker.failover, self._broker.node.name
        if failover is None:
            return 0 if self._broker.replication.elected else self._number
        view = failover.routes.get(self._broker.group)
        names = sorted({key.split("/")[-2] for key in view.starts}) if view is not None else []
        return 1 + names.index(name) if name in names else 0


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
