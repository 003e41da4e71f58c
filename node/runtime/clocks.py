"""This machine's two clocks; `store.clocks` explains when to use which."""

import time
from typing import Protocol

from duolog_server.store.clocks import MonoMs, WallMs

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, as far as gRPC's Timestamp reaches


def wall_ms() -> WallMs:
    """The wall clock: for times that people read or that are stored. It may jump."""
    return WallMs(time.time_ns() // 1_000_000)


def mono_ms() -> MonoMs:
    """The monotonic clock: for durations and deadlines inside this process."""
    return MonoMs(time.monotonic_ns() // 1_000_000)


class Clock(Protocol):
    """A pair of clocks: the machine's, or a test's."""

    def wall_ms(self) -> WallMs:
        """The wall clock."""

    def mono_ms(self) -> MonoMs:
        """The monotonic clock."""


class SystemClock:
    """The machine's."""

    def wall_ms(self) -> WallMs:
        """The wall clock."""
        return wall_ms()

    def mono_ms(self) -> MonoMs:
        """The monotonic clock."""
        return mono_ms()
