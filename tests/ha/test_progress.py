"""How long a slave lags, as its master sees it, and its byte rate."""

import pytest

from duolog_server.ha.progress import ConnectionState, RateLimit, SlaveSession
from duolog_server.store.clocks import MonoMs


def session(received: int) -> SlaveSession:
    return SlaveSession(1, RateLimit(0), ConnectionState.TRANSFER, received=received)


def test_a_slave_that_has_everything_is_not_behind() -> None:
    slave = session(100)
    slave.note_lag(100, MonoMs(5000))
    assert slave.caught_up_ms == 5000
    assert slave.lag_ms(100, MonoMs(9000)) == 0
    assert slave.lag_ms(101, MonoMs(9000)) == 4000
    assert slave.lag_ms(101, MonoMs(5000)) == 0


def test_a_slave_is_behind_by_the_age_of_the_newest_end_that_it_has() -> None:
    slave = session(100)
    slave.note_lag(100, MonoMs(1000))
    slave.note_lag(200, MonoMs(2000))  # it had everything that there was at 1000
    assert slave.lag_ms(200, MonoMs(2500)) == 1500
    slave.received = 150
    slave.note_lag(300, MonoMs(3000))  # not yet what there was at 2000
    assert slave.lag_ms(300, MonoMs(3500)) == 2500
    slave.received = 200
    slave.note_lag(400, MonoMs(4000))  # now it has: that is the next mark
    assert slave.lag_ms(400, MonoMs(4500)) == 2500
    slave.received = 400
    slave.note_lag(500, MonoMs(5000))
    assert slave.lag_ms(500, MonoMs(5500)) == 1500
    slave.received = 500
    slave.note_lag(500, MonoMs(6000))
    assert slave.lag_ms(500, MonoMs(6500)) == 0
    slave.note_lag(600, MonoMs(7000))
    assert slave.lag_ms(600, MonoMs(7000)) == 1000, "since it had everything at 6000"


def test_a_slave_that_never_had_anything_is_behind_since_the_clock_began() -> None:
    assert session(0).lag_ms(10, MonoMs(700)) == 700


def test_bytes_wait_for_those_before_them_at_the_rate_of_one_slave() -> None:
    limit = RateLimit(1000)
    assert limit.wait_ms(MonoMs(50)) == 0
    limit.sent(300, MonoMs(50))
    assert [limit.wait_ms(MonoMs(at)) for at in (50, 51, 349, 350, 351)] == [300, 299, 1, 0, 0]
    limit.sent(1, MonoMs(9000))  # time that passed unused is not saved up
    assert limit.wait_ms(MonoMs(9000)) == 1


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_without_a_rate_nothing_waits(size: int) -> None:
    limit = RateLimit(0)
    limit.sent(size, MonoMs(1))
    assert limit.wait_ms(MonoMs(1)) == 0
