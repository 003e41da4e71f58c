"""RocketMQ's name servers, which this node registers at as a broker of its group, master or slave.

Rules: a change is made known at once: of the node's role, of its number, of topics. Where there are
so many topics that a registration takes long to make, further changes of topics wait the longer.
Two registrations that differ have different data versions, as a name server looks at the topics of
no other ones. A topic that was registered and is deleted is registered once more, with no queues
and no rights: name servers forget none by themselves, and clients leave such a one out.

A name server gets every change at once, and of all else every PERIOD_SECONDS; a master that is in
no route any more is registered within CHECK_SECONDS. One that does not
take a registration delays nobody, and is logged once for each change. It is asked again after
RETRY_SECONDS, and after twice as long each time up to RETRY_SECONDS_MAX, however much changes.
"""

import asyncio
import contextlib
import math
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from duolog._background import Background

from duolog_server.compat.remoting.calling import ANYBODY, Access, Calling, CallRefused, connect
from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.fields import write_header
from duolog_server.compat.remoting.codec.messages import body_crc
from duolog_server.compat.remoting.codec.nameserver import (
    MASTER_ID,
    RegisterBody,
    RegisteredTopic,
    RegisterRequest,
    UnregisterBrokerRequest,
    data_version,
)
from duolog_server.compat.remoting.routes import default_topics, told_topics
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.runtime.config import RemotingSection
from duolog_server.store.clocks import WallMs
from duolog_server.store.metadata import SYSTEM_TOPIC, TopicConfig, is_system_topic
from duolog_server.store.queueends import QueueKey

SELF_TEST_TOPIC = "SELF_TEST_TOPIC"  # of every broker; RocketMQ 5 refuses a first single topic
DELETED_MAX = 10_000
TOGETHER = 256


@dataclass(frozen=True, slots=True)
class Standing:
    """The node's identity. address: HOST:PORT for clients. broker_id: 0 for a master."""

    cluster: str
    name: str
    address: str
    broker_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration to send at once. fields, body: of REGISTER_BROKER."""

    standing: Standing
    fields: Mapping[str, str]
    body: bytes

    def unregister_fields(self) -> dict[str, str]:
        """Fields of UNREGISTER_BROKER."""
        who = self.standing
        return write_header(
            UnregisterBrokerRequest(who.name, who.address, who.cluster, who.broker_id)
        )


class Registrations:
    """Makes them, one after the other."""

    def __init__(self, others: Mapping[str, tuple[int, int]]) -> None:
        """others: topics that are registered although nobody made them: queues and perm."""
        self._others = {SELF_TEST_TOPIC: (1, 0), **others}
        self._counter = 0
        self._topics: Mapping[str, TopicConfig] = {}  # of the last one
        self._deleted: dict[str, None] = {}
        self.made: Registration | None = None

    def is_due(self, standing: Standing, topics: Mapping[str, TopicConfig]) -> bool:
        """Whether the last one says something else."""
        made = self.made
        return made is None or made.standing != standing or self._topics != topics

    async def make(
        self, standing: Standing, topics: Mapping[str, TopicConfig], wall_ms: WallMs
    ) -> Registration:
        """The next one, in slices. topics: are not changed meanwhile."""
        slices = Slices()
        await self._note_deleted(topics, slices)
        rows = [row async for row in slices.each(self._rows(topics))]
        self._counter += 1
        body = RegisterBody(data_version(standing.epoch, wall_ms, self._counter), len(rows))
        async for part in slices.parts(rows, TOGETHER):
            body.add(part)
        data = body.finish()
        fields = RegisterRequest(
            standing.name,
            standing.address,
            standing.cluster,
            standing.broker_id,
            standing.address,  # as ha_server_addr; slaves of RocketMQ find nothing to copy there
            body.compressed,
            body_crc(data),
        )
        self._topics = topics
        self.made = Registration(standing, write_header(fields), data)
        return self.made

    async def _note_deleted(self, topics: Mapping[str, TopicConfig], slices: Slices) -> None:
        async for part in slices.parts(self._topics, TOGETHER):
            self._deleted.update((name, None) for name in part if name not in topics)
        for name in [name for name in self._deleted if name in topics]:
            del self._deleted[name]
        while len(self._deleted) > DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _rows(self, topics: Mapping[str, TopicConfig]) -> Iterator[RegisteredTopic]:
        for name, one in topics.items():
            if not is_system_topic(name):
                settings = one.perm, one.sysflag, one.order, one.guests
                yield RegisteredTopic(name, one.queues, *settings)
        others: Iterable[tuple[str, tuple[int, int]]] = self._others.items()
        for name, (queues, perm) in others:
            if name not in topics:
                yield RegisteredTopic(name, queues, perm)
        for name in self._deleted:
            if name not in self._others and not is_system_topic(name):
                yield RegisteredTopic(name, 0, 0)


log = structlog.get_logger("duolog.remoting")

# A name server forgets a broker that is silent for 120 s; RocketMQ's tell it every 30 s. But one of
# the same name that shuts down has this node forgotten as well, wherever it is.
PERIOD_SECONDS = 10.0
CHECK_SECONDS = 1.0  # between two looks of a master whether it is still in a route
RETRY_SECONDS, RETRY_SECONDS_MAX = 5.0, 30.0
REGISTER_SECONDS = 6.0  # RocketMQ's
LEAVE_SECONDS = 1.0

Newer = Callable[[Registration | None, float], Awaitable[Registration | None]]


class NameServer:
    """A name server, and its knowledge of this node."""

    def __init__(self, address: str, access: Access) -> None:
        """address: HOST:PORT."""
        self.address = address
        self._access = access
        self._calling: Calling | None = None
        self._told: Registration | None = None  # the last one that it took
        self._told_at = -math.inf
        self._failed_at = -math.inf
        self._pause_seconds = 0.0  # before it is asked again; 0: it answers
        self._problem: str | None = None  # as logged; empty: it answers

    @property
    def is_reached(self) -> bool:
        """Whether it accepted the last registration, on a connection that is still open."""
        return self._told is not None and self._calling is not None and self._calling.is_open

    async def run(self, newer: Newer) -> None:
        """Keep it informed, until cancelled.

        newer: waits so many seconds for another registration than the one given; the newest.
        """
        seen: Registration | None = None
        while True:
            seen = await newer(seen, CHECK_SECONDS)
            if seen is not None and (self._is_due(seen) or await self._is_forgotten(seen)):
                await self._tell(seen, REGISTER_SECONDS)

    def _is_due(self, registration: Registration) -> bool:
        """Whether to send now, and not later."""
        now = asyncio.get_running_loop().time()
        if now - self._failed_at < self._pause_seconds:
            return False
        is_known = registration is self._told and self.is_reached
        return not is_known or now - self._told_at >= PERIOD_SECONDS

    async def _is_forgotten(self, registration: Registration) -> bool:
        """Whether the name server has no master of this name any more.

        Another one may be the next master of the group: it is left there.
        """
        who, calling = registration.standing, self._calling
        if who.broker_id != MASTER_ID or registration is not self._told or calling is None:
            return False
        fields = {"topic": SELF_TEST_TOPIC, "acceptStandardJsonOnly": "true"}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        try:
            answer = await calling.call(code, fields, seconds=CHECK_SECONDS)
            return not _has_master(answer.body, who.name)
        except CallRefused as error:
            return error.code == ResponseCode.TOPIC_NOT_EXIST
        except (OSError, BadRequest):  # a connection that has ended is noticed by itself
            return False

    async def _tell(self, registration: Registration, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            calling = self._calling
            if calling is None or not calling.is_open:
                calling = self._calling = await connect(self.address, self._access)
            code = RequestCode.REGISTER_BROKER
            await calling.call(code, registration.fields, registration.body, seconds)
        except (OSError, CallRefused) as error:  # TimeoutError is an OSError
            self._told, self._failed_at = None, loop.time()
            self._pause_seconds = min(
                max(RETRY_SECONDS, 2 * self._pause_seconds), RETRY_SECONDS_MAX
            )
            if isinstance(error, OSError):  # without the connection, it forgets what it took before
                self.close()
            self._note(str(error) or "it did not answer in time")
            return
        self._told, self._told_at, self._pause_seconds = registration, loop.time(), 0.0
        self._note("")

    def _note(self, problem: str) -> None:
        if bool(problem) != bool(self._problem) or self._problem is None:
            if problem:
                log.warning("name server: not registered", address=self.address, reason=problem)
            else:
                log.info("name server: registered", address=self.address)
        self._problem = problem

    async def leave(self, registration: Registration) -> None:
        """Unregister this node, within a moment. No task remains.

        It forgets who has an id, whatever the address: so a node that was the master, and is not
        any more, takes its own id first. A node that it was never told of has nothing to end.
        """
        if self.is_reached:
            with contextlib.suppress(OSError, CallRefused):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._unregister(registration)
        self.close()

    async def _unregister(self, registration: Registration) -> None:
        assert self._calling is not None, "reached"
        if registration is not self._told:
            await self._tell(registration, LEAVE_SECONDS)
        if self.is_reached:
            code = RequestCode.UNREGISTER_BROKER
            await self._calling.call(code, registration.unregister_fields(), seconds=LEAVE_SECONDS)

    def close(self) -> None:
        """End the connection."""
        if self._calling is not None:
            self._calling.close()
            self._calling = None


def _has_master(route: bytes, name: str) -> bool:
    """Whether a route has a master of a broker. Raises BadRequest for another body."""
    try:
        found: Any = fastjson.loads(route)
        rows = [row for row in found["brokerDatas"] if row["brokerName"] == name]
        addresses = [row["brokerAddrs"] for row in rows]
        return any(int(number) == MASTER_ID for one in addresses for number in one)
    except (TypeError, KeyError, ValueError) as error:
        raise BadRequest(f"no route: {error!r}") from None


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
        standing, topics = self._standing(), told_topics(self._broker)
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
        view = self._broker.views.get(self._broker.group)
        names = sorted({key.split("/")[-2] for key in view.starts}) if view is not None else []
        return 1 + names.index(name) if name in names else 0


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
