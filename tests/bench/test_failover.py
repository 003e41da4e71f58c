"""What the measurement of failovers makes of what its producer was told."""

import pytest

from bench.failover import Acks
from duolog_server.demo.measure import percentile


def test_a_failover_lasts_from_the_last_acknowledgement_to_the_first_put_after_it() -> None:
    acks = Acks([(1.0, 7), (2.0, 7), (3.5, 8), (3.6, 8)])
    assert acks.first_of(7) == 3.5
    assert acks.first_of(8) is None
    acks = Acks([(1.0, 7), (2.0, 7), (2.5, 8), (2.6, 8)])
    assert acks.longest_gap(2.2) == 0.5
    assert acks.longest_gap(2.55) == pytest.approx(0.1)
    assert acks.longest_gap(0.5) == 1.0


def test_a_percentile_is_one_of_the_values_and_never_below_its_share() -> None:
    values = [float(k) for k in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values[:40], 0.99) == 40
    assert percentile([3.0], 0.99) == 3
