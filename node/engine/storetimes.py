"""Store times and ages of records: three rules for a wall clock that jumps."""

import structlog

from duolog_server.node.runtime.clocks import Clock
from duolog_server.store.clocks import AgeClock, MonoMs, StoreClock, WallMs, WallSteps
from duolog_server.store.messagestore import MessageStore

log = structlog.get_logger("duolog.node")


class StoreTimes:
    """Derives a store's times from a machine's clocks."""

    def __init__(self, clock: Clock, store: MessageStore) -> None:
        self.clock = clock
        self._store = store
        self._store_clock = StoreClock()
        self._age_clock = AgeClock()
        self._wall_steps = WallSteps()

    def recovered(self) -> None:
        """The store knows its newest record: what is later may be a wrong clock at the start."""
        self._age_clock = AgeClock(self._store.log.last_store_time)

    def wall_ms(self) -> WallMs:
        """The wall clock: for times that people read or give."""
        return self.clock.wall_ms()

    def mono_ms(self) -> MonoMs:
        """The monotonic clock: for leases, sessions and intervals."""
        return self.clock.mono_ms()

    def store_ms(self) -> WallMs:
        """The time for the next record: the wall clock, but it never goes back."""
        newest = self._store.log.last_store_time
        return self._store_clock.now(self.clock.wall_ms(), self.clock.mono_ms(), newest)

    def age_ms(self) -> WallMs:
        """The clock by which stored data ages: no jump of the wall clock expires data at once."""
        return self._age_clock.now(self.clock.wall_ms(), self.clock.mono_ms())

    def watch(self) -> None:
        """Log a jump of the wall clock since the last call."""
        wall, mono = self.clock.wall_ms(), self.clock.mono_ms()
        step_ms = self._wall_steps.look(wall, mono)
        if step_ms:
            log.warning(
                "the wall clock jumped",
                seconds=step_ms / 1000,
                effect="retention pauses for an hour"
                if step_ms > 0
                else "store times advance slowly",
            )
        self._age_clock.now(wall, mono)  # so that the time before a jump is known
