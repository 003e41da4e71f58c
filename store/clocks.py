"""Two clocks and two types: `WallMs` is shown to people and stored, `MonoMs` measures durations.

The wall clock may jump at any time, by hours and both ways; the monotonic one never does, and means
nothing to other processes or after a restart. Waits and expiry use `MonoMs`. Three things are wall
time by nature, and each of them has a rule here for jumps:

| what | by | after a jump back | after a jump forward |
|------|----|-------------------|----------------------|
| store times | `StoreClock` | half speed until the wall clock has caught up | jump along |
| age of data | `AgeClock` | it is kept for longer | not believed for an hour |
| delay levels | `ForwardSteps` | as the store times | who waits already waits no less |

Pure: the readings of both clocks arrive as arguments.
"""

from typing import NewType

from duolog_server.store.kernels.jit import I64

WallMs = NewType("WallMs", int)
MonoMs = NewType("MonoMs", int)

STEP_MS = 1000  # smaller differences between two readings: the clock is being slewed
# What delays are counted past: also the small step forward with which store times, slowed down
# after a jump back, reach a wall clock that was set right.
FORWARD_STEP_MS = 20
AGE_STEP_MS = 60_000
AGE_HOLD_MS = 3_600_000
STEPS_KEPT_MS = 3 * 3_600_000  # longer than the longest delay level


class WallSteps:
    """Detects jumps of the wall clock by comparing it with the monotonic one."""

    def __init__(self, least_ms: int = STEP_MS) -> None:
        """least_ms: what counts as a jump."""
        self._least_ms = least_ms
        self._ahead: int | None = None  # of the monotonic clock, at the last reading

    def look(self, wall: WallMs, mono: MonoMs) -> int:
        """Ms by which the wall clock has jumped since the last reading; 0 for no jump."""
        before, self._ahead = self._ahead, wall - mono
        step = 0 if before is None else self._ahead - before
        return step if abs(step) >= self._least_ms else 0


class StoreClock:
    """The store time of records: the wall clock, but it never goes back.

    After a jump back it runs at half speed until the wall clock has caught up. So messages still
    differ in time, and delays, which are measured from store times, continue.
    """

    def __init__(self) -> None:
        self._from = 0, MonoMs(0)  # the last time that was not slowed, and when it was returned

    def now(self, wall: WallMs, mono: MonoMs, newest: int) -> WallMs:
        """The time for the next record. newest: store time of the newest record."""
        told, since = self._from
        slow = told + (mono - since) // 2
        time = max(wall, slow, newest)
        if time > slow:
            self._from = time, mono
        return WallMs(time)


class AgeClock:
    """The clock by which data ages: a forward jump of the wall clock counts only after an hour.

    Data that is deleted too early is lost, so an operator has that hour to correct a wrong clock. A
    jump back counts at once: data is then kept for longer. At a start, the time since the newest
    record may be a jump as well: the machine may have started with a wrong clock.
    """

    def __init__(self, newest: int = 0) -> None:
        """newest: store time of the newest record at the start; 0 for none."""
        self._newest = newest
        self._ahead: int | None = None  # of the monotonic clock, as far as it is trusted
        self._doubted_since: MonoMs | None = None

    def now(self, wall: WallMs, mono: MonoMs) -> WallMs:
        """The time to compare the times of data with."""
        ahead = wall - mono
        if self._ahead is None:
            self._ahead = (self._newest or wall) - mono
        if ahead - self._ahead < AGE_STEP_MS:
            self._believe(ahead)
            return wall
        if self._doubted_since is None:
            self._doubted_since = mono
        if mono - self._doubted_since >= AGE_HOLD_MS:
            self._believe(ahead)
            return wall
        return WallMs(mono + self._ahead)

    def _believe(self, ahead: int) -> None:
        self._ahead, self._doubted_since = ahead, None


class ForwardSteps:
    """Recent forward jumps: messages stored before one have waited for less than the clock says.

    The clock observed is `StoreClock`, from whose times delays are measured. It jumps forward with
    the wall clock, unless it is still ahead of it, and never back.
    """

    def __init__(self) -> None:
        self._clock = WallSteps(FORWARD_STEP_MS)
        self._steps: list[tuple[int, int, MonoMs]] = []  # store time amid it, size, when

    def look(self, store: WallMs, mono: MonoMs) -> None:
        """Note a reading of both clocks; called before due messages are determined."""
        step_ms = self._clock.look(store, mono)
        if step_ms <= 0:
            return
        self._steps = [step for step in self._steps if mono - step[2] < STEPS_KEPT_MS]
        # No record has a time amid the jump, whatever the rounding of both clocks.
        self._steps.append((store - step_ms // 2, step_ms, mono))

    def corrected(self, due: I64, delay_ms: int) -> I64:
        """Due times of messages that wait `delay_ms` after being stored, corrected for jumps."""
        for amid, step_ms, _ in self._steps:
            due = due + step_ms * (due - delay_ms <= amid)
        return due
