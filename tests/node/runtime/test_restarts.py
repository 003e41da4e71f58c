"""Pauses before a process is started again."""

from duolog_server.node.runtime.restarts import AGAIN_SECONDS, WELL_SECONDS, Restarts


def test_pauses_double_up_to_the_maximum_and_begin_anew_after_a_long_life() -> None:
    restarts = Restarts(30.0)
    assert [restarts.pause(0.0) for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.pause(WELL_SECONDS - 0.1) == 30.0
    assert restarts.pause(WELL_SECONDS) == AGAIN_SECONDS
    assert restarts.pause(0.0) == 2 * AGAIN_SECONDS
