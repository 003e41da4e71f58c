"""The guard: whether a caller may do what its call asks for. All protocols ask it.

A protocol finds the caller, names what a call needs, and maps the error. A node that may lack the
newest users and rights does not deny a call: it names its master, which has them. Rights may be
withdrawn while a call waits, so a call that takes long is checked again.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from duolog import _errors as sdk

from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.gate import Gate, Principal
from duolog_server.node.identity.access.rules import Facts, May
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Need

DENIED = (sdk.Unauthenticated, sdk.NoPermission)
NEEDS_AT_ONCE = 50  # that are decided in one step


class Guard:
    """Asks the gate, and notes denied calls in the audit log."""

    def __init__(self, gate: Gate, facts: Facts, audit: AuditLog | None = None) -> None:
        """audit: None where there is none."""
        self._gate = gate
        self.facts = facts
        self._audit = audit

    @property
    def version(self) -> int:
        """Grows with each change of users and rights."""
        return self._gate.version

    @contextmanager
    def final(self) -> Iterator[None]:
        """Raise NotMaster instead of a denial if this node may lack the newest users and rights."""
        try:
            yield
        except (*DENIED, sdk.Throttled):
            self.facts.check_knows()
            raise

    def check(self, principal: Principal, needs: Collection[Need], method: str = "") -> None:
        """Raise Unauthenticated or NoPermission unless a caller has all these rights; NotMaster if
        this node may lack the newest ones.

        method: the name under which a denial is noted; empty if the caller of this notes it.
        """
        try:
            self._gate.check(principal, needs)
        except DENIED as error:
            self.facts.check_knows()
            if method:
                resource = next((need.resource.text for need in needs), "")
                self.denied(principal, method, resource, error)
            raise

    def check_known(self, principal: Principal, needs: Iterable[Need]) -> None:
        """As `check`, by the users and rights that this node has, which may be outdated."""
        self._gate.check(principal, needs)

    def check_some(
        self, principal: Principal, needs: Iterator[Need], method: str = ""
    ) -> tuple[Need, ...]:
        """Check the first needs, as many as one step may; those needs. Raises as `check`."""
        some = tuple(islice(needs, NEEDS_AT_ONCE))
        self.check(principal, some, method)
        return some

    async def check_all(
        self, principal: Principal, needs: Iterable[Need], method: str = ""
    ) -> None:
        """Check needs that may be very many, in steps between which other calls have turns.

        Raises as `check`.
        """
        rest = iter(needs)
        if len(self.check_some(principal, rest, method)) == NEEDS_AT_ONCE:
            async for part in Slices().parts(rest, NEEDS_AT_ONCE):
                self.check(principal, part, method)

    def allows(self, principal: Principal) -> May:
        """A test of what a caller may do, by the tables at the time of each test."""
        return lambda *needs: self._gate.allows(principal, needs)

    async def why_denied(self, principal: Principal, needs: Iterable[Need], slices: Slices) -> str:
        """Why a call that a caller thinks of would be denied; empty: it would not. In slices."""
        async for need in slices.each(needs):
            if why := self._gate.why_denied(principal, need):
                return why
        return ""

    def may(self, principal: Principal) -> May | None:
        """As `allows`; None for a super user, who may do everything."""
        return None if self._gate.is_super(principal) else self.allows(principal)

    def denied(self, who: Principal | Who, method: str, resource: str, error: Exception) -> None:
        """Note a call that was denied. who: an address, where no user is known."""
        note_denied(self._audit, who, method, resource, error)


def note_denied(
    audit: AuditLog | None, who: Principal | Who, method: str, resource: str, error: Exception
) -> None:
    """Note a call that was denied, also where there are no users."""
    if audit is not None:
        known = Who.at(who.name, who.source) if isinstance(who, Principal) else who
        audit.denied(known, method, resource, error)
