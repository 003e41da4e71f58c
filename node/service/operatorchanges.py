"""Changes by operators, over any protocol: each is authorised and audited here, once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.node.audit.auditing import GONE
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.audit.entry import Decision, Entry
from duolog_server.node.core.admission import Admission
from duolog_server.node.identity.access.gate import PRINCIPAL, name_of_caller
from duolog_server.node.identity.access.rules import Facts
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Need, Resource
from duolog_server.node.service.guard import DENIED, Guard
from duolog_server.node.wirecodec import error_to_sdk
from duolog_server.store.errors import StoreError


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """A change that an operator requests.

    Attributes:
        method: as the audit log names it: Admin/PutGroup.
        about: the resource that it changes.
        needs: the rights that it requires.
        shown: its settings, as the audit log has them: no secrets.
        plan: it only tells what it would change, which is noted where it is denied.
    """

    method: str
    about: Resource
    needs: Callable[[Facts], Collection[Need]]
    shown: Mapping[str, object]
    plan: bool = False


class OperatorChanges:
    """Authorises changes of operators, and notes in the audit log how they end."""

    def __init__(
        self,
        caught_up: Callable[[], Awaitable[None]],
        admission: Admission,
        guard: Guard | None,
        audit: AuditLog | None,
    ) -> None:
        """caught_up: of the log. guard: None where there are no users. audit: None if it is off."""
        self._caught_up = caught_up
        self._admission = admission
        self._guard = guard
        self._audit = audit

    @asynccontextmanager
    async def taken(self, address: str, change: OperatorChange) -> AsyncIterator[None]:
        """Authorise a change for the caller of this task, at an address; note how the body ends.

        The body runs once the tables take changes, and does its own checks. Raises
        Unauthenticated, NoPermission, NotMaster, and errors of the store as those of the SDK.
        """
        try:
            self._authorise(change)
            await self._caught_up()
            await self._admission.until_taken()
            yield
        except (sdk.DuologError, StoreError) as error:
            found = error_to_sdk(error)
            self._note(address, change, found)
            raise found from None
        except BaseException as error:
            self._note(address, change, error)
            raise
        self._note(address, change)

    def _authorise(self, change: OperatorChange) -> None:
        if self._guard is None:
            return
        principal = PRINCIPAL.get()
        if principal is None:
            raise sdk.Unauthenticated("this node has users, and the call names none")
        self._guard.check(principal, change.needs(self._guard.facts))

    def _note(
        self, address: str, change: OperatorChange, error: BaseException | None = None
    ) -> None:
        if self._audit is None or isinstance(error, sdk.NotMaster):
            return  # the master decides, and notes it
        if change.plan and not isinstance(error, DENIED):
            return
        decision, reason = Decision.ALLOWED, ""
        if isinstance(error, DENIED):
            decision, reason = Decision.DENIED, str(error)
        elif isinstance(error, sdk.DuologError):
            decision, reason = Decision.FAILED, f"{type(error).__name__}: {error}"
        elif error is not None:
            gone = isinstance(error, asyncio.CancelledError)
            decision, reason = Decision.FAILED, GONE if gone else type(error).__name__
        at, who = self._audit.wall_ms, Who.at(name_of_caller(), address)
        shown = {} if decision is Decision.DENIED else change.shown
        self._audit.note(Entry(at, *who, change.method, change.about.text, decision, reason, shown))
