"""Executes the effects of the failover machine, in the same order for every owner.

The owner provides a registry, a disk, a clock and streams. Its calls that take time answer later,
with an event. Roles change one at a time, and the newest one requested is taken: in each, the node
first stops following, then promises the epoch durably, and only then acts in it.
"""

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import Failover, Role
from duolog_server.ha.failoverevents import (
    Answer,
    AskLease,
    Commit,
    Committed,
    DropLease,
    Effect,
    Event,
    Follow,
    Instruct,
    Lead,
    LeaseLost,
    Note,
    Observe,
    Stand,
    Tick,
    Wake,
)
from duolog_server.ha.mandate import Mandate, Mastership
from duolog_server.ha.membership import Membership
from duolog_server.ha.registry import Transaction
from duolog_server.store.clocks import MonoMs
from duolog_server.store.disk import no_room
from duolog_server.store.errors import StoreError


class FailoverOwner(Protocol):
    """A node whose master is elected, as its failover machine needs it."""

    def mono_ms(self) -> MonoMs:
        """The clock of leases and pauses."""

    def decided(self, event: Event | None, effects: list[Effect]) -> None:
        """Effects of the machine, not yet executed. event: None where a mastership began."""

    # -- the registry: each call answers later ---------------------------------------------------

    def ask_lease(self) -> None:
        """Get a lease and keep it renewed; `Leased` and `LeaseLost` report its state."""

    def drop_lease(self, lease: int) -> None:
        """End a lease."""

    def observe(self) -> None:
        """Read the group's keys; `Observed` follows."""

    def commit(self, number: int, transaction: Transaction) -> None:
        """Send a transaction; `Committed`, `Uncertain` or `lease_gone` follows."""

    # -- the node --------------------------------------------------------------------------------

    def note(self, found: Membership) -> None:
        """Sync a membership; `Noted` follows."""

    def wake(self, at_ms: MonoMs) -> None:
        """Step with a `Tick` at this time at the latest."""

    def answer(self, answer: Answer) -> None:
        """Tell an operator."""

    def instruct(self, mandate: Mandate) -> None:
        """Tell the master."""

    def stop_leading(self, reason: str) -> None:
        """Stop being the master at once; does nothing on a node that is not the master."""

    # -- roles -----------------------------------------------------------------------------------

    def spawn(self, change: Coroutine[object, None, None]) -> None:
        """Run a change of roles; an error of it ends the node."""

    async def follow_nobody(self) -> None:
        """End the stream from a master, if there is one."""

    async def promise(self, epoch: Epoch) -> None:
        """Promise an epoch, durably, while it follows no master. Raises OSError."""

    def cannot_promise(self, error: OSError) -> None:
        """The disk has no room for a promise: the master's handshake will ask for it."""

    def follow(self, effect: Follow) -> None:
        """Begin to copy a master's log."""

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        """Held while the log may be truncated: no sync runs."""

    def lead(self, effect: Lead) -> Mastership:
        """Open the epoch.

        After StoreError, or OSError for want of room, the node is a slave as before; any other
        OSError ends it.
        """

    def leading(self, effect: Lead) -> None:
        """The mastership has begun, and its machine knows it."""

    def cannot_lead(self, effect: Lead, error: OSError | StoreError) -> None:
        """The mastership could not begin."""


class FailoverDriver:
    """Passes events to one machine and executes its effects."""

    def __init__(self, machine: Failover, owner: FailoverOwner) -> None:
        self.machine = machine
        self._owner = owner
        self._role: Lead | Follow | Stand | None = None  # the newest that is not taken yet
        self._changing = False

    def step(self, event: Event) -> None:
        """Tell the machine of an event. Raises OSError and BadStoreFile, which end the node."""
        self._do(self.machine.step(event, self._owner.mono_ms()), event)

    def lease_gone(self, number: int) -> None:
        """A transaction was refused because its lease is not known any more."""
        self.step(LeaseLost(self.machine.lease))
        self.step(Committed(number, None))

    def _do(self, effects: list[Effect], event: Event | None = None) -> None:
        if effects:
            self._owner.decided(event, effects)
        for effect in effects:
            self._do_one(effect)

    def _do_one(self, effect: Effect) -> None:
        owner = self._owner
        match effect:
            case AskLease():
                owner.ask_lease()
            case DropLease(lease):
                owner.drop_lease(lease)
            case Observe():
                owner.observe()
            case Commit(number, transaction):
                owner.commit(number, transaction)
            case Note(found):
                owner.note(found)
            case Wake(at_ms):
                owner.wake(at_ms)
            case Answer():
                owner.answer(effect)
            case Instruct(mandate):
                owner.instruct(mandate)
            case Lead() | Follow() | Stand():
                if isinstance(effect, Stand):
                    # The mastership ends at once, whichever role follows and whenever it does.
                    owner.stop_leading(effect.reason)
                self._role = effect
                if not self._changing:
                    self._changing = True
                    owner.spawn(self._change_roles())

    # -- roles ---------------------------------------------------------------------------------

    async def _change_roles(self) -> None:
        """Change to the newest role requested, until none is newer."""
        while self._role is not None:
            effect, self._role = self._role, None
            await self._owner.follow_nobody()
            match effect:
                case Follow():
                    await self._follow(effect)
                case Lead():
                    await self._lead(effect)
        self._changing = False

    async def _follow(self, effect: Follow) -> None:
        try:
            await self._owner.promise(effect.epoch)
        except OSError as error:
            if not no_room(error):
                raise
            self._owner.cannot_promise(error)
        self._owner.follow(effect)

    async def _lead(self, effect: Lead) -> None:
        machine, owner = self.machine, self._owner
        try:
            await owner.promise(effect.epoch)
            async with owner.no_flush():
                if machine.role is not Role.LEADING or machine.led_epoch != effect.epoch:
                    return  # over before it began
                master = owner.lead(effect)
        except (OSError, StoreError) as error:
            # After a full disk the node is as before. After another fault a cut may be half done:
            # readers would see what is not confirmed.
            if isinstance(error, OSError) and not no_room(error):
                raise
            owner.cannot_lead(effect, error)
            self._do(machine.cannot_lead(str(error), owner.mono_ms()))
            return
        self._do(machine.leads(master))
        owner.leading(effect)
        self.step(Tick())
