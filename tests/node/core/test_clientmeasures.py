"""What clients measure, added up."""

import pytest

from duolog_server.node.core import clientmeasures
from duolog_server.node.core.clientmeasures import LIVING_MS, ClientMeasures, Distribution, Series
from duolog_server.store.clocks import MonoMs

NAME = "rocketmq_process_time"
LABELS = ("T", "g", "success")
WALL_MS = 1_700_000_000_000


class Clock:
    """Two clocks that go on together."""

    def __init__(self) -> None:
        self.ms = 1000

    def mono_ms(self) -> MonoMs:
        return MonoMs(self.ms)

    def wall_ms(self) -> int:
        return WALL_MS + self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def measures(clock: Clock) -> ClientMeasures:
    return ClientMeasures(clock.mono_ms, clock.wall_ms)


def tell(
    measures: ClientMeasures,
    counts: tuple[int, ...],
    client: str = "a",
    since_ms: int = WALL_MS,
    labels: tuple[str, ...] = LABELS,
    cumulative: bool = True,
    total: float | None = None,
) -> None:
    series = Series(NAME, labels, client)
    total = float(sum(counts)) if total is None else total
    measures.add(series, Distribution(since_ms * 10**6, (1.0, 5.0), counts, total, cumulative))


def shown(measures: ClientMeasures) -> list[int]:
    ((_, _, histogram),) = measures.histograms()
    assert histogram.sum == sum(histogram.counts)
    return histogram.counts


def test_totals_of_clients_add_up_and_count_once(measures: ClientMeasures) -> None:
    tell(measures, (1, 2, 3))
    tell(measures, (1, 2, 3), "b")
    tell(measures, (1, 2, 4))
    tell(measures, (1, 2, 4))
    assert shown(measures) == [2, 4, 7]


def test_a_client_that_began_again_counts_from_there(measures: ClientMeasures) -> None:
    tell(measures, (5, 0, 0))
    tell(measures, (1, 0, 0), since_ms=WALL_MS + 1)
    tell(measures, (0, 1, 0), since_ms=WALL_MS + 1)  # less than before
    assert shown(measures) == [6, 1, 0]


def test_what_is_told_as_new_is_added(measures: ClientMeasures) -> None:
    tell(measures, (1, 0, 0), cumulative=False)
    tell(measures, (1, 0, 0), cumulative=False)
    assert shown(measures) == [2, 0, 0]


def test_a_sum_never_falls(measures: ClientMeasures) -> None:
    tell(measures, (1, 0, 0), total=9.0)
    tell(measures, (2, 0, 0), total=3.0)  # it began again
    ((_, _, histogram),) = measures.histograms()
    assert (histogram.counts, histogram.sum) == ([3, 0, 0], 12.0)


def test_clients_are_counted_from_what_is_new_and_gauges_added(
    measures: ClientMeasures, clock: Clock
) -> None:
    old = WALL_MS - 2 * LIVING_MS
    tell(measures, (100, 0, 0), since_ms=old)
    assert shown(measures) == [0, 0, 0]
    clock.ms += 60_000
    tell(measures, (101, 0, 0), since_ms=old)
    tell(measures, (7, 0, 0), since_ms=old, labels=("new topic", "g", "success"))
    assert [one.counts[0] for _, _, one in measures.histograms()] == [1, 7]
    name, labels = "rocketmq_consumer_cached_messages", ("T", "g")
    measures.put(Series(name, labels, "a"), 3)
    clock.ms += LIVING_MS // 2
    measures.put(Series(name, labels, "b"), 4)
    measures.put(Series(name, labels, "b"), 5)
    assert list(measures.gauges()) == [(name, labels, 8)]
    clock.ms += LIVING_MS // 2 + 1
    assert list(measures.gauges()) == [(name, labels, 5)]


def test_other_bounds_and_wrong_shapes_are_refused(measures: ClientMeasures) -> None:
    tell(measures, (1, 0, 0))
    series = Series(NAME, LABELS, "b")
    for bounds, counts in (((1.0, 6.0), (1, 0, 0)), ((1.0, 5.0), (1, 0))):
        measures.add(series, Distribution(0, bounds, counts, 1.0))
    other = Series(NAME, ("U", "g", "success"), "b")
    measures.add(other, Distribution(0, (5.0, 1.0), (1, 0, 0), 1.0))
    measures.add(other, Distribution(0, tuple(map(float, range(21))), (0,) * 22, 1.0))
    assert measures.refused == 4
    assert shown(measures) == [1, 0, 0]


def test_clients_whose_points_are_refused_are_not_kept(measures: ClientMeasures) -> None:
    tell(measures, (1, 0, 0))
    for k in range(100):
        tell(measures, (1, 0), f"client {k}")
        measures.add(Series(NAME, ("U", "g", "success"), f"{k}"), Distribution(0, (2, 1), (), 0))
    assert measures.refused == 200
    assert list(measures._clients) == ["a"]


def test_series_are_bounded(
    measures: ClientMeasures, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientmeasures, "SERIES_MAX", 3)
    for k in range(5):
        tell(measures, (1, 0, 0), labels=(f"T{k}", "g", "success"))
    assert len(list(measures.histograms())) == 3
    measures.put(Series("rocketmq_consumer_cached_bytes", ("T", "g"), "a"), 1)
    assert measures.refused == 3
    monkeypatch.setattr(clientmeasures, "TOLD_MAX", 4)
    for k in range(5):
        tell(measures, (1, 0, 0), f"client {k}", labels=("T0", "g", "success"))
    assert measures.refused == 7  # 3 of one client, and one more
    clock.ms += LIVING_MS + 1
    tell(measures, (1, 0, 0), "client 9", labels=("T0", "g", "success"))
    assert measures.refused == 7


def test_series_that_nobody_tells_any_more_make_room(
    measures: ClientMeasures, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientmeasures, "SERIES_MAX", 2)
    for topic in ("old", "kept"):
        tell(measures, (1, 0, 0), labels=(topic, "g", "success"), cumulative=False)
    tell(measures, (2, 0, 0), "b", labels=("old", "g", "success"))
    clock.ms += LIVING_MS + 1
    tell(measures, (1, 0, 0), labels=("kept", "g", "success"), cumulative=False)
    tell(measures, (1, 0, 0), "b", labels=("new", "g", "success"))
    assert [labels[0] for _, labels, _ in measures.histograms()] == ["kept", "new"]
    tell(measures, (1, 0, 0), labels=("another", "g", "success"))
    assert measures.refused == 1


def test_a_series_that_comes_back_with_other_bounds_begins_anew(
    measures: ClientMeasures, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientmeasures, "SERIES_MAX", 1)
    tell(measures, (1, 0, 0))
    clock.ms += LIVING_MS
    measures._client("a")  # it tells something else meanwhile
    clock.ms += 1
    tell(measures, (1, 0, 0), labels=("U", "g", "success"))
    monkeypatch.setattr(clientmeasures, "SERIES_MAX", 2)
    measures.add(Series(NAME, LABELS, "a"), Distribution(WALL_MS * 10**6, (1.0,), (4, 0), 4.0))
    assert [one.counts for _, _, one in measures.histograms()] == [[1, 0, 0], [4, 0]]


def test_gauges_of_clients_that_are_gone_make_room(
    measures: ClientMeasures, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientmeasures, "SERIES_MAX", 1)
    name = "rocketmq_consumer_cached_bytes"
    measures.put(Series(name, ("old", "g"), "a"), 1)
    clock.ms += LIVING_MS + 1
    measures.put(Series(name, ("new", "g"), "b"), 2)
    assert list(measures.gauges()) == [(name, ("new", "g"), 2)]
    assert measures.refused == 0
