"""Requests of RocketMQ's slaves to their master, beside the log's bytes: registrations, and tables.

Slaves register with all nodes of the group, every 30 s, so they find the next master by themselves.
Nothing is kept of them: they are in no route, and no client reads from them. Every 10 s they copy
the tables of topics, groups, committed offsets and delays.

Rules: a table is what the node writes to RocketMQ's file of that name; its dataVersion is made of
its contents, so that it changes with the table alone, and is the same on the next master; only a
master that has all that its group confirmed answers.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.codec.nameserver import (
    MASTER_ID,
    RegisterRequest,
    UnregisterBrokerRequest,
)
from duolog_server.compat.remoting.port.dispatcher import Begun, Handler, Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.compat.remoting.routes import Routes
from duolog_server.node.broker import Broker
from duolog_server.node.runtime.config import RocketmqSlavesSection
from duolog_server.store.metadata import Json, Snapshot
from duolog_server.store.metadatafiles import DELAYS, EXPORTS, GROUPS, OFFSETS, TOPICS, Export

COUNTER_BITS, TIME_BITS = 31, 22  # of a version: clients have 32 for a counter
HEADER_ROOM = 1 << 10  # in a frame, beside the body
_FILES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS,
    RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS,
    RequestCode.GET_ALL_DELAY_OFFSET: DELAYS,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GROUPS,
}
TABLES: Mapping[int, Export] = {
    code: next(export for export in EXPORTS if export.path == path) for code, path in _FILES.items()
}


@dataclass(frozen=True, slots=True)
class _Written:
    rows: Json
    body: bytes


def version_of(rows: Json) -> Json:
    """The dataVersion of a table."""
    digest = int.from_bytes(blake2b(fastjson.dumps(rows), digest_size=8).digest(), "big")
    time, counter = digest % (1 << TIME_BITS), digest >> 64 - COUNTER_BITS
    return {"counter": counter, "timestamp": time}


class Tables:
    """Answers with them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._snapshot: Snapshot | None = None
        self._written: dict[int, _Written] = {}  # the newest answer, by code

    async def give(self, slave: str, request: Command) -> Command:
        """The same for a slave, by its address, for a freeze to know."""
        was_frozen = self._broker.freeze.reason
        answer = await self.table(request)
        if was_frozen:
            self._broker.freeze.answered(slave, request.code)
        return answer

    async def table(self, request: Command) -> Command:
        """GET_ALL_TOPIC_CONFIG and its like. Raises NotMaster, Refused."""
        await self._broker.log.caught_up()
        self._broker.admission.check_current()
        tables = self._broker.metadata.tables
        if self._snapshot is None or self._snapshot.changes != tables.changes:
            self._snapshot = tables.snapshot()
        rows = TABLES[request.code].rows(self._snapshot)
        loop, threads = asyncio.get_running_loop(), self._broker.log.threads
        body = await loop.run_in_executor(threads, self._body, request.code, rows)
        if len(body) > FRAME_BYTES_MAX - HEADER_ROOM:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{TABLES[request.code].path} has {len(body)} bytes, which no frame of RocketMQ "
                f"holds (at most {FRAME_BYTES_MAX})",
            )
        return request.answer(0, body=body)

    def _body(self, code: int, rows: Json) -> bytes:
        """Encode as JSON; the last one if unchanged. Runs in a thread."""
        known = self._written.get(code)
        if known is not None and known.rows == rows:
            return known.body
        version = version_of(rows)
        # RocketMQ 5 wants one with every table.
        body = fastjson.dumps({**TABLES[code].wrap(rows, version), "dataVersion": version})
        self._written[code] = _Written(rows, body)
        return body


Serve = Callable[[str, Command], Begun]


@dataclass(frozen=True, slots=True)
class SlavesPort:
    """The port for RocketMQ's slaves. advertised: HOST:PORT, of this node."""

    section: RocketmqSlavesSection
    advertised: str

    def open_to_slaves(self, others: Handler, serve: Serve) -> Handler:
        """A handler that asks nothing of allowed addresses: brokers of RocketMQ do not sign."""

        def chosen(peer: Peer, request: Command) -> Begun:
            if self.section.allows(peer.host.address):
                return serve(peer.host.address, request)
            return others(peer, request)

        return chosen


class Registration:
    """Answers them."""

    def __init__(self, broker: Broker, routes: Routes, port: SlavesPort) -> None:
        """Other nodes of the group are reached at their hosts, by the same ports."""
        self._broker = broker
        self._routes = routes
        self._port = port

    def register(self, peer: Peer, request: Command) -> Command:
        """REGISTER_BROKER. Raises BadRequest, Refused, NotMaster."""
        header = read_header(RegisterRequest, request.fields)
        self._check(peer, header)
        master = self._routes.master
        if not master:
            raise sdk.NotMaster(f"no node is known to be the master of {self._broker.group}")
        where = {"haServerAddr": self._copied_from(master), "masterAddr": master}
        return request.answer(0, fields=where)

    def unregister(self, peer: Peer, request: Command) -> Command:
        """UNREGISTER_BROKER: only answers, as nothing is kept. Raises BadRequest, Refused."""
        self._check(peer, read_header(UnregisterBrokerRequest, request.fields))
        return request.answer(0)

    def _copied_from(self, master: str) -> str:
        """HOST:PORT where the master whose remoting port that is serves slaves."""
        if not self._broker.replication.not_master():
            return self._port.advertised
        return f"{master.rpartition(':')[0]}:{self._port.advertised.rpartition(':')[2]}"

    def _check(self, peer: Peer, header: UnregisterBrokerRequest) -> None:
        if not self._port.section.allows(peer.host.address):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the address {peer.host.address} is not in rocketmq_slaves.allow",
            )
        if header.broker_name != self._broker.group:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this node's replica group is {self._broker.group!r}, the broker's name is "
                f"{header.broker_name[:200]!r}: set brokerName to the name of the group",
            )
        if header.broker_id == MASTER_ID:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the group {self._broker.group!r} has a master: only slaves may register, with "
                "brokerRole=SLAVE and a brokerId above 0",
            )
