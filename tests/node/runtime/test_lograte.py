"""A node logs a limited number of lines of one event, and says how many it left out."""

import io
import json
import sys

import pytest
import structlog
from structlog.typing import EventDict

from duolog_server.node.runtime.logs import (
    EVENTS_MAX,
    LINES_MAX,
    SPAN_SECONDS,
    RateLimiter,
    configure_logging,
)


class Lines:
    """What passes a limiter whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limiter = RateLimiter(lambda: self.now)

    def log(self, count: int = 1, event: str = "e", method: str = "warning") -> list[EventDict]:
        """The lines written out of some."""
        written = []
        for _ in range(count):
            try:
                written.append(self.limiter(None, method, {"event": event}))
            except structlog.DropEvent:
                continue
        return written


def test_frequent_events_are_left_out_and_counted_apart() -> None:
    lines = Lines()
    first = lines.log(LINES_MAX + 7)
    assert len(first) == LINES_MAX
    assert ["more" in line for line in first] == [False] * (LINES_MAX - 1) + [True]
    lines.now += SPAN_SECONDS - 0.01
    assert lines.log() == []
    lines.now += 0.01
    assert lines.log(2) == [{"event": "e", "left_out": 8}, {"event": "e"}]
    lines = Lines()
    for _ in range(100):
        lines.now += SPAN_SECONDS / (LINES_MAX // 2)
        assert lines.log() == [{"event": "e"}]
    lines = Lines()
    assert len(lines.log(LINES_MAX + 1)) == LINES_MAX
    assert lines.log(event="another") == [{"event": "another"}]
    assert len(lines.log(5 * LINES_MAX, method="debug")) == 5 * LINES_MAX
    lines = Lines()
    for k in range(3 * EVENTS_MAX):
        assert len(lines.log(event=f"e{k}")) == 1
        assert len(lines.limiter._spans) <= EVENTS_MAX


def test_the_log_of_a_node_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logging("info", True)
    try:
        log = structlog.get_logger("duolog.node")
        for k in range(1000):
            log.warning("append refused", reason=str(k))
            log.debug("not wanted")
        log.error("another")
    finally:
        structlog.reset_defaults()
    found = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [line["event"] for line in found] == ["append refused"] * LINES_MAX + ["another"]
    assert [line["level"] for line in found[-2:]] == ["warning", "error"]
