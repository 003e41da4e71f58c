"""The measurements of many queues: what they count, and that all of them run."""

import asyncio
import math
from collections import Counter
from pathlib import Path

import pytest

from bench.harness import fresh_directory
from bench.manyqueues import Size, disk_figure, disk_used, many_queues, very_many_queues
from bench.queuefiller import LITE_TOPIC, NoRoom, check_room, fill
from duolog_server.store.lightqueues import is_light
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk

SMALL = StoreOptions(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=4000,
    max_hash_slot_num=100,
    max_index_num=1000,
)


def test_disk_is_counted_in_blocks_since_the_queues_were_requested(tmp_path: Path) -> None:
    for name in ("commitlog", "consumequeue/T/0", "index"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "commitlog/00").write_bytes(b"x" * (1 << 20))
    (tmp_path / "consumequeue/T/0/00").write_bytes(b"x" * 8192)
    with (tmp_path / "index/sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (tmp_path / "checkpoint").write_bytes(b"x" * 4096)
    found = disk_used(tmp_path)
    directories = ("consumequeue", "consumequeue/T", "consumequeue/T/0")
    blocks = sum((tmp_path / name).stat().st_blocks * 512 for name in directories)
    assert 8192 + blocks <= found["consumequeue"] < (1 << 16) + blocks
    assert found["index"] < 1 << 16
    assert 4096 <= found["checkpoint"] < 1 << 16
    assert "commitlog" not in found
    before = Counter({"index": 420_000_000, "consumequeue": 1_000_000})
    after = Counter({"index": 420_000_000, "consumequeue": 201_000_000, "config": 4096})
    figure = disk_figure(before, after, 16_000, 0)
    assert figure.numbers["bytes"] == 200_004_096
    assert figure.numbers["queue_bytes"] == 200_000_000
    assert not figure.reached


def test_a_filled_store_has_a_message_in_every_queue_a_failed_one_none(tmp_path: Path) -> None:
    store = fill(tmp_path, 10, 30, SMALL)
    counts = {
        (queue.topic, queue.queue_id): queue.max_offset - queue.min_offset for queue in store.queues
    }
    heavy = {key: count for key, count in counts.items() if key[0].startswith("heavy-")}
    light = [count for (topic, _), count in counts.items() if is_light(topic)]
    assert heavy == {(f"heavy-{k // 4:05d}", k % 4): 1 for k in range(10)}
    assert light == [1] * 30
    assert sum(count for (topic, _), count in counts.items() if topic == LITE_TOPIC) == 30
    assert (tmp_path / "abort").exists()
    store.shutdown()
    with pytest.raises(RuntimeError), fresh_directory() as root:
        (root / "file").write_bytes(b"x")
        raise RuntimeError
    assert not root.exists()


def test_a_disk_that_is_nearly_full_is_not_filled_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path)
    monkeypatch.setattr(disk, "used_ratio", lambda *_: 0.84)
    check_room(disk)
    monkeypatch.setattr(disk, "used_ratio", lambda *_: 0.86)
    with pytest.raises(NoRoom, match="86%"):
        check_room(disk)


@pytest.mark.process
@pytest.mark.long
def test_every_figure_of_many_queues_is_measured_at_a_small_scale() -> None:
    size = Size.scaled(0.001)
    figures = asyncio.run(many_queues(size)) + asyncio.run(very_many_queues(size))
    assert [figure.name for figure in figures] == [
        "16 queues with a message each, disk",
        "start with 16 queues after SIGKILL",
        "start with 40 queues and 160 light ones after SIGKILL",
    ]
    disk, start, filled = (figure.numbers for figure in figures)
    assert disk["queue_bytes"] >= 16 * 4096
    assert start["many_s"] > start["extra_s"]
    assert filled["stopped_s"] > 0
    assert all(math.isfinite(value) for figure in figures for value in figure.numbers.values())
