"""Effects of the failover machine are executed in order; roles change one at a time."""

import contextlib
import errno
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from duolog_server.ha import failoverevents as said
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import Failover, Role
from duolog_server.ha.failoverdriver import FailoverDriver
from duolog_server.ha.groupstate import Registration, Replica
from duolog_server.ha.mandate import Mandate, Mastership
from duolog_server.ha.membership import Membership
from duolog_server.ha.registry import Transaction
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from sim.later import Later, drive

A, B = Replica("a", 1), Replica("b", 2)
MANDATE = Mandate(A, frozenset((A,)), frozenset((A,)), MonoMs(100))
LEAD = said.Lead(Epoch(3), MANDATE)
FOLLOW = said.Follow(Registration(B, "b:1", "b:2"), Epoch(2))
STAND = said.Stand("why")
OPENED = cast("Mastership", object())


class Machine:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.role, self.led_epoch, self.lease = Role.LEADING, 3, 7
        self.told: list[object] = []
        self.says: list[said.Effect] = []

    def step(self, event: said.Event, now_ms: MonoMs) -> list[said.Effect]:
        self.told.append(event)
        says, self.says = self.says, []
        return says

    def leads(self, master: Mastership) -> list[said.Effect]:
        assert master is OPENED
        self.told.append("leads")
        return [said.Instruct(MANDATE)]

    def cannot_lead(self, reason: str, now_ms: MonoMs) -> list[said.Effect]:
        self.told.append(f"cannot lead: {reason}")
        return [STAND]


class Node:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.driver = FailoverDriver(cast("Failover", self.machine), self)
        self.did: list[object] = []
        self.promises: list[Later] = []
        self.refuses: OSError | StoreError | None = None

    def says(self, *effects: said.Effect) -> list[object]:
        """What is done where the machine says this; since the last call."""
        self.machine.says = list(effects)
        self.driver.step(said.Tick())
        return self.news()

    def news(self) -> list[object]:
        did, self.did = self.did, []
        return did

    def promised(self, error: OSError | None = None) -> list[object]:
        """The oldest promise is on the disk, or could not be written."""
        self.promises.pop(0).end(error)
        return self.news()

    def mono_ms(self) -> MonoMs:
        return MonoMs(5)

    def decided(self, event: said.Event | None, effects: list[said.Effect]) -> None:
        pass

    def ask_lease(self) -> None:
        self.did.append("ask lease")

    def drop_lease(self, lease: int) -> None:
        self.did.append(("drop lease", lease))

    def observe(self) -> None:
        self.did.append("observe")

    def commit(self, number: int, transaction: Transaction) -> None:
        self.did.append(("commit", number, transaction))

    def note(self, found: Membership) -> None:
        self.did.append(("note", found))

    def wake(self, at_ms: MonoMs) -> None:
        self.did.append(("wake", at_ms))

    def answer(self, answer: said.Answer) -> None:
        self.did.append(answer)

    def instruct(self, mandate: Mandate) -> None:
        self.did.append(mandate)

    def stop_leading(self, reason: str) -> None:
        self.did.append(f"stop: {reason}")

    def spawn(self, change: Coroutine[object, None, None]) -> None:
        drive(change)

    async def follow_nobody(self) -> None:
        self.did.append("follow nobody")

    async def promise(self, epoch: int) -> None:
        self.did.append(f"promise {epoch}")
        self.promises.append(Later())
        await self.promises[-1]

    def cannot_promise(self, error: OSError) -> None:
        self.did.append("cannot promise")

    def follow(self, effect: said.Follow) -> None:
        self.did.append(f"follow {effect.epoch}")

    @contextlib.asynccontextmanager
    async def _no_flush(self) -> Any:
        self.did.append("no flush")
        yield
        self.did.append("flush")

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        return cast("AbstractAsyncContextManager[None]", self._no_flush())

    def lead(self, effect: said.Lead) -> Mastership:
        self.did.append(f"lead {effect.epoch}")
        if self.refuses is not None:
            raise self.refuses
        return OPENED

    def leading(self, effect: said.Lead) -> None:
        self.did.append("leading")

    def cannot_lead(self, effect: said.Lead, error: OSError | StoreError) -> None:
        self.did.append("cannot lead")


@pytest.fixture
def node() -> Node:
    return Node()


def test_effects_on_registry_and_operators_are_executed_in_order(node: Node) -> None:
    transaction, noted = Transaction((), ()), Membership()
    answer = said.Answer("token", "")
    assert node.says(
        said.Instruct(MANDATE),
        said.AskLease(),
        said.DropLease(4),
        said.Observe(),
        said.Commit(1, transaction),
        said.Note(noted),
        said.Wake(MonoMs(9)),
        answer,
    ) == [
        MANDATE,
        "ask lease",
        ("drop lease", 4),
        "observe",
        ("commit", 1, transaction),
        ("note", noted),
        ("wake", MonoMs(9)),
        answer,
    ]


def test_a_transaction_whose_lease_is_gone_is_answered_and_the_lease_is_lost(node: Node) -> None:
    node.driver.lease_gone(12)
    assert node.machine.told == [said.LeaseLost(7), said.Committed(12, None)]


def test_a_master_is_followed_once_its_epoch_is_promised(node: Node) -> None:
    assert node.says(FOLLOW) == ["follow nobody", "promise 2"]
    assert node.promised() == ["follow 2"]


def test_a_promise_without_room_on_the_disk_is_left_to_the_handshake(node: Node) -> None:
    node.says(FOLLOW)
    assert node.promised(OSError(errno.ENOSPC, "full")) == ["cannot promise", "follow 2"]


def test_a_disk_that_fails_ends_the_change_of_roles(node: Node) -> None:
    node.says(FOLLOW)
    with pytest.raises(OSError, match="broken"):
        node.promised(OSError(errno.EIO, "broken"))
    assert node.news() == []


def test_a_mastership_begins_while_no_sync_runs_and_its_machine_is_told(node: Node) -> None:
    assert node.says(LEAD) == ["follow nobody", "promise 3"]
    assert node.promised() == ["no flush", "lead 3", "flush", MANDATE, "leading"]
    assert node.machine.told == [said.Tick(), "leads", said.Tick()]


@pytest.mark.parametrize(("role", "epoch"), [(Role.STANDING, 3), (Role.LEADING, 4)])
def test_a_mastership_that_ended_early_never_starts(node: Node, role: Role, epoch: int) -> None:
    node.says(LEAD)
    node.machine.role, node.machine.led_epoch = role, epoch
    assert node.promised() == ["no flush", "flush"]
    assert node.machine.told == [said.Tick()]


@pytest.mark.parametrize("refusal", [OSError(errno.ENOSPC, "full"), StoreError("fenced")])
def test_a_mastership_that_cannot_begin_is_left(node: Node, refusal: OSError | StoreError) -> None:
    node.says(LEAD)
    node.refuses = refusal
    assert node.promised() == ["no flush", "lead 3", "cannot lead", "stop: why", "follow nobody"]
    assert node.machine.told == [said.Tick(), f"cannot lead: {refusal}"]


def test_a_promise_without_room_is_a_mastership_that_cannot_begin(node: Node) -> None:
    node.says(LEAD)
    assert node.promised(OSError(errno.ENOSPC, "full"))[0] == "cannot lead"


def test_a_disk_that_fails_as_a_mastership_begins_ends_the_node(node: Node) -> None:
    """Its queues may show what is not confirmed: what hides it again may have failed half-way."""
    node.says(LEAD)
    node.refuses = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        node.promised()
    assert "cannot lead" not in node.did
    node.driver._changing, node.refuses = False, None
    node.says(LEAD)
    with pytest.raises(OSError, match="broken"):
        node.promised(OSError(errno.EIO, "broken"))


def test_roles_change_one_after_the_other_and_only_the_newest_counts(node: Node) -> None:
    assert node.says(FOLLOW) == ["follow nobody", "promise 2"]
    assert node.says(STAND) == ["stop: why"], "no second change runs beside the first"
    assert node.says(LEAD) == []
    assert node.promised() == ["follow 2", "follow nobody", "promise 3"]
    assert node.promised()[1] == "lead 3"
    assert node.says(FOLLOW) == ["follow nobody", "promise 2"], "and further ones after that"


def test_a_standing_node_follows_nobody(node: Node) -> None:
    node.says(FOLLOW)
    node.promised()
    assert node.says(STAND) == ["stop: why", "follow nobody"]
