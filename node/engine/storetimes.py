"""The times that records get, and those that they age by: three rules for a clock that jumps."""

import structlog

from node.clocks import Clock
from store.clocks import AgeClock, MonoMs, StoreClock, WallMs, WallSteps
from store.messagestore import MessageStore

log = structlog.get_logger("duolog.node")


class StoreTimes:
    """A store's times by a machine's clocks."""

    def __init__(self, clock: Clock, store: MessageStore) -> None:
        self.clock = clock
        self._store = store
        self._store_clock = StoreClock()
        self._age_clock = AgeClock()
        self._wall_steps = WallSteps()

    def wall_ms(self) -> WallMs:
        """The wall clock: what people read, and name."""
        return self.clock.wall_ms()

    def mono_ms(self) -> MonoMs:
        """The monotonic clock: what leases, sessions and intervals are measured by."""
        return self.clock.mono_ms()

    def store_ms(self) -> WallMs:
        """The time for the next record: the wall clock, which never goes back here."""
        newest = self._store.log.last_store_time
        return self._store_clock.now(self.clock.wall_ms(), self.clock.mono_ms(), newest)

    def age_ms(self) -> WallMs:
        """The time that stored data ages by: no jump of the wall clock lets it expire at once."""
        return self._age_clock.now(self.clock.wall_ms(), self.clock.mono_ms())

    def watch(self) -> None:
        """Tell of a jump of the wall clock since the last look."""
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
        self._age_clock.now(wall, mono)  # so that it knows the time before a jump
