"""What totals have grown by lately."""

from duolog_server.node.core.growth import Totals


def test_growth_is_told_over_the_span_that_was_asked_for_and_forgotten() -> None:
    totals = Totals(100.0)
    assert totals.growth("a", 50, 60.0, 110.0) == (50, 10.0)  # since the start
    assert totals.growth("a", 70, 60.0, 170.0) == (70, 70.0)
    assert totals.growth("a", 90, 60.0, 200.0) == (90, 100.0)
    assert totals.growth("a", 100, 60.0, 240.0) == (30, 70.0)
    assert totals.growth("a", 5, 60.0, 250.0) == (5, 80.0)  # it began again
    assert totals.growth("a", 6, 3600.0, 250.0) == (6, 150.0)
    found = totals.growth("b", 600, 60.0, 220.0)
    assert (found.rate, found.within(60.0), found.within(600.0)) == (5.0, 300.0, 600)
    assert totals.growth("c", 6, 60.0, 100.0).rate == 0.0
    totals = Totals(0.0, 2)
    for key in "abc":
        totals.growth(key, 1, 60.0, 100.0)
    assert len(totals) == 2
    assert totals.growth("a", 5, 60.0, 200.0) == (5, 200.0)
    assert totals.growth("c", 5, 60.0, 200.0) == (4, 100.0)
