"""A meter: a token bucket, told by the time at which all that passed is paid for.

Rules: what passes is never split. Something passes as soon as less than the burst is owed, and may
owe any amount then; so a batch that is larger than the burst passes as well, and what comes after
it waits the longer. In any time, no more passes than the rate, one burst, and one batch.
"""


class Meter:
    """One rate."""

    __slots__ = ("_burst_ms", "_paid_ms", "_per_ms", "burst")

    def __init__(self, a_second: int, burst_ms: int) -> None:
        """burst_ms: after a pause, so much of the rate passes at once."""
        assert a_second > 0, "a rate of nothing is no rate"
        assert burst_ms > 0, "something passes at once"
        self._per_ms = a_second / 1000
        self._burst_ms = burst_ms
        self._paid_ms = 0.0  # when all that passed is paid for
        self.burst = max(1, a_second * burst_ms // 1000)

    def wait_ms(self, now_ms: int) -> int:
        """For how long nothing may pass; 0: now. Waiting as long as answered is enough."""
        over = self._paid_ms - now_ms - self._burst_ms
        return int(over) + 1 if over >= 0 else 0

    def add(self, amount: int, now_ms: int) -> None:
        """So much passes."""
        self._paid_ms = max(self._paid_ms, now_ms) + amount / self._per_ms

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing is owed: a new meter would say the same."""
        return self._paid_ms <= now_ms
