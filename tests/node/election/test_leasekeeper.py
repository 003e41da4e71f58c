"""The lease's thread: it renews while the node is healthy, and reports a lost lease."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from duolog_server.ha.registry import Grant, LeaseGone, RegistryUnavailable
from duolog_server.node.election.leasekeeper import LeaseKeeper
from duolog_server.node.election.memoryregistry import MemoryRegistry


class Lease:
    """What a keeper said."""

    def __init__(self, registry: Any, unhealthy: Callable[[], str] = lambda: "") -> None:
        self.granted: list[tuple[int, int]] = []
        self.lost: list[int] = []
        self.changed = threading.Event()
        self.keeper = LeaseKeeper(registry, 2, unhealthy, self._granted, self._lost)

    def _granted(self, lease: int, deadline_ms: int) -> None:
        self.granted.append((lease, deadline_ms))
        self.changed.set()

    def _lost(self, lease: int) -> None:
        self.lost.append(lease)
        self.changed.set()

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(200):
            if holds():
                return
            self.changed.wait(0.05)
            self.changed.clear()
        raise AssertionError((self.granted, self.lost))


def test_a_lease_is_renewed_until_it_is_dropped() -> None:
    registry = MemoryRegistry()
    lease = Lease(registry)
    lease.keeper.start()
    lease.keeper.ask()
    lease.until(lambda: len(lease.granted) >= 3)
    numbers = {number for number, _ in lease.granted}
    assert len(numbers) == 1
    deadlines = [deadline for _, deadline in lease.granted]
    assert deadlines == sorted(deadlines)
    lease.keeper.stop()
    with pytest.raises(LeaseGone):
        registry.renew(numbers.pop())


class Generous(MemoryRegistry):
    """Grants longer leases than it is asked for, as etcd does below its minimum."""

    def lease(self, ttl_seconds: int) -> Grant:
        return super().lease(ttl_seconds + 3)


class Mean(MemoryRegistry):
    """Grants shorter leases than it is asked for."""

    def lease(self, ttl_seconds: int) -> Grant:
        return super().lease(1)


@pytest.mark.parametrize(("registry", "seconds"), [(Generous(), 5), (Mean(), 1)])
def test_what_the_registry_grants_counts_and_not_what_was_asked_for(
    registry: MemoryRegistry, seconds: int
) -> None:
    with structlog.testing.capture_logs() as logs:
        lease = Lease(registry)
        before = time.monotonic()
        lease.keeper.start()
        lease.keeper.ask()
        lease.until(lambda: bool(lease.granted))
        after = time.monotonic()
    lease.keeper.stop()
    _, deadline = lease.granted[0]
    assert lease.keeper.ttl_seconds == seconds
    assert before + 0.9 * seconds <= deadline / 1000 + 0.001
    assert deadline / 1000 <= after + 0.9 * seconds
    said = [row for row in logs if "another length" in row.get("what", "")]
    assert [row["reason"].split(" s,")[0] for row in said] == [str(seconds)]


def test_a_lease_that_the_registry_lost_is_reported() -> None:
    registry = MemoryRegistry()
    lease = Lease(registry)
    lease.keeper.start()
    lease.keeper.ask()
    lease.until(lambda: bool(lease.granted))
    registry.drop(lease.granted[0][0])
    lease.until(lambda: lease.lost == [lease.granted[0][0]])
    lease.keeper.stop()


def test_a_node_that_is_not_healthy_does_not_renew() -> None:
    registry = MemoryRegistry()
    sick = threading.Event()
    lease = Lease(registry, lambda: "a sync does not come back" if sick.is_set() else "")
    lease.keeper.start()
    lease.keeper.ask()
    lease.until(lambda: bool(lease.granted))
    sick.set()
    count = len(lease.granted)
    number = lease.granted[0][0]

    def gone() -> bool:
        try:
            any(registry.changes("/", registry.get("/").revision, 0.1))
            return number not in registry._table.leases
        except LeaseGone:
            return True

    lease.until(gone)
    assert len(lease.granted) <= count + 1
    sick.clear()
    lease.until(lambda: bool(lease.lost))
    lease.keeper.stop()


def test_a_registry_that_does_not_answer_is_asked_again() -> None:
    class Flaky(MemoryRegistry):
        def __init__(self) -> None:
            super().__init__()
            self.failures = 3

        def lease(self, ttl_seconds: int) -> Grant:
            if self.failures:
                self.failures -= 1
                raise RegistryUnavailable("no answer")
            return super().lease(ttl_seconds)

    lease = Lease(Flaky())
    lease.keeper.start()
    lease.keeper.ask()
    lease.until(lambda: bool(lease.granted))
    lease.keeper.stop()


def test_the_slowest_of_the_last_renewals_is_known() -> None:
    """Those that fail count, too."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(MemoryRegistry):
        def renew(self, lease: int) -> int:
            entered.set()
            assert go_on.wait(10)
            raise RegistryUnavailable("no answer")

    lease = Lease(Slow())
    lease.keeper.start()
    lease.keeper.ask()
    assert lease.keeper.renewal_ms_max == 0
    assert entered.wait(10)
    began = time.monotonic()
    while time.monotonic() < began + 0.02:
        threading.Event().wait(0.005)
    go_on.set()
    lease.until(lambda: lease.keeper.renewal_ms_max >= 20)
    lease.keeper.stop()
