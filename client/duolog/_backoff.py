"""How long to wait before the next try, and whether there should be one."""

import random

from duolog._errors import DuologError, Throttled
from duolog._runtime import MACHINE

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 0.4
HINTED_SECONDS = 0.005


class BackOff:
    """Pauses that double up to a limit, each drawn from half to one and a half of it.

    The limit is short: a group without a master has one again within seconds, and a client that
    asks late is late. Jitter keeps the clients of a dead node from returning as one.
    """

    def __init__(
        self,
        chance: random.Random = MACHINE.chance,
        first_seconds: float = FIRST_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        self._chance = chance
        self._first, self._longest = first_seconds, longest_seconds
        self.reset()

    def reset(self) -> None:
        """Begin again with the first pause: a try succeeded."""
        self._pause = self._first
        self._hints = 0

    def next(self, hinted: bool = False) -> float:
        """Seconds; hardly any where the answer named the master (a few times, lest two nodes
        that name each other are asked in a loop)."""
        if hinted and self._hints < 3:
            self._hints += 1
            return HINTED_SECONDS
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        return pause * self._chance.uniform(0.5, 1.5)


def wait_of(error: DuologError) -> float:
    """Seconds that a node asked to wait, where the call was over a quota."""
    return error.retry_after_ms / 1000 if isinstance(error, Throttled) else 0.0


def would_be_cut_off(pause: float, took: float, left: float) -> bool:
    """Whether the deadline would cut off a try that begins after a pause: it should not be made.

    A try that is cut off tells less than the refusal that is known already. All in seconds. took:
    for how long the try before ran until it was refused; 0 where unknown.
    """
    return pause + took >= left
