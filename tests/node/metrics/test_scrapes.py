"""A scrape: in steps, in turn, in time, and within its limit of series."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from weakref import WeakSet

import pytest

from duolog_server.node.metrics.exposition import AT_ONCE, Exposition, Overdue
from duolog_server.node.metrics.samples import Samples
from duolog_server.node.metrics.server import RESTS, STEP_SECONDS, WRITE_SECONDS, Facts, Scrapes
from duolog_server.node.metrics.table import SCOPES
from duolog_server.node.runtime.histogram import Histogram
from tests.scraping import Scrape
from tests.turns import counted_turns

LABELS = {scope: dict.fromkeys(labels, "x") for scope, labels in SCOPES.items()}


def scrapes(facts: Facts, series_max: int = 10_000) -> Scrapes:
    return Scrapes(facts, lambda samples: None, Exposition(LABELS), series_max)


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
    made.stop()
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
    made.stop()
    assert (running, most) == (0, 1)


async def test_between_two_scrapes_the_node_rests_some_times_what_the_first_one_took() -> None:
    loop, began, took = asyncio.get_running_loop(), [], 0.005

    def facts(samples: Samples) -> Iterator[None]:
        began.append(loop.time())
        while loop.time() < began[-1] + took:
            pass
        yield

    made = scrapes(facts)
    for _ in range(3):
        await made.text(loop.time() + 60)
    made.stop()
    assert began[1] - began[0] >= (1 + RESTS) * took
    assert began[2] - began[1] >= (1 + RESTS) * took


async def test_a_scrape_ends_at_its_deadline_and_writes_nothing_after_it() -> None:
    def endless(samples: Samples) -> Iterator[None]:
        while True:
            yield

    made = scrapes(endless)
    with pytest.raises(TimeoutError):
        await text_of(made, WRITE_SECONDS + 0.05)
    made.stop()
    samples = Samples()
    samples.node.add("duolog_queues", 1)
    exposition = Exposition(LABELS)
    assert exposition.text(samples.node.samples, time.monotonic() + 60)
    with pytest.raises(Overdue):
        exposition.text(samples.node.samples, time.monotonic() - 1)


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
            samples.bundle(0).add("rocketmq_half_messages", 1, str(number))
        yield

    made = scrapes(many)
    assert len((await text_of(made)).rows("rocketmq_half_messages")) == 20 * AT_ONCE
    made.stop()
    assert len(pauses) >= 20
    assert min(pauses) > 0, "a pause of 0 does not let the loop's thread go first"


async def test_over_the_limit_the_series_with_the_fewest_messages_are_left_out() -> None:
    def facts(samples: Samples) -> Iterator[None]:
        samples.node.add("duolog_queues", 7)
        for traffic in (30, 10, 50, 20, 40):
            bundle = samples.bundle(traffic)
            for name in ("rocketmq_messages_in_total", "rocketmq_throughput_in_total"):
                bundle.add(name, traffic, f"T{traffic}", "normal", "false")
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
        made.stop()
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
    held.made.stop()
    held.may_go_on.set()
    with pytest.raises(TimeoutError):
        await scrape
    assert held.pieces == 1


async def test_what_nobody_waits_for_any_more_is_not_written_on(held: Held) -> None:
    scrape = await held.begun()
    scrape.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scrape
    held.may_go_on.set()
    found = await text_of(held.made)
    held.made.stop()
    assert found.value("duolog_metrics_series_dropped") == 0, "the next scrape has its turn"
    assert held.pieces == 1 + 21, "one of the abandoned scrape, all of the next one"


def test_the_garbage_collector_has_nothing_to_follow_in_samples() -> None:
    """A run of it stops the node for as long as it takes to look at all objects."""
    samples = Samples()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        bundle = samples.bundle(number)
        bundle.add("rocketmq_messages_in_total", number, f"T{number}", "normal", "false")
        bundle.add("rocketmq_throughput_in_total", number, f"T{number}", "normal", "false")
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_samples_are_freed_as_they_are_taken() -> None:
    """To free all of a large scrape at once takes tens of milliseconds, in which nothing runs."""

    class Number(float):
        pass

    samples, alive = Samples(), WeakSet[Number]()
    for number in range(1000):
        value = Number(number)
        alive.add(value)
        samples.bundle(number).add("rocketmq_half_messages", value, f"T{number}")
    del value
    for taken, _ in enumerate(samples.taken({2, 500, 501})):
        assert len(alive) <= 1000 - taken
    assert len(alive) <= 1


async def test_labels_are_escaped_checked_and_large_families_have_one_header() -> None:
    hostile = 'a"b\\c\nd{},e=f \u00e9'

    def facts(samples: Samples) -> Iterator[None]:
        for number in range(250):
            samples.bundle(0).add("rocketmq_half_messages", number, f"{hostile}{number}")
        yield

    made = scrapes(facts)
    found = await text_of(made)
    made.stop()
    rows = found.rows("rocketmq_half_messages")
    assert {dict(key[1])["topic"] for key in rows} == {f"{hostile}{n}" for n in range(250)}
    assert found.text.count("# TYPE rocketmq_half_messages ") == 1
    samples = Samples()
    with pytest.raises(KeyError):
        samples.node.add("duolog_unknown", 1)
    with pytest.raises(AssertionError):
        samples.node.add("duolog_queues", 1, "label")


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
    made.stop()
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
            bundle = samples.bundle(len(sizes))
            bundle.add("rocketmq_message_size", histogram, topic, "normal", "false")
        yield

    for series_max, dropped in ((10, 0), (9, 5), (4, 10)):
        made = scrapes(facts, series_max)
        found = await text_of(made)
        made.stop()
        assert found.value("duolog_metrics_series_dropped") == dropped
        if dropped < 10:
            assert found.value("rocketmq_message_size_bucket", topic="A", le="1024") == 1
            assert found.value("rocketmq_message_size_bucket", topic="A", le="4096") == 2
            assert found.value("rocketmq_message_size_bucket", topic="A", le="+Inf") == 2
            assert found.value("rocketmq_message_size_count", topic="A") == 2
            assert found.value("rocketmq_message_size_sum", topic="A") == 3010
        assert bool(found.rows("rocketmq_message_size_count", topic="B")) == (dropped == 0)
