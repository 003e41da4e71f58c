"""Renews the node's lease in the registry, from a thread of its own.

The registry may grant more than was asked for; what it grants is what counts. A renewal is a proof
of health: it is not sent while the event loop is blocked or a sync of the disk does not return, so
that a node which cannot work loses its mastership. The deadline is the time before the renewal was
sent, plus the duration of the lease, minus a margin: it is never after the moment at which the
registry may let the lease expire.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from duolog_server.ha.registry import LeaseGone, Registry, RegistryError
from duolog_server.store.clocks import MonoMs

log = structlog.get_logger("duolog.ha")

RETRY_SECONDS = 0.1
RENEWALS = 3  # within a lease
MARGIN_RATIO = 0.1
RENEWALS_SEEN = 20


class LeaseKeeper:
    """One lease at a time. `granted` and `lost` are called from the thread."""

    def __init__(
        self,
        registry: Registry,
        ttl_seconds: int,
        unhealthy: Callable[[], str],
        granted: Callable[[int, MonoMs], None],
        lost: Callable[[int], None],
    ) -> None:
        """granted: lease and deadline (monotonic ms). unhealthy: why not to renew, or empty."""
        self._registry = registry
        self._asked = ttl_seconds
        self.ttl_seconds = ttl_seconds  # as granted last
        self._unhealthy = unhealthy
        self._granted = granted
        self._lost = lost
        self._lease = 0
        self._wanted = False
        self._drops: list[int] = []
        self._ended = False
        self._told = ""
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="duolog-lease", daemon=True)
        self.current: tuple[int, MonoMs] = (0, MonoMs(0))  # lease, deadline: as of the last renewal
        self._took: deque[float] = deque(maxlen=RENEWALS_SEEN)  # seconds, failed ones included

    @property
    def renewal_ms_max(self) -> int:
        """How long the slowest of the last renewals took, those that failed included."""
        return int(1000 * max(tuple(self._took), default=0.0))

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self) -> None:
        """Request a new lease; an older one is no longer renewed."""
        with self._wake:
            self._lease, self._wanted = 0, True
            self._wake.notify()

    def drop(self, lease: int) -> None:
        """End a lease as soon as the registry can be reached."""
        with self._wake:
            if lease == self._lease:
                self._lease = 0
            self._drops = [*self._drops, lease][-16:]
            self._wake.notify()

    def stop(self) -> None:
        """End the lease and the thread; bounded."""
        with self._wake:
            self._ended = True
            if self._lease:
                self._drops.append(self._lease)
            self._wake.notify()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._wake:
                if not (self._ended or self._wanted or self._drops):
                    self._wake.wait(max(0.001, due - time.monotonic()) if self._lease else None)
                drops, self._drops = self._drops, []
                wanted, lease, ended = self._wanted, self._lease, self._ended
            for gone in drops:
                with contextlib.suppress(RegistryError):
                    self._registry.drop(gone)
            if ended:
                return
            if wanted:
                due = self._grant()
            elif lease and time.monotonic() >= due:
                due = self._renew(lease)

    def _grant(self) -> float:
        sent = time.monotonic()
        try:
            granted = self._registry.lease(self._asked)
        except RegistryError as error:
            self._trouble("asking for it failed", str(error))
            time.sleep(RETRY_SECONDS)
            return 0.0
        lease, self.ttl_seconds = granted.lease, granted.ttl_seconds
        if self.ttl_seconds != self._asked:
            self._trouble(
                "the registry granted another length",
                f"{self.ttl_seconds} s, where registry.lease_seconds is {self._asked}",
            )
        with self._wake:
            if not self._wanted:  # cannot happen: only this thread withdraws the request
                return 0.0
            self._lease, self._wanted = lease, False
        self._tell(lease, sent)
        return sent + self.ttl_seconds / RENEWALS

    def _renew(self, lease: int) -> float:
        problem = self._unhealthy()
        if problem:
            self._trouble("it is not renewed", problem)
            return time.monotonic() + RETRY_SECONDS
        sent = time.monotonic()
        try:
            self._registry.renew(lease)
        except LeaseGone:
            with self._wake:
                if self._lease == lease:
                    self._lease = 0
            self._lost(lease)
            return 0.0
        except RegistryError as error:
            self._trouble("renewing it failed", str(error))
            return time.monotonic() + RETRY_SECONDS
        finally:
            self._took.append(time.monotonic() - sent)
        self._tell(lease, sent)
        return sent + self.ttl_seconds / RENEWALS

    def _tell(self, lease: int, sent: float) -> None:
        deadline = MonoMs(int(1000 * (sent + self.ttl_seconds * (1 - MARGIN_RATIO))))
        self.current = (lease, deadline)
        self._told = ""
        self._granted(lease, deadline)

    def _trouble(self, what: str, reason: str) -> None:
        """Log a problem once: it is retried ten times a second."""
        if what != self._told:
            self._told = what
            log.warning("lease renewal failed", what=what, reason=reason)
