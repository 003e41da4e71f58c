"""When a process that ended is started again."""

AGAIN_SECONDS = 1.0
WELL_SECONDS = 60.0  # after which it is started again as if for the first time


class Restarts:
    """The pauses before a process is started again: twice as long each time, up to a maximum."""

    def __init__(self, seconds_max: float) -> None:
        """seconds_max: the longest pause."""
        self._seconds_max = seconds_max
        self._next = AGAIN_SECONDS

    def pause(self, lived_seconds: float) -> float:
        """Seconds to wait, after a process that lived for so long."""
        if lived_seconds >= WELL_SECONDS:
            self._next = AGAIN_SECONDS
        pause, self._next = self._next, min(2 * self._next, self._seconds_max)
        return pause
