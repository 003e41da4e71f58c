"""When calls of a method wait before they are taken."""

from duolog_server.node.net.grpc.reset_limiter import (
    PAUSE_SECONDS,
    PERIOD_MS,
    QUICK_MS,
    RESETS_MAX,
    RESETS_PART,
    Resets,
)
from duolog_server.store.clocks import MonoMs


def noted(count: int, method: str = "/a", lasted_ms: int = 0, at_ms: int = 0) -> Resets:
    found = Resets()
    for _ in range(count):
        found.note(method, lasted_ms, MonoMs(at_ms))
    return found


def test_calls_wait_while_many_are_reset_as_soon_as_they_begin() -> None:
    found = noted(RESETS_MAX)
    assert found.pause_seconds("/a", MonoMs(5)) == 0
    found.note("/a", QUICK_MS, MonoMs(5))
    assert found.pause_seconds("/a", MonoMs(6)) == PAUSE_SECONDS
    assert found.pause_seconds("/b", MonoMs(6)) == 0


def test_calls_that_are_given_up_later_are_no_reason() -> None:
    assert noted(2 * RESETS_MAX, lasted_ms=QUICK_MS + 1).pause_seconds("/a", MonoMs(5)) == 0


def test_calls_wait_in_the_period_after_it_and_no_longer() -> None:
    found = noted(RESETS_MAX + 1)
    assert found.pause_seconds("/a", MonoMs(2 * PERIOD_MS - 1)) == PAUSE_SECONDS
    assert found.pause_seconds("/a", MonoMs(2 * PERIOD_MS)) == 0
    found = noted(RESETS_MAX + 1)
    assert found.pause_seconds("/a", MonoMs(2 * PERIOD_MS)) == 0  # nobody looked in between


def test_a_few_among_many_calls_are_no_reason() -> None:
    found = noted(RESETS_MAX + 1)
    calls = int((RESETS_MAX + 1) / RESETS_PART)
    pauses = [found.pause_seconds("/a", MonoMs(5)) for _ in range(calls + 1)]
    assert pauses == calls * [PAUSE_SECONDS] + [0.0]
    assert found.pause_seconds("/a", MonoMs(PERIOD_MS)) == 0


def test_several_methods_have_together_what_one_has() -> None:
    found = noted(RESETS_MAX + 1)
    for _ in range(RESETS_MAX + 1):
        found.note("/b", 0, MonoMs(0))
    assert found.pause_seconds("/a", MonoMs(1)) == 2 * PAUSE_SECONDS
    assert found.pause_seconds("/b", MonoMs(1)) == 2 * PAUSE_SECONDS
