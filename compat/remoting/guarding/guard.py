"""The guard before the requests of the remoting protocol: who sends one, and what its rule says.

What was allowed when a request began may have been forbidden when it is answered: a request whose
rule says so is looked at again. A node that may lack the newest users and rights does not say no:
it says that it is not the master. Nor is a request served that another node passed on: it would
count as that node's, and where requests are signed no node does that.
"""

import weakref
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.guarding.callers import Callers
from duolog_server.compat.remoting.port.dispatcher import Begun, Handler, Peer
from duolog_server.compat.remoting.relay import RELAYED
from duolog_server.compat.remoting.rules import RULES, SUPERS_ONLY
from duolog_server.node.api.guard import NEEDS_AT_ONCE, Guard
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.core.slices import Slices
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Need

DENIED = (sdk.Unauthenticated, sdk.NoPermission)
_NAMES = {code.value: code.name for code in RequestCode}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that is allowed, as far as was looked. needs: of its rule, the first ones."""

    code: int
    principal: Principal
    needs: tuple[Need, ...]


class RequestGuard:
    """Wraps what serves requests, so that each is served to those only who may send it."""

    def __init__(
        self,
        callers: Callers,
        guard: Guard | None,
        throttle: Throttle,
        audit: AuditLog | None = None,
    ) -> None:
        """guard: None where there are no users. audit: None where there is none."""
        self._callers = callers
        self._guard = guard
        self._throttle = throttle
        self._audit = audit
        self._users: dict[Peer, set[Who]] = {}  # that sent something over a connection

    def wrap(self, code: int, handler: Handler) -> Handler:
        """What serves a request, with its rule before it."""
        rule = RULES.get(code, SUPERS_ONLY)

        def serve(peer: Peer, request: Command) -> Begun:
            if request.flag & RELAYED:
                raise sdk.Unavailable("requests are signed here: send this one to this node itself")
            principal = self._recognised(peer, request)
            if principal is None or self._guard is None:
                return handler(peer, request)
            self._joins(peer, principal)
            needs = iter(rule.needs(request, self._guard.facts))
            asked = _Asked(code, principal, tuple(islice(needs, NEEDS_AT_ONCE)))
            self._check(asked, asked.needs)
            PRINCIPAL.set(principal)  # also of what waits: its task begins in this turn
            more = next(needs, None)
            if more is not None:
                rest = chain((more,), needs)
                return self._slowly(asked, rest, lambda: handler(peer, request))
            begun = handler(peer, request)
            if isinstance(begun, Command) or not rule.again:
                return begun
            answering = self._answering(asked, begun)
            weakref.finalize(answering, begun.close)  # one that never begins does not await it
            return answering

        return serve

    def left(self, peer: Peer) -> None:
        """A connection ended."""
        for who in self._users.pop(peer, ()):
            self._throttle.left(who, peer.name)

    # -- who -----------------------------------------------------------------------------------

    def _recognised(self, peer: Peer, request: Command) -> Principal | None:
        """Raises Unauthenticated; NotMaster where the node may lack the user."""
        try:
            return self._callers.recognise(peer, request)
        except sdk.Unauthenticated as error:
            if self._guard is not None:
                self._guard.facts.check_knows()
            self._note(Who.at("", peer.host.address), request.code, "", error)
            raise

    def _joins(self, peer: Peer, principal: Principal) -> None:
        """Count a connection as its user's. Raises Throttled where that has too many."""
        who = Who.at(principal.name, principal.source)
        known = self._users.get(peer)
        if known is None or who not in known:
            self._throttle.joined(who, peer.name)
            self._users.setdefault(peer, set()).add(who)

    # -- what ----------------------------------------------------------------------------------

    def _check(self, asked: _Asked, needs: tuple[Need, ...]) -> None:
        """Raise Unauthenticated, NoPermission or NotMaster unless the user may do all of it."""
        assert self._guard is not None, "there are users"
        try:
            self._guard.check(asked.principal, needs)
        except DENIED as error:
            who = Who.at(asked.principal.name, asked.principal.source)
            self._note(who, asked.code, needs[0].resource.text if needs else "", error)
            raise

    def _note(self, who: Who, code: int, resource: str, error: Exception) -> None:
        if self._audit is not None:
            self._audit.denied(who, f"Remoting/{_NAMES.get(code, code)}", resource, error)

    async def _slowly(
        self, asked: _Asked, rest: Iterator[Need], serve: Callable[[], Begun]
    ) -> Command:
        """Of a request that asks for very much: others have turns meanwhile."""
        async for part in Slices().parts(rest, NEEDS_AT_ONCE):
            self._check(asked, tuple(part))
        begun = serve()
        return begun if isinstance(begun, Command) else await begun

    async def _answering(self, asked: _Asked, begun: Coroutine[Any, Any, Command]) -> Command:
        """Look again before the answer."""
        answer = await begun
        self._check(asked, asked.needs)
        return answer
