"""A scrape: in steps, in turn, in time, and within its limit of series."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from duolog_server.node.metrics import server
from duolog_server.node.metrics.exposition import AT_ONCE, Exposition, Overdue, _Families
from duolog_server.node.metrics.samples import Samples, Shown
from duolog_server.node.metrics.server import (
    RESTS,
    STEP_SECONDS,
    WRITE_SECONDS,
    Facts,
    Scrapes,
    Sources,
)
from duolog_server.node.metrics.table import BY_NAME, SCOPES
from duolog_server.node.runtime.histogram import Histogram
from tests.scraping import Scrape
from tests.turns import counted_turns

LABELS = {scope: dict.fromkeys(labels, "x") for scope, labels in SCOPES.items()}


def scrapes(facts: Facts, series_max: int = 10_000) -> Scrapes:
    sources = Sources(facts, own, lambda samples: None)
    return Scrapes(sources, Exposition(LABELS), series_max)


def own(samples: Samples) -> Iterator[None]:
    samples.node.add("duolog_writable", 1)
    yield


async def text_of(made: Scrapes, seconds: float = 10.0) -> Scrape:
    deadline = asyncio.get_running_loop().time() + seconds
    return Scrape(b"".join(await made.text(deadline)).decode())


def nothing(samples: Samples) -> Iterator[None]:
    yield from ()


async def test_the_loop_runs_other_work_between_the_steps_of_a_scrape() -> None:
    seen: list[int] = []

    def facts(samples: Samples) -> Iterator[None]:
        for _ in range(5):
            until = time.monotonic() + 2 * STEP_SECONDS
            while time.monotonic() < until:
                pass
            seen.append(turns())
            yield

    made = scrapes(facts)
    with counted_turns() as turns:
        await text_of(made)
    await made.stop()
    assert len(set(seen)) == 5, "another turn after each step"


async def test_scrapes_come_one_at_a_time() -> None:
    running = most = 0

    def facts(samples: Samples) -> Iterator[None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(2 * STEP_SECONDS)
        yield
        yield
        running -= 1

    made = scrapes(facts)
    await asyncio.gather(*(text_of(made) for _ in range(4)))
    await made.stop()
    assert (running, most) == (0, 1)


async def test_between_two_scrapes_the_node_rests_some_times_what_the_first_one_took() -> None:
    loop, began, took = asyncio.get_running_loop(), [], 0.005

    def facts(samples: Samples) -> Iterator[None]:
        began.append(loop.time())
        until = time.thread_time() + took
        while time.thread_time() < until:
            pass
        yield

    made = scrapes(facts)
    for _ in range(3):
        await made.text(loop.time() + 60)
    await made.stop()
    assert began[1] - began[0] >= (1 + RESTS) * took
    assert began[2] - began[1] >= (1 + RESTS) * took


async def test_the_first_scrape_that_takes_too_long_has_the_nodes_own_figures() -> None:
    def endless(samples: Samples) -> Iterator[None]:
        while True:
            yield

    made = scrapes(endless)
    found = await text_of(made, WRITE_SECONDS + 0.05)
    assert set(found.families) == {"duolog_writable", "duolog_metrics_age_seconds"}
    await made.stop()
    exposition = Exposition(LABELS)
    assert exposition.text({"duolog_queues": [((), 1)]}, time.monotonic() + 60)
    with pytest.raises(Overdue):
        exposition.text({"duolog_queues": [((), 1)]}, time.monotonic() - 1)


def pausing(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], None]) -> None:
    """Have the thread that writes pause in a way of the test; no other thread does."""
    ours = SimpleNamespace(sleep=pause, monotonic=time.monotonic)
    monkeypatch.setattr("duolog_server.node.metrics.exposition.time", ours)


async def test_the_thread_that_writes_pauses_after_a_few_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that, the loop waits for the interpreter's switch interval at each of its turns."""
    pauses: list[float] = []
    pausing(monkeypatch, pauses.append)

    def many(samples: Samples) -> Iterator[None]:
        for number in range(20 * AT_ONCE):
            samples.one(0, "rocketmq_half_messages", 1, str(number))
        yield

    made = scrapes(many)
    assert len((await text_of(made)).rows("rocketmq_half_messages")) == 20 * AT_ONCE
    await made.stop()
    assert len(pauses) >= 20
    assert min(pauses) > 0, "a pause of 0 does not let the loop's thread go first"


def both(shown: Shown, topic: str, traffic: float) -> None:
    for name in ("rocketmq_messages_in_total", "rocketmq_throughput_in_total"):
        shown.add(name, traffic, topic, "normal", "false")


async def test_over_the_limit_the_series_with_the_fewest_messages_are_left_out() -> None:
    def facts(samples: Samples) -> Iterator[None]:
        samples.node.add("duolog_queues", 7)
        for traffic in (30, 10, 50, 20, 40):
            samples.offer(traffic, 2, both, f"T{traffic}", traffic)
        yield

    for series_max, topics, dropped in (
        (10, {10, 20, 30, 40, 50}, 0),
        (9, {20, 30, 40, 50}, 2),
        (8, {20, 30, 40, 50}, 2),
        (3, {50}, 8),
        (1, set[int](), 10),
    ):
        made = scrapes(facts, series_max)
        found = await text_of(made)
        await made.stop()
        assert set(found.rows("rocketmq_messages_in_total").values()) == topics
        assert set(found.rows("rocketmq_throughput_in_total").values()) == topics
        assert found.value("duolog_metrics_series_dropped") == dropped
        assert found.value("duolog_queues") == 7, "figures of the node are always there"


class Held:
    """Scrapes of many samples, whose thread stands still after a piece until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces = 0
        self.may_go_on = threading.Event()
        self._writing = threading.Event()
        self.made = scrapes(self._some)
        pausing(monkeypatch, self._pause)

    async def begun(self) -> asyncio.Task[Scrape]:
        """A scrape whose first piece is written."""
        scrape = asyncio.create_task(text_of(self.made))
        assert await asyncio.to_thread(self._writing.wait, 10)
        return scrape

    def _pause(self, seconds: float) -> None:
        self.pieces += 1
        self._writing.set()
        assert self.may_go_on.wait(10)

    @staticmethod
    def _some(samples: Samples) -> Iterator[None]:
        for number in range(20 * AT_ONCE):
            samples.node.add("rocketmq_half_messages", 1, str(number))
        yield


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


async def test_a_stop_ends_what_is_being_written(held: Held) -> None:
    """Python waits for the thread before the process ends."""
    scrape = await held.begun()
    await held.made.stop()
    held.may_go_on.set()
    assert "rocketmq_half_messages" not in (await scrape).families
    assert held.pieces == 1


async def test_what_nobody_waits_for_any_more_is_finished_for_the_next_scrape(held: Held) -> None:
    scrape = await held.begun()
    scrape.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scrape
    held.may_go_on.set()
    found = await text_of(held.made)
    await held.made.stop()
    assert found.value("duolog_metrics_series_dropped") == 0
    assert held.pieces == 21, "it is not written a second time"


class Numbered:
    """Scrapes that show how often the node was read; each reading waits while it may not end."""

    def __init__(self) -> None:
        self.readings = 0
        self.may_end = True
        self.made = scrapes(self._facts)

    def _facts(self, samples: Samples) -> Iterator[None]:
        self.readings += 1
        samples.node.add("duolog_queues", self.readings)
        while not self.may_end:
            yield
        samples.node.add("duolog_light_queues", self.readings)

    async def shown(self, seconds: float = 60.0) -> tuple[float, float]:
        """The number of the reading, as its beginning and its end have it."""
        found = await text_of(self.made, seconds)
        assert found.value("duolog_metrics_age_seconds") >= 0
        return found.value("duolog_queues"), found.value("duolog_light_queues")


@pytest.fixture
async def numbered() -> AsyncIterator[Numbered]:
    one = Numbered()
    yield one
    one.may_end = True
    await one.made.stop()


async def test_who_would_wait_too_long_gets_the_last_finished_scrape_as_a_whole(
    numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESTS", 0)
    assert await numbered.shown() == (1, 1)
    numbered.may_end = False
    assert await numbered.shown(WRITE_SECONDS + 0.05) == (1, 1)
    assert await numbered.shown(WRITE_SECONDS + 0.05) == (1, 1)
    assert numbered.readings == 2, "the second reading goes on"
    numbered.may_end = True
    assert await numbered.shown() == (2, 2), "who waits for it gets it"
    assert await numbered.shown() == (3, 3)


async def test_the_age_is_that_of_the_figures_that_are_sent(
    numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    await text_of(numbered.made)
    monkeypatch.setattr(numbered.made, "_rests_until", inf)
    assert numbered.made._last is not None
    before = loop.time() - numbered.made._last.began
    age = (await text_of(numbered.made)).value("duolog_metrics_age_seconds")
    assert before <= age <= loop.time() - numbered.made._last.began


async def test_scrapes_at_one_time_are_one_reading(numbered: Numbered) -> None:
    assert await asyncio.gather(*(numbered.shown() for _ in range(4))) == [(1, 1)] * 4
    assert numbered.readings == 1


async def test_a_scrape_within_a_long_rest_reads_nothing(
    numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESTS", 1e9)
    monkeypatch.setattr(server, "REST_SECONDS_MAX", 100.0)
    for _ in range(3):
        assert await numbered.shown(60.0) == (1, 1)
    assert numbered.readings == 1


async def test_a_reading_without_an_end_is_given_up_and_said(
    numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESTS", 0)
    assert await numbered.shown() == (1, 1)
    monkeypatch.setattr(server, "MAKING_SECONDS_MAX", 0.01)
    numbered.may_end = False
    with capture_logs() as events:
        assert await numbered.shown() == (1, 1)
    assert [one["event"] for one in events] == ["metrics took too long to collect"]


def test_the_garbage_collector_has_nothing_to_follow_in_samples() -> None:
    """A run of it stops the node for as long as it takes to look at all objects."""
    samples = Samples()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        samples.offer(number, 2, both, f"T{number}", number)
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_samples_are_made_of_what_is_shown_and_freed_as_they_are_written() -> None:
    """To free all of a large scrape at once takes tens of milliseconds, in which nothing runs."""

    class Number(float):
        pass

    samples, alive, made = Samples(), WeakSet[Number](), list[str]()

    def show(shown: Shown, number: float) -> None:
        made.append(f"T{number:.0f}")
        shown.add("rocketmq_half_messages", number, made[-1])

    count = 10 * AT_ONCE
    for number in range(count):
        value = Number(number)
        alive.add(value)
        samples.offer(number, 1, show, value)
    del value
    assert samples.choose(count // 2) == count // 2
    for _ in samples.take():
        pass
    assert made == [f"T{number}" for number in reversed(range(count // 2, count))]
    rows = samples.node.found["rocketmq_half_messages"]
    assert len(alive) == len(rows) == count // 2
    for number, _ in enumerate(Exposition(LABELS)._pieces(BY_NAME["rocketmq_half_messages"], rows)):
        assert len(alive) <= count // 2 - number * AT_ONCE


async def test_labels_are_escaped_checked_and_large_families_have_one_header() -> None:
    hostile = 'a"b\\c\nd{},e=f \u00e9'

    def facts(samples: Samples) -> Iterator[None]:
        for number in range(250):
            samples.one(0, "rocketmq_half_messages", number, f"{hostile}{number}")
        yield

    made = scrapes(facts)
    found = await text_of(made)
    await made.stop()
    rows = found.rows("rocketmq_half_messages")
    assert {dict(key[1])["topic"] for key in rows} == {f"{hostile}{n}" for n in range(250)}
    assert found.text.count("# TYPE rocketmq_half_messages ") == 1
    samples = Samples()
    with pytest.raises(KeyError):
        samples.node.add("duolog_unknown", 1)
    with pytest.raises(AssertionError):
        samples.node.add("duolog_queues", 1, "label")


@given(
    st.text(st.sampled_from('a"\\\n\r\t{},= #n\x00\u2028\u20ac')),
    st.floats() | st.integers(-(1 << 63), 1 << 63) | st.booleans(),
)
def test_a_sample_is_read_as_that_of_prometheus_own_writer(label: str, value: float) -> None:
    name = "rocketmq_half_messages"
    labels = {**LABELS[BY_NAME[name].scope], "topic": label}
    family = Metric(name, BY_NAME[name].help, BY_NAME[name].kind)
    family.add_sample(name, labels, value)
    theirs = generate_latest(_Families([family]))
    ours = b"".join(Exposition(LABELS).few({name: [((label,), value)]}))
    assert repr(rows_of(ours)) == repr(rows_of(theirs)), "NaN is not equal to itself"


def rows_of(text: bytes) -> list[tuple[str, dict[str, str], float]]:
    (family,) = text_string_to_metric_families(text.decode())
    return [
        (row.name, dict(sorted(row.labels.items())), float(row.value)) for row in family.samples
    ]


async def test_a_histogram_has_cumulative_buckets_with_inclusive_bounds() -> None:
    histogram = Histogram((0.001, 0.01, 0.1))
    for seconds in (0.0, 0.001, 0.0011, 0.1, 0.2, 5.0):
        histogram.observe(seconds)

    def facts(samples: Samples) -> Iterator[None]:
        samples.node.add("duolog_fsync_seconds", histogram.copy())
        histogram.observe(1.0)  # later than the scrape
        yield

    made = scrapes(facts)
    found = await text_of(made)
    await made.stop()
    buckets = found.rows("duolog_fsync_seconds_bucket")
    by_bound = {dict(key[1])["le"]: value for key, value in buckets.items()}
    assert by_bound == {"0.001": 2, "0.01": 3, "0.1": 4, "+Inf": 6}
    assert found.value("duolog_fsync_seconds_count") == 6
    assert found.value("duolog_fsync_seconds_sum") == pytest.approx(5.3021)


async def test_a_histogram_of_a_topic_is_so_many_series() -> None:
    def facts(samples: Samples) -> Iterator[None]:
        for topic, sizes in (("A", (10, 3000)), ("B", (10,))):
            histogram = Histogram((1024, 4096))
            for size in sizes:
                histogram.observe(size)
            name = "rocketmq_message_size"
            samples.one(len(sizes), name, histogram, topic, "normal", "false")
        yield

    for series_max, dropped in ((10, 0), (9, 5), (4, 10)):
        made = scrapes(facts, series_max)
        found = await text_of(made)
        await made.stop()
        assert found.value("duolog_metrics_series_dropped") == dropped
        if dropped < 10:
            assert found.value("rocketmq_message_size_bucket", topic="A", le="1024") == 1
            assert found.value("rocketmq_message_size_bucket", topic="A", le="4096") == 2
            assert found.value("rocketmq_message_size_bucket", topic="A", le="+Inf") == 2
            assert found.value("rocketmq_message_size_count", topic="A") == 2
            assert found.value("rocketmq_message_size_sum", topic="A") == 3010
        assert bool(found.rows("rocketmq_message_size_count", topic="B")) == (dropped == 0)
