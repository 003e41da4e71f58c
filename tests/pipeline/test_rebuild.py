"""Rebuilding queues and index: the same bytes as the node's own dispatch wrote."""

import filecmp
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duolog_server.pipeline import rebuild as rebuilds
from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.rebuild import rebuild
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.reader import Wanted
from duolog_server.store.record import TRANSACTION_PREPARED
from tests.interop.test_interop import ask, ours, rocketmq, same, writer
from tests.interop.writer import OPTIONS
from tests.otherfilesystem import other_file_system
from tests.pipeline.test_audit import CHOSEN, fill, flip, records
from tests.support import NOW, open_store, put_ok

pytestmark = [pytest.mark.spark]


__all__ = ["rocketmq"]  # a fixture


def files(directory: Path) -> dict[str, Path]:
    return {
        str(path.relative_to(directory)): path
        for name in ("consumequeue", "lightqueue", "index")
        for path in (directory / name).rglob("*")
        if path.is_file()
    }


def assert_same(one: Path, other: Path) -> None:
    left, right = files(one), files(other)
    assert sorted(left) == sorted(right)
    for name, path in left.items():
        assert filecmp.cmp(path, right[name], shallow=False), name


def test_a_rebuild_writes_the_same_bytes_as_dispatch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilds, "piece_bytes", lambda segments, cores: 60_000)
    one, other = tmp_path / "a", tmp_path / "b"

    def special(store: MessageStore) -> None:
        put_ok(store, [b"half"], "T0", 0, sysflag=TRANSACTION_PREPARED, now=NOW + 500)
        delayed = [b"DELAY\x013"]
        put_ok(store, [b"later"], "SCHEDULE_TOPIC_XXXX", 2, properties=delayed, now=NOW + 501)
        for k in range(100):
            names = ("%LMQ%$T0$a", f"%LMQ%$T0${k % 5}")
            put_ok(store, [b"light"], "T0", 0, light_queues=names, now=NOW + 502 + k)
            if k == 70:
                store.release_light_queues(["%LMQ%$T0$a"], forgotten=True)  # it begins again

    fill(one, more=special)
    shutil.copytree(one, other)
    for name in ("consumequeue", "lightqueue", "index"):
        shutil.rmtree(other / name)
    made = rebuild(spark, other, CHOSEN)
    assert (made.records, made.queue_entries, made.damaged) == (3102, 3301, False)
    assert made.index_files == len(list((one / "index").iterdir())) >= 2
    assert_same(one, other)
    (other / "rebuilding" / "old").mkdir(parents=True)  # a rebuild was killed
    rebuild(spark, other)  # over what is there, which tells the sizes
    assert_same(one, other)
    assert not (other / "rebuilding").exists()
    store = MessageStore(OsDisk(other), CHOSEN)
    report = store.start()
    assert report.corrupt_ranges == 0
    assert not report.rebuilt_queues
    assert store.get("T0", 0, QueueOffset(0), Wanted(10, 1 << 20)).count == 10
    assert store.lookups.by_key("T1", "k1-3", 1, 0, 1 << 62)
    store.shutdown()


@pytest.mark.interop
def test_the_real_rocketmq_opens_what_was_rebuilt(
    spark: SparkSession, rocketmq: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    writer(path, 6000).communicate()
    before = tmp_path / "before"
    shutil.copytree(path, before)
    assert not rebuild(spark, path, OPTIONS).damaged
    assert_same(before, path)
    same(ours(path), ask(rocketmq, path))


def test_a_damaged_log_is_rebuilt_as_a_node_would(spark: SparkSession, tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    fill(one)
    known = records(one)
    for number in (200, 900, 901):
        offset, size = known[number]
        flip(one, offset + size // 2)
    shutil.copytree(one, other)
    for name in ("consumequeue", "index"):
        shutil.rmtree(one / name)
    (one / "abort").write_bytes(b"")
    store = open_store(one, CHOSEN)
    store.shutdown()
    made = rebuild(spark, other, CHOSEN)
    assert made.damaged
    assert_same(one, other)


def test_a_rebuild_keeps_queues_whose_records_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    store = open_store(path, CHOSEN)
    put_ok(store, [b"x"] * 7, "expired")
    store.shutdown()
    with other_file_system(path) as elsewhere:
        shutil.move(path / "consumequeue", elsewhere / "queues")
        (path / "consumequeue").symlink_to(elsewhere / "queues")
        fill(path)
        (path / "commitlog" / f"{0:020}").unlink()  # as RocketMQ, which writes no queueends
        (path / "commitlog" / "lost+found").mkdir()  # it is a file system's root
        (path / "queueends").unlink()
        (elsewhere / "queues" / "T0" / "0" / f"{0:020}").write_bytes(b"damage")
        rebuild(spark, path, CHOSEN)
        assert (path / "consumequeue").is_symlink()
        assert sorted(p.name for p in (elsewhere / "queues").iterdir()) == [
            *("T0", "T1", "T2", "expired")
        ]
        store = MessageStore(OsDisk(path), CHOSEN)
        report = store.start()
        assert not report.rebuilt_queues
        assert (store.next_offset("expired", 0), store.queue_range("expired", 0)[0]) == (7, 7)
        assert store.get("T0", 0, store.queue_range("T0", 0)[0], Wanted(10, 1 << 20)).count == 10
        store.shutdown()
        shutil.rmtree(elsewhere / "queues")
        (path / "queueends").unlink()
        (path / "consumequeue").unlink()
        with pytest.raises(BadJob, match=r"consumequeue is lost, the log begins at 262144, and"):
            rebuild(spark, path, CHOSEN)


def test_queues_that_are_lost_are_made_of_the_size_that_is_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    fill(one, 100)
    shutil.copytree(one, other)
    shutil.rmtree(other / "consumequeue")
    rebuild(spark, other, queue_file_bytes=CHOSEN.mapped_file_size_consume_queue)
    assert_same(one, other)


def test_a_directory_that_is_held_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "a", 100)
    holder = open_store(tmp_path / "a", CHOSEN)
    before = {name: path.read_bytes() for name, path in files(tmp_path / "a").items()}
    code = (
        "from pathlib import Path\nfrom duolog_server.pipeline.errors import BadJob\n"
        "from duolog_server.pipeline.rebuild import rebuild\n"
        f"try:\n    rebuild(None, Path({str(tmp_path / 'a')!r}))\n"
        "except BadJob as error:\n    print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "stop the node first" in told.stdout
    assert {name: path.read_bytes() for name, path in files(tmp_path / "a").items()} == before
    holder.shutdown()
    with pytest.raises(BadJob, match=r"index: its files have .* leave out --index-slots"):
        rebuild(spark, tmp_path / "a", StoreOptions())
    assert {name: path.read_bytes() for name, path in files(tmp_path / "a").items()} == before
    with pytest.raises(BadJob, match="is not a store directory"):
        rebuild(spark, tmp_path)
