"""The guard before the requests of the remoting protocol: who sends one, and what its rule says.

What was allowed when a request began may have been forbidden when it is answered: a request whose
rule says so is looked at again. A node that may lack the newest users and rights does not say no:
it says that it is not the master. Nor is a request served that another node passed on: it would
count as that node's, and where requests are signed no node does that.
"""

import weakref
from collections.abc import Awaitable, Callable, Coroutine
from itertools import chain
from typing import Any

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.guarding.callers import Callers
from duolog_server.compat.remoting.port.dispatcher import Begun, Handler, Peer
from duolog_server.compat.remoting.relay import RELAYED
from duolog_server.compat.remoting.rules import RULES, SUPERS_ONLY
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.service.guard import Guard, note_denied

_NAMES = {code.value: code.name for code in RequestCode}


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
        rule, guard = RULES.get(code, SUPERS_ONLY), self._guard

        def serve(peer: Peer, request: Command) -> Begun:
            if request.flag & RELAYED:
                raise sdk.Unavailable("requests are signed here: send this one to this node itself")
            principal = self._recognised(peer, request)
            if principal is None or guard is None:
                return handler(peer, request)
            self._joins(peer, principal)
            needs, method = iter(rule.needs(request, guard.facts)), _shown(code)
            first = guard.check_some(principal, needs, method)
            PRINCIPAL.set(principal)  # also of what waits: its task begins in this turn
            more = next(needs, None)
            if more is not None:
                rest = chain((more,), needs)
                return _slowly(
                    lambda: guard.check_all(principal, rest, method), lambda: handler(peer, request)
                )
            begun = handler(peer, request)
            if not (rule.again and isinstance(begun, Coroutine)):  # what is stored is not read
                return begun
            answering = _answering(begun, lambda: guard.check(principal, first, method))
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
        except (sdk.Unauthenticated, sdk.Throttled) as error:
            if self._guard is not None:
                self._guard.facts.check_knows()
            if isinstance(error, sdk.Throttled):
                raise  # the lock-out is noted where it begins
            note_denied(self._audit, Who.at("", peer.host.address), _shown(request.code), "", error)
            raise

    def _joins(self, peer: Peer, principal: Principal) -> None:
        """Count a connection as its user's. Raises Throttled where that has too many."""
        who = Who.at(principal.name, principal.source)
        known = self._users.get(peer)
        if known is None or who not in known:
            self._throttle.joined(who, peer.name)
            self._users.setdefault(peer, set()).add(who)


def _shown(code: int) -> str:
    """A request, as the audit log names it."""
    return f"Remoting/{_NAMES.get(code, code)}"


async def _slowly(check: Callable[[], Awaitable[None]], serve: Callable[[], Begun]) -> Command:
    """Check and serve a request with very many needs: other requests have turns meanwhile."""
    await check()
    begun = serve()
    return begun if isinstance(begun, Command) else await begun


async def _answering(begun: Coroutine[Any, Any, Command], check: Callable[[], None]) -> Command:
    """Look again before the answer."""
    answer = await begun
    check()
    return answer
