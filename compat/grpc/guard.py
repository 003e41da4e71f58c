"""The guard before RocketMQ's API, on a node with users: who calls, and what they may do.

It recognises the caller of a call, and makes headers for the service that are true: without what
was signed, and with the user's name, which also begins the client's id, so that nobody acts as
another user's client. Another node of the cluster has recognised the caller of what it forwards;
its word counts if it bears the cluster's mark.

What was allowed when a telemetry stream began may have been forbidden since: a stream ends when its
user, or the right to its topics, is gone.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol
from urllib.parse import quote, unquote

from duolog import _errors as sdk

from duolog_server.compat.grpc.auth import Dates, Signatures
from duolog_server.compat.grpc.relay.calls import CLIENT_ID, OWN, PEER, PROOF, USER, Header
from duolog_server.compat.grpc.relay.nodes import Marks
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.access import Access
from duolog_server.node.identity.access.gate import Gate, Principal
from duolog_server.node.identity.access.rules import Needs
from duolog_server.node.identity.rights.resources import Need
from duolog_server.node.runtime.config import AccessSection
from duolog_server.node.service.guard import DENIED, Guard
from duolog_server.node.wirecodec import peer_host

WATCH_SECONDS = 1.0
Headers = dict[str, str | bytes]


class Recognises(Protocol):
    """Knows users by what they sign."""

    def principal(self, headers: Headers, peer: str) -> Principal:
        """The user that signed a call. Raises Unauthenticated, Throttled.

        peer: the caller's address and port, as gRPC names them.
        """


class Session:
    """A telemetry stream: what its last settings need, and its end."""

    def __init__(self, guard: Guard, principal: Principal) -> None:
        self._guard = guard
        self._principal = principal
        self._needs: tuple[Need, ...] = ()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, needs: Needs) -> None:
        """Note what new settings need. Raises Unauthenticated or NoPermission."""
        needs = tuple(needs)
        self.check(needs)
        self._needs = needs or self._needs

    def check(self, more: Needs = ()) -> None:
        """Raise Unauthenticated or NoPermission if the stream, or `more` for it, is refused."""
        self._guard.check_known(self._principal, (*self._needs, *more))

    def end_if_refused(self) -> None:
        """End the stream if it may not continue."""
        try:
            self.check()
        except DENIED as error:
            if not self._over.done():
                self._over.set_exception(error)

    async def over(self) -> None:
        """Wait for the end of the stream; raises why it ends."""
        await self._over


class RocketmqGuard:
    """Recognises callers.

    Attributes:
        core: what all protocols ask.
    """

    def __init__(self, core: Guard, gate: Gate, users: Recognises, marks: Marks) -> None:
        self.core = core
        self.facts, self.check = core.facts, core.check
        self._gate = gate
        self._users = users
        self._marks = marks
        self._sessions: set[Session] = set()

    def vouch(self, headers: Iterable[Header]) -> list[Header]:
        """Headers of a call that this node forwards, with the mark of the cluster."""
        made = dict(headers)
        if user := made.get(USER):
            made[PROOF] = self._proof(unquote(str(user)))
        return self._marks.added(made.items())

    def _proof(self, name: str) -> str:
        return self._marks.proof(name, self._gate.secret(name) or "")

    # -- who -----------------------------------------------------------------------------------

    def recognise(self, context: Any, method: str) -> tuple[Principal, Headers]:
        """Who calls a method, and headers for the service. Raises Unauthenticated, Refused
        (UNAUTHORIZED) for headers that only nodes may send, and those of a call of another method.
        """
        headers = dict(context.invocation_metadata() or ())
        peer = str(context.peer())
        if any(name.startswith(OWN) for name in headers):
            self._marks.check(headers, method)
            peer = str(headers.get(PEER, ""))
        source = peer_host(peer).address
        if user := headers.get(USER):
            return self._forwarded(unquote(str(user)), source, headers), headers
        principal = self._users.principal(headers, peer)
        headers.pop("authorization", None)
        headers[USER] = user = quote(principal.name, safe="")
        if client_id := headers.get(CLIENT_ID):
            headers[CLIENT_ID] = f"{user}/{client_id!s}"
        return principal, headers

    def _forwarded(self, name: str, source: str, headers: Headers) -> Principal:
        """A user that another node recognised, if its password is still the same."""
        principal = self._gate.by_signature(name, source)
        if headers.get(PROOF) != self._proof(name):
            raise sdk.Unauthenticated(f"user {name} has another password now")
        return principal

    def begin(self, principal: Principal) -> Session:
        """A telemetry stream of a user begins. Raises Unauthenticated."""
        session = Session(self.core, principal)
        session.check()
        self._sessions.add(session)
        return session

    def end(self, session: Session) -> None:
        """A telemetry stream ended."""
        self._sessions.discard(session)

    async def run(self) -> None:
        """End the telemetry streams of users whose rights are gone, until cancelled."""
        seen = self._gate.version
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if seen != self._gate.version:
                seen = self._gate.version
                for session in list(self._sessions):
                    session.end_if_refused()


def guard_of(core: Guard, broker: Broker, access: Access, section: AccessSection) -> RocketmqGuard:
    """The guard of a node with users."""
    wall_ms, seconds = broker.times.wall_ms, section.date_window_seconds
    signatures = Signatures(access.gate, Dates(seconds, section.zones(), wall_ms))
    marks = Marks(access.vouching, wall_ms)
    return RocketmqGuard(core, access.gate, signatures, marks)
