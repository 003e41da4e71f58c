"""Clients' own metrics, added up by topic and consumer group.

Plain numbers. Clients tell their own totals again and again; what is new in them is added to that
of the group, so that nothing is lost when a client ends, and nothing counts twice: of a client that
told another node, or an earlier process, only what comes from now on counts. What is kept is
bounded, whatever clients tell.
"""

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from duolog_server.node.runtime.histogram import Histogram
from duolog_server.store.clocks import MonoMs

SERIES_MAX = 1000  # of all clients together
TOLD_MAX = 10_000  # series of single clients
LIVING_MS = 180_000  # a client that told nothing for so long is gone; they tell once a minute
SAME_MS = 1000  # what a client tells at once comes within this time
BOUNDS_MAX = 20

# Labels of each metric, beside the client's id.
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "rocketmq_send_cost_time": ("topic", "invocation_status"),
    "rocketmq_delivery_latency": ("topic", "consumer_group"),
    "rocketmq_await_time": ("topic", "consumer_group"),
    "rocketmq_process_time": ("topic", "consumer_group", "invocation_status"),
}
GAUGES: dict[str, tuple[str, ...]] = {
    "rocketmq_consumer_cached_messages": ("topic", "consumer_group"),
    "rocketmq_consumer_cached_bytes": ("topic", "consumer_group"),
}
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A series of a client. labels: values, in the order of the metric's names."""

    name: str
    labels: Labels
    client: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram as a client tells it. since_ns: when it began to count; cumulative: it tells all
    since then, not only what is new.
    """

    since_ns: int
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    cumulative: bool = True


@dataclass(slots=True)
class _Client:
    """A client that tells. totals: its histograms as told last; gauges: what it holds."""

    first_ms: MonoMs
    last_ms: MonoMs
    totals: dict[tuple[str, Labels], Distribution] = field(default_factory=dict)
    gauges: dict[tuple[str, Labels], float] = field(default_factory=dict)


class ClientMeasures:
    """The measures of all clients that told this node."""

    def __init__(self, mono_ms: Callable[[], MonoMs], wall_ms: Callable[[], int]) -> None:
        self._mono_ms = mono_ms
        self._wall_ms = wall_ms
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._told_ms: dict[tuple[str, Labels], MonoMs] = {}  # when a histogram was reported last
        self._gauges: set[tuple[str, Labels]] = set()
        self._clients: dict[str, _Client] = {}
        self._told = 0  # series of all clients
        self._cleaned_ms = MonoMs(-SAME_MS)
        self.refused = 0  # points that are not valid, or of too many series

    def add(self, series: Series, told: Distribution) -> None:
        """A client tells a histogram."""
        key = series.name, series.labels
        found = self._histograms.get(key) or self._begun(told.bounds)
        if (
            found is None
            or found.bounds != told.bounds
            or len(told.counts) != len(found.counts)
            or (client := self._client(series.client)) is None
            or not self._room(client.totals, key)
        ):
            self.refused += 1
            return
        self._histograms[key] = found
        self._told_ms[key] = client.last_ms
        counts, total = told.counts, told.sum
        if told.cumulative:
            before = client.totals.get(key)
            client.totals[key] = told
            if before is None and self._began_before(client, told):
                return
            if before is not None and _continues(before, told):
                counts = tuple(a - b for a, b in zip(counts, before.counts, strict=True))
                total -= before.sum
        for place, count in enumerate(counts):
            found.counts[place] += count
        found.sum += total

    def put(self, series: Series, value: float) -> None:
        """A client tells what it holds now."""
        key = series.name, series.labels
        if (
            (key not in self._gauges and self._is_full())
            or (client := self._client(series.client)) is None
            or not self._room(client.gauges, key)
        ):
            self.refused += 1
            return
        self._gauges.add(key)
        client.gauges[key] = value

    def _begun(self, bounds: tuple[float, ...]) -> Histogram | None:
        """A new histogram, if there may be one more."""
        ascending = all(low < high for low, high in itertools.pairwise(bounds))
        if len(bounds) > BOUNDS_MAX or not ascending or self._is_full():
            return None
        return Histogram(bounds)

    def _is_full(self) -> bool:
        """Whether there may be no more series."""
        if len(self._histograms) + len(self._gauges) >= SERIES_MAX:
            self._make_room()
        return len(self._histograms) + len(self._gauges) >= SERIES_MAX

    def _make_room(self) -> None:
        """Forget series that no client reports any more, but not for each refused point."""
        now = self._mono_ms()
        if now - self._cleaned_ms < SAME_MS:
            return
        self._cleaned_ms = now
        self._forget_gone()
        for key in [key for key, ms in self._told_ms.items() if ms < now - LIVING_MS]:
            del self._histograms[key], self._told_ms[key]

    def _client(self, name: str) -> _Client | None:
        """A client that tells something now; None where there are too many."""
        now = self._mono_ms()
        client = self._clients.get(name)
        if client is None:
            if self._told >= TOLD_MAX:
                self._make_room()
            if self._told >= TOLD_MAX:
                return None
            client = self._clients[name] = _Client(now, now)
        client.last_ms = now
        return client

    def _room(self, told: Collection[tuple[str, Labels]], key: tuple[str, Labels]) -> bool:
        """Whether a client may tell a series; a new one is counted."""
        if key in told:
            return True
        if self._told >= TOLD_MAX:
            return False
        self._told += 1
        return True

    def _began_before(self, client: _Client, told: Distribution) -> bool:
        """Whether a client that was not known here has told its total elsewhere."""
        new = client.last_ms - client.first_ms < SAME_MS
        return new and told.since_ns < (self._wall_ms() - LIVING_MS) * 1_000_000

    def _forget_gone(self) -> None:
        gone = self._mono_ms() - LIVING_MS
        for name in [name for name, one in self._clients.items() if one.last_ms < gone]:
            client = self._clients.pop(name)
            self._told -= len(client.totals) + len(client.gauges)
        self._gauges = {key for one in self._clients.values() for key in one.gauges}

    def histograms(self) -> Iterator[tuple[str, Labels, Histogram]]:
        """Name, labels, and what all clients told since the node's start."""
        for (name, labels), found in self._histograms.items():
            yield name, labels, found.copy()

    def gauges(self) -> Iterator[tuple[str, Labels, float]]:
        """Name, labels, and the sum over living clients."""
        self._forget_gone()
        sums: dict[tuple[str, Labels], float] = {}
        for client in self._clients.values():
            for key, value in client.gauges.items():
                sums[key] = sums.get(key, 0.0) + value
        for (name, labels), value in sums.items():
            yield name, labels, value


def _continues(before: Distribution, told: Distribution) -> bool:
    """Whether a client continued its counters; otherwise it restarted them."""
    if before.since_ns != told.since_ns or before.bounds != told.bounds:
        return False
    grown = all(a >= b for a, b in zip(told.counts, before.counts, strict=True))
    return grown and told.sum >= before.sum
