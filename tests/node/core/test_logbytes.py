"""The bytes of a queue's records are those that a sum over all entries gives, and are read once."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.core import logbytes as module
from duolog_server.node.core.logbytes import Allowance, LogBytes
from duolog_server.node.core.slices import Slices
from duolog_server.node.core.turnbudget import TurnBudget
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.kernels.jit import I64
from duolog_server.store.offsets import QueueOffset

T = ("T", 0)


class Store:
    """Queues that tell which entries are read. low: what retention has left."""

    def __init__(self, sizes: list[int] | None = None) -> None:
        self.sizes = list(sizes or [])
        self.low = 0
        self.base = 1000  # log offset of the first record
        self.read: list[int] = []
        self.epoch = 1

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        return QueueOffset(self.low), QueueOffset(len(self.sizes))

    def entries(self, topic: str, queue_id: int, queue_offset: int, count: int) -> I64:
        assert queue_offset >= self.low, "its file may be gone"
        end = min(queue_offset + count, len(self.sizes))
        numbers = range(queue_offset, end)
        if count > 1:
            self.read += numbers
        sizes = [self.sizes[number] for number in numbers]
        table = [[self.base + number for number in numbers], sizes, [0] * len(sizes)]
        return np.array(table, np.int64).reshape(3, -1)

    @property
    def bytes(self) -> int:
        return sum(size for size in self.sizes[self.low :] if size != BLANK)


def counting(store: Store) -> LogBytes:
    return LogBytes(cast(Any, store), lambda: store.epoch)


def some(left: int = module.ENTRIES_MAX) -> Allowance:
    return Allowance(Slices(TurnBudget(lambda: 0.0)), left)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "AT_ONCE", 3)


async def test_what_was_counted_is_not_read_again_and_each_call_is_bounded() -> None:
    store = Store([10 * n for n in range(1, 22)])
    counts = counting(store)
    assert await counts.of(*T, some()) == store.bytes
    assert store.read == list(range(21))
    assert await counts.of(*T, some()) == store.bytes
    store.sizes += [7, 8]
    assert await counts.of(*T, some()) == store.bytes
    assert store.read == list(range(23))
    store = Store([10] * 30)
    counts = counting(store)
    await counts.of(*T, some())
    store.read.clear()
    store.low = 11
    assert await counts.of(*T, some()) == store.bytes == 190
    assert store.read == list(range(11, 16))
    store = Store([10] * 25)
    counts = counting(store)
    one = some(10)
    assert await counts.of(*T, one) is None
    assert one.left == 0
    assert await counts.of("U", 0, one) is None, "of another queue neither"
    assert await counts.of(*T, some(14)) is None
    assert await counts.of(*T, some(1)) == 250


async def test_blank_entries_and_an_empty_queue_have_no_bytes() -> None:
    store = Store([10, BLANK, 20])
    assert await counting(store).of(*T, some()) == 30
    store = Store()
    counts = counting(store)
    assert await counts.of(*T, some()) == 0
    store.sizes = [5, 6]
    assert await counts.of(*T, some()) == 11


@pytest.mark.parametrize("again", [5, 20, 30])
async def test_a_topic_that_was_made_again_is_another_one(again: int) -> None:
    store = Store([10] * 20)
    counts = counting(store)
    await counts.of(*T, some())
    store.sizes, store.base = [3] * again, 9000
    assert await counts.of(*T, some()) == 3 * again


async def test_records_that_were_replaced_truncated_or_removed_are_counted_again() -> None:
    store = Store([10] * 20)
    counts = counting(store)
    await counts.of(*T, some())
    store.sizes[12:] = [3] * 12
    store.epoch += 1
    assert await counts.of(*T, some()) == store.bytes
    store = Store([10] * 20)
    counts = counting(store)
    await counts.of(*T, some())
    store.sizes[18:] = []
    assert await counts.of(*T, some()) == store.bytes
    store = Store([10] * 20)
    gone = SimpleNamespace(
        queue_range=store.queue_range, entries=lambda *_: np.empty((3, 0), np.int64)
    )
    assert await LogBytes(cast(Any, gone), lambda: 1).of(*T, some()) is None


async def test_counts_of_few_queues_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_MAX", 2)
    store = Store([10] * 10)
    counts = counting(store)
    for name in ("T", "U", "T", "V"):
        await counts.of(name, 0, some())
    store.read.clear()
    await counts.of("T", 0, some())
    assert store.read == []
    await counts.of("U", 0, some())
    assert store.read == list(range(10))


@given(st.data())
async def test_it_is_the_sum_whatever_comes_and_goes(data: st.DataObject) -> None:
    store = Store()
    counts = counting(store)
    for _ in range(data.draw(st.integers(1, 12))):
        store.sizes += data.draw(st.lists(st.sampled_from([1, 7, 90, BLANK]), max_size=12))
        store.low = data.draw(st.integers(store.low, len(store.sizes)))
        found = await counts.of(*T, some(data.draw(st.integers(0, 20))))
        assert found in (None, store.bytes)
    assert await counts.of(*T, some()) == store.bytes
