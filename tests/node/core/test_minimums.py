"""Minimums that records have raised: against a plain model, over starts, kills and lost files."""

import tempfile
from pathlib import Path
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.log import Log
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.store.dump import check
from duolog_server.store.metadatafiles import BACKUP, SNAPSHOT
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.queuenote import PATH
from duolog_server.store.status import BrokerRole
from tests.inmemory import directory_in_memory
from tests.node.core.test_moves import MASTER, Directory, OwnLog
from tests.support import crash, flush_all, open_store, options, put, read_all

QUEUES = range(2)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 1), st.integers(1, 60)),
    st.tuples(st.just("trim"), st.integers(0, 1), st.integers(0, 200)),
    st.tuples(st.just("clean"), st.booleans(), st.just(0)),
    st.tuples(st.just("stop"), st.booleans(), st.just(0)),
    st.tuples(st.just("kill"), st.booleans(), st.booleans()),
)


def trim(metadata: MetadataLog, queue_id: int, offset: int) -> Any:
    return metadata.raise_minimums({"T": {queue_id: offset}})


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=12))
@example([("put", 0, 60), ("put", 0, 60), ("trim", 0, 110), ("clean", 1, 0), ("kill", 0, 1)])
@example([("put", 0, 60), ("put", 0, 60), ("trim", 0, 110), ("clean", 1, 0), ("kill", 1, 0)])
def test_minimums_never_fall_and_hide_nothing_that_is_stored_later(
    steps: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as root, directory_in_memory(Path(root)) as path:
        node = Directory(path)
        node.run(node.metadata.put_topic(node.metadata.new_topic("T", len(QUEUES), 6)))
        stored: dict[int, list[bytes]] = {one: [] for one in QUEUES}
        minimums = dict.fromkeys(QUEUES, 0)
        for what, first, second in steps:
            if what == "put":
                bodies = [b"%d-%d" % (first, len(stored[first]) + k) for k in range(second)]
                put(node.store, bodies, queue_id=first)
                stored[first] += bodies
                node.settle()
            elif what == "trim":
                offset = min(second, len(stored[first]))
                node.run(trim(node.metadata, first, offset))
                minimums[first] = max(minimums[first], offset)
            elif what == "clean":
                if first:
                    flush_all(node.store)
                node.store.queues.delete_hidden()
                assert not (first and any(one.has_hidden_files for one in node.store.queues))
                node.store.disk.reclaim()
            elif what == "stop":
                node.save()
                node.store.shutdown()
                lose(path, [SNAPSHOT, BACKUP] if first else [])
                node.open()
            else:
                crash(node.store)
                lose(path, [SNAPSHOT, BACKUP] if first else [])
                lose(path, [PATH] if second else [])
                node.open()
            node.settle()
            for queue_id in QUEUES:
                low, high = node.store.queue_range("T", queue_id)
                assert (low, high) == (minimums[queue_id], len(stored[queue_id]))
                assert read_all(node.store, "T", queue_id) == stored[queue_id][low:]
        node.store.shutdown()
        assert check(OsDisk(path), MASTER)["problems"] == []


def lose(path: Path, names: list[str]) -> None:
    for name in names:
        (path / name).unlink(missing_ok=True)


def test_a_minimum_behind_the_end_of_a_queue_is_lowered_to_it(tmp_path: Path) -> None:
    """As where an unclean election lost the messages, and the tables are those of before."""
    with directory_in_memory(tmp_path) as path:
        node = Directory(path)
        node.run(node.metadata.put_topic(node.metadata.new_topic("T", 2, 6)))
        put(node.store, [b"a"], queue_id=0)
        node.settle()
        node.metadata.tables.minimums["T"] = {0: 5, 1: 3}
        node.metadata.promoted()
        assert node.metadata.tables.minimums["T"] == {0: 1, 1: 0}
        put(node.store, [b"b"], queue_id=0)
        put(node.store, [b"c"], queue_id=1)
        node.settle()
        node.metadata._apply_floors()
        assert read_all(node.store, "T", 0)[-1:] == [b"b"]
        assert read_all(node.store, "T", 1) == [b"c"]
        assert node.store.queue_range("T", 0) == (QueueOffset(1), QueueOffset(2))
        crash(node.store)


def test_a_slave_that_was_cut_hides_the_same_once_its_log_is_copied_again(tmp_path: Path) -> None:
    """It has read as many records as the master, whose tables come before the messages."""
    with directory_in_memory(tmp_path) as path:
        node = Directory(path)
        node.run(node.metadata.put_topic(node.metadata.new_topic("T", 1, 6)))
        put(node.store, [b"%d" % k for k in range(12)])
        node.settle()
        kept = node.store.max_offset

        def rest() -> None:
            put(node.store, [b"%d" % k for k in range(12, 20)])
            node.settle()
            node.run(trim(node.metadata, 0, 15))

        rest()
        tables = node.metadata.snapshot_bytes()
        node.store.truncate(kept)
        node.metadata.adopt_snapshot(tables)
        rest()
        assert node.store.queue_range("T", 0) == (15, 20)
        assert read_all(node.store, "T", 0)[0] == b"15"
        crash(node.store)


def test_a_start_whose_queues_are_behind_its_tables_hides_the_same_once_they_are_not(
    tmp_path: Path,
) -> None:
    """As on a disk that is full, or on a slave that does not know yet what is confirmed."""
    with directory_in_memory(tmp_path) as path:
        node = Directory(path)
        node.run(node.metadata.put_topic(node.metadata.new_topic("T", 1, 6)))
        put(node.store, [b"%d" % k for k in range(12)])
        hidden = node.store.max_offset
        put(node.store, [b"%d" % k for k in range(12, 20)])
        node.settle()
        node.run(trim(node.metadata, 0, 15))
        flush_all(node.store)
        node.save()
        crash(node.store)
        node.store = open_store(path, options(broker_role=BrokerRole.AUTO))
        node.store.hide_from(hidden)
        node.metadata = MetadataLog(cast(Log, OwnLog(node.store)), LimitsSection())
        node.metadata.load()
        assert node.store.queue_range("T", 0) == (12, 12)
        node.store.confirm(node.store.log.max_offset)
        node.settle()
        assert node.store.queue_range("T", 0) == (15, 20)
        crash(node.store)


def test_a_slave_shows_what_its_master_shows_where_a_trim_was_lost(tmp_path: Path) -> None:
    """As by an unclean election: the slave was cut, and its queues begin where its master's do."""
    with directory_in_memory(tmp_path) as path:
        node = Directory(path)
        node.run(node.metadata.put_topic(node.metadata.new_topic("T", 1, 6)))
        put(node.store, [b"%d" % k for k in range(12)])
        node.settle()
        kept, tables = node.store.max_offset, node.metadata.snapshot_bytes()
        put(node.store, [b"%d" % k for k in range(12, 20)])
        node.settle()
        node.run(trim(node.metadata, 0, 15))
        node.store.truncate(kept)
        node.metadata.adopt_snapshot(tables)
        assert node.store.queue_range("T", 0) == (0, 12)
        flush_all(node.store)
        node.save()
        node.store.shutdown()
        node.open()
        assert node.store.queue_range("T", 0) == (0, 12)
        crash(node.store)
