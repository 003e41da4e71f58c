"""Directories whose files have holes (`cp --sparse`, `rsync -S`, RocketMQ's own), on a full disk.

A store into a hole of a full disk ends the process (SIGBUS). The simulated disk reports every byte
that was stored where a file has no blocks.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.options import StoreOptions
from duolog_server.store.status import BrokerRole, PutMessageStatus
from sim.disk import SimDisk
from tests.support import (
    NOW,
    crash,
    drain,
    flush_all,
    flush_log,
    open_store,
    options,
    put_ok,
    read_all,
)

WIDE = options(
    mapped_file_size_commit_log=64 << 10,
    mapped_file_size_consume_queue=20 * 1000,
    max_hash_slot_num=2000,
    max_index_num=4000,
    enable_consume_queue_ext=True,
    mapped_file_size_consume_queue_ext=16 << 10,
)
KEY = b"KEYS\x01key"


def opened(disk: SimDisk, chosen: StoreOptions = WIDE) -> MessageStore:
    return open_store(disk, chosen)


def stored(disk: SimDisk, count: int, chosen: StoreOptions = WIDE) -> MessageStore:
    """A store with so many messages in two queues, each with a key."""
    disk.mapped_max = 100
    store = opened(disk, chosen)
    for n in range(count):
        put_ok(store, [b"%d" % n * 100], "T", n % 2, properties=[KEY])
    flush_all(store)
    return store


def batch_of(size: int) -> PutBatch:
    return PutBatch("T", 0, Columns.of([b"." * size], [KEY]), NOW)


@pytest.mark.parametrize("cleanly", [True, False])
def test_nothing_is_stored_into_holes_of_a_full_disk(cleanly: bool) -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    store = stored(disk, 20)
    store.shutdown() if cleanly else crash(store)
    disk.hollow()
    disk.full = True
    store = opened(disk)
    assert len(read_all(store)) == len(read_all(store, "T", 1)) == 10
    statuses = {store.put(batch_of(1000), NOW).status for _ in range(8)}
    statuses |= {store.put(batch_of(4000), NOW).status for _ in range(2)}
    assert statuses - {PutMessageStatus.PUT_OK}
    drain(store)
    flush_all(store)
    before = len(read_all(store))
    crash(store)
    disk.hollow()
    disk.full = False
    store = opened(disk)
    assert len(read_all(store)) >= before
    for _ in range(70):  # into a segment that never had holes
        put_ok(store, [b"." * 1000], properties=[KEY])
    flush_all(store)


def test_a_slave_stores_nothing_into_holes_of_a_full_disk() -> None:
    disk, other = (SimDisk(random.Random(1), lambda: 0.0) for _ in range(2))
    store = stored(disk, 60)
    data = store.log.get_data(PhyOffset(0)).copy()
    slave = options(**{**vars_of(WIDE), "broker_role": BrokerRole.SLAVE})
    other.mapped_max = 100
    copy = opened(other, slave)
    half = next(int(p) for p in range(len(data) // 2, len(data)) if store.log.is_boundary(p))
    copy.append_replica(PhyOffset(0), data[:half], NOW)
    drain(copy)
    copy.shutdown()
    other.hollow()
    other.full = True
    copy = opened(other, slave)
    with pytest.raises(OSError, match="full disk"):
        copy.append_replica(PhyOffset(half), data[half:], NOW)
    assert copy.max_offset == half
    flush_log(copy)
    other.full = False
    copy.append_replica(PhyOffset(half), data[half:], NOW)
    flush_log(copy)
    assert copy.max_offset == len(data)


def vars_of(chosen: StoreOptions) -> dict[str, object]:
    return {name: getattr(chosen, name) for name in chosen.__dataclass_fields__}


def test_a_cut_that_lowers_the_end_asks_for_room_again() -> None:
    """Before the page that a process wrote first there may be holes as well."""
    disk = SimDisk(random.Random(1), lambda: 0.0)
    crash(stored(disk, 100))
    disk.hollow()
    store = opened(disk)
    put_ok(store, [b"new"])
    cut = next(PhyOffset(p) for p in range(9000, 20000) if store.log.is_boundary(p))
    store.truncate(cut)
    last = store.log.queue.files[-1]
    assert last.allocated is not None
    assert last.allocated <= cut
    put_ok(store, [b"another"])
    flush_all(store)


def test_a_new_store_takes_little_of_the_disk_and_grows(tmp_path: Path) -> None:
    """Of its first segment and index; RocketMQ's sizes are for stores that are filled."""
    store = open_store(tmp_path, StoreOptions())
    for n in range(3):
        put_ok(store, [b"." * 100], "T", n, properties=[KEY])
    flush_all(store)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) > 1 << 30
    assert sum(512 * path.stat().st_blocks for path in files) < 64 << 20
    store.shutdown()


@pytest.mark.parametrize("is_full", [False, True])
def test_the_first_segment_and_the_index_get_blocks_before_they_are_written(
    monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    small, whole = SimDisk(random.Random(1), lambda: 0.0), SimDisk(random.Random(1), lambda: 0.0)
    expected = stored(whole, 600)
    drain(expected)
    monkeypatch.setattr("duolog_server.store.mappedfilequeue.FIRST_BYTES", 4096)
    monkeypatch.setattr("duolog_server.store.mappedfile.CHUNK", 4096)
    monkeypatch.setattr("duolog_server.store.indexservice.ROOM_ENTRIES", 7)
    store = stored(small, 300)
    small.full = is_full
    for n in range(300, 600):
        body = [b"%d" % n * 100]
        batch = PutBatch("T", n % 2, Columns.of(body, [KEY]), NOW)
        if store.put(batch, NOW).status != PutMessageStatus.PUT_OK:
            small.full = False  # it was refused, and nothing was written into a hole
            put_ok(store, body, "T", n % 2, properties=[KEY])
            small.full = is_full
    small.full = False
    drain(store)
    flush_all(store)
    for one, other in zip(store.index.files, expected.index.files, strict=True):
        assert one.file.memory.tobytes() == other.file.memory.tobytes()
    assert read_all(store) == read_all(expected)
    store.shutdown()  # every file is synced


SCRIPT = """
import sys, time
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.columns import Columns
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from tests.support import drain, flush_all, read_all
from tests.store.test_sparse import REAL, NOW, KEY
from pathlib import Path
root, filler = Path(sys.argv[1]), Path(sys.argv[2])
store = MessageStore(OsDisk(root), REAL)
store.start()
def batch(size):
    return PutBatch("T", 0, Columns.of([b"." * size], [KEY]), NOW)
refused = set()
for size in (5, 500, 5000, 50000) * 60:
    result = store.put(batch(size), NOW)
    refused.add(result.status.name)
drain(store)
flush_all(store)
print(sorted(refused), len(read_all(store)) >= 30)
filler.unlink()
store.retention.check_space()
drain(store)
for size in (5, 500, 5000, 50000) * 20:
    assert store.put(batch(size), NOW).status.name == "PUT_OK"
    drain(store)
flush_all(store)
print("room", len(read_all(store)) >= 110)
store.shutdown()
"""
REAL = options(
    mapped_file_size_commit_log=4 << 20,
    mapped_file_size_consume_queue=20 * 30_000,
    max_hash_slot_num=5000,
    max_index_num=20_000,
    max_message_size=1 << 20,
    disk_space_warning_level_ratio=1000,
)


@pytest.fixture(params=["ext4 1024", "ext4 4096", "tmpfs"])
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 16 MiB."""
    kind, _, block = request.param.partition(" ")
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)]
    if kind == "ext4":
        image = tmp_path / "image"
        image.write_bytes(b"")
        with image.open("r+b") as file:
            file.truncate(16 << 20)
        made = ["mkfs.ext4", "-q", "-b", block, "-m", "0", str(image)]
        mount = ["mount", "-o", "loop", str(image), str(path)]
        if subprocess.run(made, capture_output=True, check=False).returncode:
            pytest.skip("cannot make an ext4 file system")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip(f"cannot mount a {kind}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.process
@pytest.mark.privileged
@pytest.mark.parametrize("cleanly", [True, False])
def test_a_process_survives_holes_on_full_disks(small: Path, tmp_path: Path, cleanly: bool) -> None:

    store = open_store(tmp_path / "whole", REAL)
    for n in range(30):
        put_ok(store, [b"%d" % n], properties=[KEY])
    flush_all(store)
    store.shutdown() if cleanly else crash(store)
    copy = ["cp", "-r", "--sparse=always", str(tmp_path / "whole"), str(small / "data")]
    subprocess.run(copy, check=True)
    filler = small / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1024):
            try:
                while True:
                    file.write(b"." * size)
            except OSError:
                pass
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(small / "data"), str(filler)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    told = done.stdout.splitlines()
    assert "CREATE_MAPEDFILE_FAILED" in told[0] or "SERVICE_NOT_AVAILABLE" in told[0]
    assert told[0].endswith("True")
    assert told[1] == "room True"
