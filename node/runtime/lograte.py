"""The rate limit of the log, so that no client and no broken disk fills it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict, WrappedLogger

LINES_MAX = 20  # of one event
SPAN_SECONDS = 10.0
EVENTS_MAX = 1000  # remembered; the code has fewer
MORE = f"further lines of this event are left out for up to {SPAN_SECONDS:.0f} s"


@dataclass(slots=True)
class _Span:
    began: float
    lines: int = 0
    left_out: int = 0


class RateLimiter:
    """A structlog processor that writes at most `LINES_MAX` lines of one event in `SPAN_SECONDS`.

    The last line of such a span has `more`: further lines are dropped. The first line of the next
    one has `left_out`, the number dropped. Debug lines are not limited: who enables them wants
    all of them. There is no lock: threads that log at once may write a line too many or too few.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._clock = clock
        self._spans: dict[str, _Span] = {}

    def __call__(self, logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        """Raises DropEvent for a line too many."""
        if method == "debug":
            return line
        now, event = self._clock(), str(line.get("event"))
        span = self._spans.get(event)
        if span is None or now - span.began >= SPAN_SECONDS:
            if span is None and len(self._spans) >= EVENTS_MAX:
                self._spans.clear()
            left_out = 0 if span is None else span.left_out
            span = self._spans[event] = _Span(now)
            if left_out:
                line["left_out"] = left_out
        if span.lines >= LINES_MAX:
            span.left_out += 1
            raise structlog.DropEvent
        span.lines += 1
        if span.lines == LINES_MAX:
            line["more"] = MORE
        return line
