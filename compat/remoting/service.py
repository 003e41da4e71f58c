"""The remoting protocol's service: routes requests to handlers, and counts their results."""

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from duolog import _errors as sdk
from duolog._background import Background

from duolog_server.compat.remoting.administration.consumers.membertable import MemberTable
from duolog_server.compat.remoting.administration.refused import unsupported
from duolog_server.compat.remoting.administration.table import Administration
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.consuming.assignments import Assignments
from duolog_server.compat.remoting.consuming.clients import Clients
from duolog_server.compat.remoting.consuming.offsets import Commits, Offsets
from duolog_server.compat.remoting.consuming.popping import Popping
from duolog_server.compat.remoting.consuming.pulling import Pulling
from duolog_server.compat.remoting.guarding.authenticator import Authenticator
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.lookups import Queries, reached_at
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.naming import Registrar
from duolog_server.compat.remoting.port.dispatcher import (
    Begun,
    Handler,
    Peer,
    Served,
    Stored,
    tried,
)
from duolog_server.compat.remoting.producing.replies import Replies
from duolog_server.compat.remoting.producing.sending import Sending
from duolog_server.compat.remoting.producing.transactions import Transactions
from duolog_server.compat.remoting.refusals import refusal
from duolog_server.compat.remoting.relay import Relay
from duolog_server.compat.remoting.replicas import TABLES, Registration, SlavesPort, Tables
from duolog_server.compat.remoting.routes import Routes
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.node.core.traffic import RPC_BOUNDS, CallTimes
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.runtime.config import RemotingSection
from duolog_server.store.status import PutMessageStatus

EXPIRE_SECONDS = 10.0
TICK_SECONDS = 1.0
STOP_SECONDS = 2.0  # for the commits of the last second
COUNTED_BYTES = 16 << 10  # of an answer
LONG_BYTES, LONG_MAX = 16 << 10, 64  # of a body in JSON; requests with one that wait
Key = tuple[str, str, bool, str]  # request, response code, long polling, result
_NAMES = {code.value: code.name.lower() for code in RequestCode}
_ENDS = {code.value: code.name.lower() for code in ResponseCode}
SUCCESS, FAILED = "success", "process_request_failed"
OTHER = "other"  # a code that a client chose, for an answer that is passed on
_WAITING = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
)
_SENDING = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)
_READS_JSON = (
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The service's surroundings in a node.

    Attributes:
        section: the settings of the port.
        advertised: HOST:PORT for clients.
        verbs: what tools of RocketMQ ask for.
        authenticator: None where anybody may do everything.
        slaves: where RocketMQ's copy the log; None: nowhere, and what they alone ask for is
            refused.
    """

    section: RemotingSection
    advertised: str
    verbs: Verbs
    authenticator: Authenticator | None = None
    slaves: SlavesPort | None = None


class RemotingService:
    """Serves requests of all connections.

    Attributes:
        members: clients of consumer groups.
        times: how long requests took, where that is measured.
    """

    def __init__(self, broker: Broker, around: Surroundings, timed: bool = False) -> None:
        """timed: whether metrics are wanted. Raises OSError (certificates of name servers)."""
        self._broker = broker
        self._authenticator = authenticator = around.authenticator
        advertised, slaves = around.advertised, around.slaves
        self._sight = sight = authenticator.sight if authenticator is not None else Sight()
        self._throttle = broker.core.throttle
        self.times: CallTimes[Key] = CallTimes(RPC_BOUNDS)
        self._is_timed = timed
        self._turn = asyncio.Lock()  # of long requests
        self._long = 0
        self.members = Members()
        self._commits = Commits(broker)
        offsets = Offsets(broker, self._commits, self.members)
        self._clients = clients = Clients(broker, self.members, sight)
        self._running = Background(broker.give_up)
        host = reached_at(advertised, broker.store.store_host)
        broker.dialects.remoting_host = host
        self._routes = routes = Routes(broker, advertised)
        # What is signed counts at the node that it was sent to: such requests are not passed on.
        master = routes.master_elsewhere if authenticator is None else str
        self._relay = relay = Relay(master, self._throttle, broker.limits.request_bytes_max)
        self._sending = sending = Sending(broker, sight, host, relay)
        stores = around.section.store_reply_message_enable
        replies = Replies(broker, self.members, sending, sight, stores)
        pulling = Pulling(broker, self.members, offsets)
        popping = Popping(broker, self.members, offsets)
        assignments = Assignments(broker, self.members)
        self._transactions = transactions = Transactions(broker, self.members, sight)
        queries = Queries(broker, sight, host)
        self._registrar = Registrar(broker, around.section, advertised)
        self._handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: sending.send,
            RequestCode.SEND_MESSAGE_V2: sending.send,
            RequestCode.SEND_BATCH_MESSAGE: sending.send,
            RequestCode.SEND_REPLY_MESSAGE: replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.reply,
            RequestCode.PULL_MESSAGE: pulling.pull,
            RequestCode.LITE_PULL_MESSAGE: pulling.pull,
            RequestCode.POP_MESSAGE: popping.pop,
            RequestCode.ACK_MESSAGE: lambda _, request: popping.ack(request),
            RequestCode.BATCH_ACK_MESSAGE: lambda _, request: popping.ack_batch(request),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: lambda _, request: popping.change(request),
            RequestCode.QUERY_ASSIGNMENT: lambda _, request: assignments.query(request),
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda _, request: offsets.update(request),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda _, request: offsets.search(request),
            RequestCode.GET_MAX_OFFSET: offsets.end,
            RequestCode.GET_MIN_OFFSET: offsets.end,
            RequestCode.GET_EARLIEST_MSG_STORETIME: lambda _, request: offsets.earliest(request),
            RequestCode.QUERY_MESSAGE: queries.query,
            RequestCode.VIEW_MESSAGE_BY_ID: queries.view,
            RequestCode.END_TRANSACTION: lambda _, request: transactions.end(request),
            RequestCode.LOCK_BATCH_MQ: lambda _, request: clients.lock(request),
            RequestCode.UNLOCK_BATCH_MQ: lambda _, request: clients.unlock(request),
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _, request: clients.send_back(request),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda _, request: clients.ids(request),
            RequestCode.CHECK_CLIENT_CONFIG: lambda _, request: clients.check(request),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda _, request: routes.route(request),
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda _, request: routes.cluster(request),
        }
        self._administration = administration = Administration(
            broker, self.members, around.verbs, advertised, sight
        )
        self._handlers.update(administration.handlers)
        tables = Tables(broker)
        table = administration.bounded(lambda _, request: tables.table(request), is_list=True)
        self._handlers.update(dict.fromkeys(TABLES, table))
        self._handlers = {code: self._guarded(code, one) for code, one in self._handlers.items()}
        if slaves is not None:
            self._serve_slaves(Registration(broker, routes, slaves), tables, slaves)

    def _guarded(self, code: int, handler: Handler) -> Handler:
        authenticator = self._authenticator
        return handler if authenticator is None else authenticator.guard.wrap(code, handler)

    def _serve_slaves(self, registration: Registration, tables: Tables, port: SlavesPort) -> None:
        """Serve RocketMQ's brokers, which do not sign: their addresses are allowed."""
        self._handlers[RequestCode.REGISTER_BROKER] = registration.register
        self._handlers[RequestCode.UNREGISTER_BROKER] = registration.unregister
        for code in TABLES:
            self._handlers[code] = port.open_to_slaves(self._handlers[code], tables.give)

    def start(self) -> None:
        """Start storing commits, and letting go of silent clients."""
        self._running.start(self._commits.run())
        self._running.start(self._expire())
        self._running.start(self._tick())
        self._running.start(self._clients.keep_telling())
        self._transactions.start()
        self._broker.dialects.remoting_members = lambda group: len(self.members.ids(group))
        self._broker.dialects.remoting_route = self._routes.of
        self._broker.connected.add(MemberTable(self.members, self._broker.times))

    def join(self) -> None:
        """Register at name servers; the port is open."""
        self._registrar.start()

    async def leave(self) -> None:
        """Unregister this node at name servers, before its connections end."""
        await self._registrar.stop()

    async def stop(self) -> None:
        """Store what was committed; every connection has ended."""
        await self._relay.stop()
        await self._running.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._commits.store()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._clients.tick()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._clients.expire()
            self._administration.tick()

    # -- connections ---------------------------------------------------------------------------

    def joined(self, peer: Peer) -> None:
        """A connection begins. Raises Throttled where its address has too many.

        Where there are users, a connection counts as that of the user who sends something.
        """
        if not self._sight.is_limited:
            self._throttle.joined(Who.at("", peer.host.address), peer.name)

    def left(self, peer: Peer) -> None:
        """It ended."""
        if self._authenticator is not None:
            self._authenticator.guard.left(peer)
        if not self._sight.is_limited:
            self._throttle.left(Who.at("", peer.host.address), peer.name)
        self._clients.gone(peer)

    # -- requests ------------------------------------------------------------------------------

    @property
    def codes(self) -> frozenset[int]:
        """The codes of the served requests."""
        return frozenset(self._handlers)

    def serve(self, peer: Peer, request: Command) -> Begun:
        """The answer, or what makes it. Raises what `refusal` has answers for."""
        handler = self._handlers.get(request.code)
        if handler is None:
            return unsupported(request)
        if self._relay.takes(peer, request):
            handler = self._relay.pass_on
        serve = partial(self._timed, handler) if self._is_timed else handler
        if len(request.body) > LONG_BYTES and request.code in _READS_JSON:
            return self._in_turn(serve, peer, request)
        begun = serve(peer, request)
        if isinstance(begun, Command) and len(begun.body) > COUNTED_BYTES:
            self._count(peer, len(begun.body))
        return begun

    def serve_each(self, peer: Peer, requests: Sequence[Command]) -> list[Served]:
        """Serve sends that arrived together; returns errors."""
        if self._authenticator is not None or not self._sending.stores_at_once:
            return [tried(self.serve, peer, request) for request in requests]
        began = perf_counter()
        found = self._sending.send_each(peer, requests)
        if not self._is_timed:
            return found
        pairs = zip(requests, found, strict=True)
        return [self._timed_end(begun, request, began) for request, begun in pairs]

    async def _in_turn(self, serve: Handler, peer: Peer, request: Command) -> Command:
        """A request that takes long to read: one at a time of all clients, and others' turn comes
        in between. Raises Busy.
        """
        if self._long >= LONG_MAX:
            raise sdk.Busy(f"{LONG_MAX} long requests wait for their turn")
        self._long += 1  # here: one that is cancelled before it begins waits for nothing
        try:
            async with self._turn:
                await asyncio.sleep(0)
                begun = serve(peer, request)
        finally:
            self._long -= 1
        return begun if isinstance(begun, Command) else await begun

    def _count(self, peer: Peer, size: int) -> None:
        """Count a long answer until its client has taken it. Raises Busy over the limit."""
        untaken, address = self._broker.untaken, Who.at("", peer.host.address).address
        if not untaken.room(address):
            raise sdk.Busy("the client takes no answers (limits.answers_bytes_max)")
        untaken.take(address, size)
        peer.after_answer(lambda: untaken.give(address, size))

    def holds(self, request: Command) -> bool:
        """Whether a request may wait for messages."""
        return request.code in _WAITING

    def repeats(self, code: int) -> bool:
        """Whether a client that has its answer is likely to send such a request again at once."""
        return code in _SENDING

    def refusal(self, request: Command, error: Exception) -> Command | None:
        """The answer to a request that failed so; None for a bug."""
        found = refusal(error)
        return None if found is None else request.answer(*found)

    # -- metrics -------------------------------------------------------------------------------

    def _timed(self, handler: Handler, peer: Peer, request: Command) -> Begun:
        began = perf_counter()
        try:
            begun = handler(peer, request)
        except Exception as error:  # a local that kept it would be a cycle, with the request
            self._note(request, began, refusal(error))
            raise
        return self._timed_begun(begun, request, began)

    def _timed_end(self, begun: Served, request: Command, began: float) -> Served:
        """Note how long it took, now or when it is answered."""
        if isinstance(begun, bytes):
            self._note(request, began, (ResponseCode.SUCCESS, ""))
            return begun
        if isinstance(begun, Exception):
            self._note(request, began, refusal(begun))
            return begun
        return self._timed_begun(begun, request, began)

    def _timed_begun(self, begun: Begun, request: Command, began: float) -> Begun:
        if isinstance(begun, Command):
            self._note(request, began, (begun.code, ""))
            return begun
        if isinstance(begun, Stored):
            return begun._replace(answer=partial(self._timed_answer, begun, began))
        later = self._timed_later(begun, request.bare(), began)
        weakref.finalize(later, begun.close)  # one that never begins does not await it
        return later

    def _timed_answer(self, stored: Stored, began: float, status: PutMessageStatus) -> Command:
        answer = stored.answer(status)
        self._note(stored.request, began, (answer.code, ""))
        return answer

    async def _timed_later(
        self, begun: Coroutine[Any, Any, Command], request: Command, began: float
    ) -> Command:
        try:
            answer = await begun
        except Exception as error:
            self._note(request, began, refusal(error))
            raise
        self._note(request, began, (answer.code, ""))
        return answer

    def _note(self, request: Command, began: float, end: tuple[int, str] | None) -> None:
        """end: None for a bug."""
        code, result = ("", FAILED) if end is None else (_ENDS.get(end[0], OTHER), SUCCESS)
        key = (_NAMES[request.code], code, self.holds(request), result)
        self.times.note(key, 1000 * (perf_counter() - began))
