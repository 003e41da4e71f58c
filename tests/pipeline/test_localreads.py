"""Direct reads of a node's files equal reads from the node, which serves the rest."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog._machine import place_of
from duolog.spark import SCHEMA, _local
from duolog.spark._columns import record_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from duolog_server.node.wirecodec import batch_to_wire
from duolog_server.pipeline import localreads
from duolog_server.pipeline.localreads import open_queue
from duolog_server.store.kernels.jit import EMPTY_I64
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import Wanted
from tests.conformance.conftest import SMALL
from tests.process.support import NodeProcess
from tests.sparkfixtures import read
from tests.support import NOW, open_store, options, put_ok

ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
COUNT = 700
FILES = options(mapped_file_size_commit_log=64 << 10, max_message_size=32 << 10)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def store(directory: Path) -> Iterator[MessageStore]:
    """A running store: two queues whose records alternate, over many files of both kinds."""
    made = open_store(directory, FILES)
    chance = random.Random(7)
    for k in range(COUNT):
        for queue in range(2):
            body = chance.randbytes(chance.choice([0, 10, 500, 20_000 if k % 100 == 3 else 50]))
            put_ok(made, [body], "T", queue, properties=[b"TAGS\x01t%d" % (k % 3)], now=NOW + k)
    yield made
    made.shutdown()


def rows_of(batches: Iterator[Any], end: int) -> list[dict[str, Any]]:
    return [row for batch in batches for row in record_batch(batch, ARROW, end).to_pylist()]


def asked(store: MessageStore, queue: int, start: int, end: int) -> list[dict[str, Any]]:
    """What the node would send."""
    rows = []
    while start < end:
        result = store.get("T", queue, QueueOffset(start), Wanted(end - start, 1 << 20, EMPTY_I64))
        batch = batch_to_wire(("T", queue), start, result)
        rows += record_batch(batch, ARROW, end).to_pylist()
        start = batch.next_offset
    return rows


@given(st.integers(0, COUNT), st.integers(0, COUNT), st.integers(0, 1), st.integers(1, 60_000))
@settings(max_examples=25, deadline=None)
def test_files_and_node_return_the_same_messages(
    store: MessageStore, directory: Path, one: int, other: int, queue: int, size: int
) -> None:
    start, end = sorted((one, other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(localreads, "BATCH_BYTES", size)
        found = rows_of(open_queue(str(directory), "T", queue, 1 << 62).batches(start, end), end)
    assert found == asked(store, queue, start, end)


def test_the_files_of_a_running_store_are_read_as_they_grow(tmp_path: Path) -> None:
    store = open_store(tmp_path, FILES)
    put_ok(store, [b"first"])
    files = open_queue(str(tmp_path), "T", 0, 1 << 62)
    put_ok(store, [b"second"])
    assert [row["body"] for row in rows_of(files.batches(0, 2), 2)] == [b"first", b"second"]
    store.shutdown()


def test_nothing_is_read_that_the_node_does_not_know_to_be_confirmed(tmp_path: Path) -> None:
    store = open_store(tmp_path, FILES)
    ends = [put_ok(store, [b"%04d" % k * 50]).end_offset for k in range(400)]
    for known in (0, 1, 17, 399, 400):
        confirmed = ends[known - 1] if known else 0
        for slack in (0, 1, 100):
            files = open_queue(str(tmp_path), "T", 0, confirmed + slack)
            assert len(rows_of(files.batches(0, 400), 400)) == known
    store.shutdown()


def test_damaged_and_missing_messages_are_read_from_the_node(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    one = open_store(copy, FILES)
    for k in range(400):
        put_ok(one, [b"%04d" % k * 50])
    one.shutdown()

    def bodies(end: int = 400) -> list[bytes]:
        files = open_queue(str(copy), "T", 0, 1 << 62)
        return [row["body"] for row in rows_of(files.batches(0, end), end)]

    everything = bodies()
    assert everything == [b"%04d" % k * 50 for k in range(400)]
    assert bodies(500) == everything  # blank behind the last entry
    segments = sorted((copy / "commitlog").iterdir())
    data = segments[1].read_bytes()
    at = data.index(b"0250" * 50)
    segments[1].write_bytes(data[: at + 7] + b"X" + data[at + 8 :])
    assert bodies() == everything[:250]
    segments[1].write_bytes(data)
    first = data.index(b"\xda\xa3\x20") - 4
    before = int.from_bytes(data[first + 20 : first + 28], "big")  # its offset in the queue
    segments[1].unlink()
    assert bodies() == everything[:before]
    units = sorted((copy / "consumequeue" / "T" / "0").iterdir())
    units[2].unlink()
    assert bodies() == everything[:100]  # of 50 entries each
    shutil.rmtree(copy / "consumequeue")
    with pytest.raises(OSError, match="consumequeue"):
        open_queue(str(copy), "T", 0, 1 << 62)
    with pytest.raises(OSError, match="no such directory"):
        open_queue(str(copy / "elsewhere"), "T", 0, 1 << 62)


def test_a_file_removed_during_a_read_is_tolerated(tmp_path: Path) -> None:
    store = open_store(tmp_path, FILES)
    for k in range(400):
        put_ok(store, [b"%04d" % k * 50])
    files = open_queue(str(tmp_path), "T", 0, 1 << 62).batches(0, 400)
    seen = rows_of(iter([next(files)]), 400)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    seen += rows_of(files, 400)
    assert [row["body"] for row in seen] == [b"%04d" % k * 50 for k in range(len(seen))]
    assert len(seen) < 400
    store.fence("its files are gone")


def test_only_a_node_of_this_machine_has_its_files_read_directly(tmp_path: Path) -> None:
    here = place_of(str(tmp_path))
    assert _local.is_here(here)
    for other in (
        replace(here, boot_id="another machine's"),
        replace(here, boot_id=""),
        replace(here, path=str(tmp_path / "not-there")),
        replace(here, path=str(tmp_path.parent)),
        replace(here, inode=here.inode + 1),
        replace(here, device=here.device + 1),
    ):
        assert not _local.is_here(other), other
    assert not _local.is_here(place_of(str(tmp_path / "not-there")))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """One of the test's own: its files are damaged."""
    made = NodeProcess(tmp_path / "data", *SMALL)
    made.start()
    yield made
    assert made.stop() == 0


@pytest.mark.process
@pytest.mark.spark
def test_a_task_beside_a_node_reads_its_files_and_asks_for_the_rest(
    spark: SparkSession, client: duolog.sync.Client, node: NodeProcess
) -> None:
    topic, count = "Local", 2 * _local.MESSAGES_MIN
    client.admin.create_topic(topic, 2)
    with client.producer() as producer:
        for queue in range(2):
            bodies = [b"%d-%d" % (queue, k) for k in range(count)]
            producer.send_batch(topic, bodies, queue_id=queue, tags="ab"[queue])

    def look(**how: Any) -> tuple[int, int, int]:
        """Rows, different bodies, and how many of them the node sent."""
        before = client.admin.node_status().messages_out
        frame = read(spark, node, topic=topic, **how).load()
        rows, kinds = frame.selectExpr("count(*)", "count(DISTINCT body)").collect()[0]
        return rows, kinds, client.admin.node_status().messages_out - before

    assert look() == (2 * count, 2 * count, 0)
    assert look(localReads="false") == (2 * count, 2 * count, 2 * count)
    assert look(tags="a")[0] == count
    # Damaged where it lies: the files end there, and the node says what is lost.
    (segment,) = (
        path
        for path in (node.data / "commitlog").iterdir()
        if b"1-%d" % (count - 2) in path.read_bytes()
    )
    with open(segment, "r+b") as file:
        file.seek(segment.read_bytes().index(b"1-%d" % (count - 2)))
        file.write(b"X")
    rows, kinds, sent = look(failOnDataLoss="false")
    assert (rows, kinds, sent) == (2 * count - 1, 2 * count - 1, 1)
    with pytest.raises(Exception, match="DataLoss"):
        look()
