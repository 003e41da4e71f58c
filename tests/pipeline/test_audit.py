"""The audit finds planted faults, and nothing else."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duolog_server.pipeline import audit as audits
from duolog_server.pipeline.audit import Audit, audit, compare
from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.segments import Piece, Stretch, pieces, segments_of, walk
from duolog_server.store.kernels import scan
from duolog_server.store.messagestore import MessageStore
from tests.support import NOW, open_store, options, put_ok

pytestmark = [pytest.mark.spark]

SEGMENT = 256 << 10
CHOSEN = options(mapped_file_size_commit_log=SEGMENT, max_index_num=2000, max_hash_slot_num=500)


def fill(
    path: Path, count: int = 3000, more: Callable[[MessageStore], None] = lambda store: None
) -> None:
    """A store of several segments, cleanly closed."""
    dice = random.Random(1)
    store = open_store(path, CHOSEN)
    for k in range(count // 20):
        bodies = [dice.randbytes(dice.randrange(1, 500)) for _ in range(20)]
        texts = [f"KEYS\x01k{k}-{n}\x02TAGS\x01t{n % 3}".encode() for n in range(20)]
        put_ok(store, bodies, f"T{k % 3}", k % 2, properties=texts, now=NOW + k)
    more(store)
    store.shutdown()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path / "a")
    return tmp_path / "a"


def flip(directory: Path, offset: int) -> None:
    size = next((directory / "commitlog").iterdir()).stat().st_size
    path = directory / "commitlog" / f"{offset - offset % size:020d}"
    data = bytearray(path.read_bytes())
    data[offset % size] ^= 0x10
    path.write_bytes(data)


def records(directory: Path) -> list[tuple[int, int]]:
    """Offset and size of every record."""
    found = []
    for segment in segments_of(directory):
        for step in walk(segment.memory(), Piece(segment, 0, segment.size), True):
            if isinstance(step, Stretch):
                rows = step.rows[:, : step.count]
                found += list(zip(rows[scan.PHY].tolist(), rows[scan.SIZE].tolist(), strict=True))
    return found


def test_a_clean_log_is_clean(spark: SparkSession, directory: Path) -> None:
    known = records(directory)
    found = audit(spark, directory)
    assert found.problems == []
    assert (found.records, found.bytes) == (len(known), sum(size for _, size in known))
    assert found.max_offset == sum(known[-1])
    assert found.segments >= 4
    assert (found.first_time, found.last_time) == (NOW, NOW + 149)
    assert not found.held


def test_pieces_of_any_size_find_each_record_once(directory: Path) -> None:
    known = records(directory)
    for size in (7_001, 50_000, SEGMENT):
        found = []
        for piece in pieces(segments_of(directory), size):
            for step in walk(piece.segment.memory(), piece, True):
                if isinstance(step, Stretch):
                    found += step.rows[scan.PHY, : step.count].tolist()
        assert found == [offset for offset, _ in known]


def test_every_flipped_bit_is_found(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "piece_bytes", lambda segments, cores: 60_000)
    known = records(directory)
    dice = random.Random(2)
    planted = sorted(dice.sample(known[:-1], 12))
    for offset, size in planted:
        flip(directory, offset + dice.randrange(8, size))
    found = audit(spark, directory)
    # Neighbours that are damaged are one range.
    assert {p.kind for p in found.problems} == {"corrupt"}
    covered = [
        offset
        for offset, _ in known
        if any(p.offset <= offset < p.offset + p.bytes for p in found.problems)
    ]
    assert covered == [offset for offset, _ in planted]
    assert found.records == len(known) - len(planted)


def test_a_torn_tail_a_swap_and_a_hole(spark: SparkSession, directory: Path) -> None:
    def kinds(found: Audit) -> list[tuple[str, str]]:
        return sorted((p.kind, p.segment) for p in found.problems)

    log = directory / "commitlog"
    end = audit(spark, directory).max_offset
    last = log / f"{end - end % SEGMENT:020d}"
    torn = bytearray(last.read_bytes())
    torn[end % SEGMENT : end % SEGMENT + 40] = bytes(range(1, 41))
    last.write_bytes(torn)
    found = audit(spark, directory)
    assert kinds(found) == [("torn tail", last.name)]
    assert found.max_offset == end

    names = sorted(path.name for path in log.iterdir())
    (log / names[1]).rename(log / "x")
    (log / names[2]).rename(log / names[1])
    (log / "x").rename(log / names[2])
    found = audit(spark, directory)
    assert kinds(found) == sorted(
        [("misplaced", names[1]), ("misplaced", names[2]), ("torn tail", last.name)]
    )
    assert f"names offset {int(names[2])}" in str(found.problems)

    (log / names[1]).unlink()
    found = audit(spark, directory)
    assert ("missing", names[2]) in kinds(found)


def test_replicas_that_differ_name_the_first_record(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    other = tmp_path / "b"
    shutil.copytree(directory, other)
    end = audit(spark, directory).max_offset
    assert compare(spark, directory, other, end) is None
    known = records(directory)
    for offset, size in (known[-3], known[len(known) // 2]):
        flip(other, offset + size // 2)
    found = compare(spark, directory, other, end)
    assert found is not None
    offset, size = known[len(known) // 2]
    assert found.offset == offset
    assert found.record["bytes"] == size
    assert found.record["topic"].startswith("T")
    assert "problem" in found.other
    # What only one of them still has is no difference.
    sorted((other / "commitlog").iterdir())[0].unlink()
    assert compare(spark, directory, other, known[len(known) // 2][0]) is None


def test_paths_that_are_not_store_directories_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(BadJob, match="no such directory"):
        audit(spark, tmp_path / "none")
    with pytest.raises(BadJob, match="is not a store directory"):
        audit(spark, tmp_path)
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(BadJob, match="is empty"):
        audit(spark, tmp_path)
    (tmp_path / "commitlog" / "x").write_bytes(b"")
    with pytest.raises(BadJob, match="is not a segment"):
        audit(spark, tmp_path)


def test_a_directory_that_was_copied_while_it_was_written_has_no_problems(
    spark: SparkSession, tmp_path: Path
) -> None:
    def copied(store: MessageStore) -> None:
        shutil.copytree(tmp_path / "a", tmp_path / "b")

    fill(tmp_path / "a", more=copied)
    end = sum(records(tmp_path / "b")[-1])
    last = tmp_path / "b" / "commitlog" / f"{end - end % SEGMENT:020d}"
    half = bytearray(last.read_bytes())
    half[end % SEGMENT : end % SEGMENT + 4] = (200).to_bytes(4, "big")  # of a record being written
    last.write_bytes(half)
    found = audit(spark, tmp_path / "b")
    assert found.copied
    assert (found.problems, found.max_offset) == ([], end)
    flip(tmp_path / "b", records(tmp_path / "b")[7][0] + 60)
    (problem,) = audit(spark, tmp_path / "b").problems
    assert problem.kind == "corrupt"


def test_a_directory_that_a_node_holds_is_read_and_reported(
    spark: SparkSession, directory: Path
) -> None:
    code = (
        "import sys; from duolog_server.store.osdisk import OsDisk\n"
        f"disk = OsDisk({str(directory)!r}); disk.lock('lock'); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        found = audit(spark, directory)
        assert found.held
        assert found.problems == []
        assert holder.stdin is not None
        holder.stdin.close()
