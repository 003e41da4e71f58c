"""Every file of a store directory is damaged in every way; an independent reader is the judge.

The reader parses the log with `struct` alone. What it finds must be served; queue offsets that were
given are not given again; what is missing is told.
"""

import errno
import random
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duolog_server.store import dump, queuenote
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.osdisk import OsDisk, OsFile
from tests.known import known
from tests.support import (
    NOW,
    SMALL,
    Opened,
    crash,
    drain,
    flush_all,
    open_noisily,
    open_store,
    options,
    put_ok,
    queue_entries,
)

SEGMENT = SMALL.mapped_file_size_commit_log
LIGHT = "%LMQ%$T$one"
EXT = options(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=2000)
Place = tuple[str, int, int]


@dataclass
class Truth:
    """What the log's files hold, and what was given out before the damage."""

    bodies: dict[Place, bytes] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)


def read_log(directory: Path) -> Truth:
    """Parse every segment by itself: struct, and nothing of the store's own."""
    truth = Truth()
    for path in sorted((directory / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic != 0xDAA320A7 or size < 91 or at + size > len(data):
                break
            queue_id, _, queue_offset, phy = struct.unpack_from(">IIqq", data, at + 12)
            assert phy == int(path.name) + at
            (body_bytes,) = struct.unpack_from(">I", data, at + 84)
            body = data[at + 88 : at + 88 + body_bytes]
            topic_at = at + 88 + body_bytes
            topic_bytes = data[topic_at]
            topic = data[topic_at + 1 : topic_at + 1 + topic_bytes].decode()
            text = data[topic_at + 3 + topic_bytes : at + size].decode()
            properties = dict(
                pair.split("\x01") for pair in text.rstrip("\x02").split("\x02") if pair
            )
            truth.bodies[topic, queue_id, queue_offset] = body
            if "KEYS" in properties:
                truth.keys[properties["KEYS"]] = body
            if "INNER_MULTI_DISPATCH" in properties:
                place = int(properties["INNER_MULTI_QUEUE_OFFSET"])
                truth.bodies[properties["INNER_MULTI_DISPATCH"], 0, place] = body
            at += size
    return truth


def served(store: MessageStore) -> dict[Place, bytes]:
    """All that readers get."""
    found: dict[Place, bytes] = {}
    for queue in store.queues:
        offset, high = store.queue_range(queue.topic, queue.queue_id)
        while offset < high:
            result = store.get(queue.topic, queue.queue_id, offset)
            for numbers, body, _ in result.rows():
                found[queue.topic, queue.queue_id, numbers[0]] = body
            assert result.next_offset > offset
            offset = result.next_offset
    return found


def lost_on_reading(store: MessageStore) -> int:
    """How many messages readers of all queues are told to have missed."""
    lost = 0
    for queue in store.queues:
        offset, high = store.queue_range(queue.topic, queue.queue_id)
        while offset < high:
            result = store.get(queue.topic, queue.queue_id, offset)
            lost += result.lost
            offset = result.next_offset
    return lost


def build(path: Path, clean: bool) -> None:
    """Eight segments, queues of some files, one of old records only, light queues, an index."""
    store = open_store(path, EXT)
    put_ok(store, [b"old %d" % n for n in range(9)], "Old", 0)
    late = 0
    for n in range(640):
        how = {"light_queues": (LIGHT,)} if n % 5 == 0 else {}
        put_ok(
            store, [b"%06d" % n + b"." * 40], "T", n % 3,
            properties=[b"KEYS\x01k%d\x02TAGS\x01A" % n],
            now=NOW + 1000 * n, producer=b"0123456789", sequence=n, **how,
        )  # fmt: skip
        if n == 300:
            flush_all(store)
            late = len(store.log.queue.files)
    assert len(store.log.queue.files) >= late + 3
    assert len(store.index.files) >= 4
    if clean:
        store.shutdown()
    else:
        flush_all(store)
        put_ok(store, [b"after the flush"], "T", 1, now=NOW + 700_000)
        crash(store)


@pytest.fixture(scope="module", params=["clean", "killed"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "store"
    build(path, request.param == "clean")
    return path


def files_of(directory: Path, *parts: str) -> list[Path]:
    found = [path for part in parts for path in (directory / part).rglob("*") if path.is_file()]
    return sorted(path.relative_to(directory) for path in found)


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero_first_half(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(bytes(size // 2) + path.read_bytes()[size // 2 :])


def garble(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(path.stat().st_size))


WAYS = [delete, empty, zero, halve, zero_first_half, garble]


def check(opened: Opened, truth: Truth, before: dict[tuple[str, int], int]) -> None:
    """All that the log holds is served and found by key; no queue offset is given again."""
    store = opened.store
    found = served(store)
    assert {place: body for place, body in found.items() if place in truth.bodies} == truth.bodies
    assert found.keys() <= truth.bodies.keys()
    for key, body in list(truth.keys.items())[::9]:
        assert [record.body for record in store.lookups.by_key("T", key)] == [body]
    for (topic, queue_id), end in before.items():
        if not topic.startswith("%"):
            assert put_ok(store, [b"next"], topic, queue_id).queue_offset >= end
    crash(store)


def ends_of(directory: Path) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for topic, queue_id, offset in read_log(directory).bodies:
        ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), offset + 1)
    return ends


@pytest.mark.parametrize("way", WAYS)
def test_any_damage_of_one_derived_file_hides_nothing(
    sound: Path, tmp_path: Path, way: object
) -> None:
    truth, before = read_log(sound), ends_of(sound)
    names = files_of(sound, "consumequeue", "consumequeue_ext", "lightqueue", "index")
    names += [Path("queueends"), Path("checkpoint")]
    assert len(names) > 20
    for name in names:
        copy = tmp_path / "copy"
        shutil.copytree(sound, copy)
        way(copy / name)  # type: ignore[operator]
        check(open_noisily(copy, EXT), truth, before)
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "lost",
    [
        ["consumequeue/Old/0"], ["consumequeue/Old"], ["consumequeue/T"], ["consumequeue"],
        ["consumequeue_ext"], ["lightqueue"], ["index"], ["consumequeue", "queueends"],
        ["consumequeue/Old", "queueends"], ["consumequeue/Old", "queueends", "checkpoint"],
        ["consumequeue/T/1", "index", "checkpoint"],
    ],
)  # fmt: skip
def test_missing_directories_are_recreated(sound: Path, tmp_path: Path, lost: list[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    for name in lost:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    check(open_noisily(copy, EXT), read_log(sound), ends_of(sound))


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("way", [delete, empty, zero, zero_first_half])
def test_a_damaged_segment_loses_only_its_own_messages(
    sound: Path, tmp_path: Path, place: int, way: object
) -> None:
    before = ends_of(sound)
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    names = files_of(copy, "commitlog")
    last = place >= len(names) - 1
    name = names[min(place, len(names) - 1)]
    way(copy / name)  # type: ignore[operator]
    truth = read_log(copy)
    kept = files_of(copy, "commitlog")
    opened = open_noisily(copy, EXT)
    store = opened.store
    assert truth.bodies.items() <= served(store).items()
    lost = lost_on_reading(store)
    if not last:
        assert set(kept) - {name} <= set(files_of(copy, "commitlog"))
        for (topic, queue_id), end in before.items():
            if not topic.startswith("%"):
                assert put_ok(store, [b"next"], topic, queue_id).queue_offset >= end
    if last or (place and way in (delete, empty)):
        assert opened.problems, "it is told"
    assert opened.problems or lost or (not place and way in (delete, empty))


@pytest.mark.parametrize("lost", [(1,), (3, 4), (1, 3, 5), (2, 3, 4, 5)])
def test_missing_segments_are_named_skipped_and_reported_by_check(
    sound: Path, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    for place in lost:
        (copy / files_of(sound, "commitlog")[place]).unlink()
    truth = read_log(copy)
    runs = [place for place in lost if place - 1 not in lost]
    for _ in range(3):
        opened = open_noisily(copy, EXT)
        for start in runs:
            assert any(f"[{start * SEGMENT}, " in text for text in opened.problems)
        assert [found.start // SEGMENT for found in opened.store.log.corrupt_ranges] == runs
        assert truth.bodies.items() <= served(opened.store).items()
        crash(opened.store)
    problems = dump.check(OsDisk(copy, read_only=True), EXT)["problems"]
    assert sum("is missing" in text for text in problems) == len(runs)
    assert not [text for text in problems if "differs" in text]


def test_readers_are_told_how_many_messages_a_hole_cost(tmp_path: Path) -> None:
    build(tmp_path, clean=True)
    whole = read_log(tmp_path)
    (tmp_path / "commitlog" / f"{SEGMENT:020d}").unlink()
    left = read_log(tmp_path)
    store = open_noisily(tmp_path, EXT).store
    low, high = store.queue_range("T", 0)
    offset, lost = low, 0
    while offset < high:
        result = store.get("T", 0, offset)
        lost += result.lost
        offset = result.next_offset
    gone = [place for place in whole.bodies if place not in left.bodies and place[:2] == ("T", 0)]
    assert lost == len(gone) > 0
    found = store.offset_at_time("T", 0, NOW + 1000 * 150)
    first = min(place[2] for place in left.bodies if place[:2] == ("T", 0) and place[2] >= 50)
    assert found == first


def test_the_newest_segment_may_be_missing_before_one_that_was_allocated_ahead(
    store: MessageStore, tmp_path: Path
) -> None:
    """It held records: the log continues after the hole, and their queue offsets stay in use."""
    total = 0
    while len(store.log.queue.files) < 4:
        put_ok(store, [b"x" * 300], "T", 0, now=NOW + total)
        total += 1
    end = store.log.queue.files[-1].end
    crash(store)
    (tmp_path / "commitlog" / f"{end - SEGMENT:020d}").unlink()
    (tmp_path / "commitlog" / f"{end:020d}").write_bytes(bytes(SEGMENT))
    for turn in range(2):
        opened = open_noisily(tmp_path)
        assert any("is missing" in text for text in opened.problems)
        result = put_ok(opened.store, [b"next"], "T", 0, now=NOW + total)
        assert result.queue_offset == total + turn
        assert result.physical_offset >= end
        crash(opened.store)


@pytest.mark.parametrize("clean", [True, False])
def test_an_old_copy_of_one_queue_file_is_detected(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"%d" % n for n in range(20)], "Old", 0)
    flush_all(store)
    name = tmp_path / "consumequeue" / "Old" / "0" / f"{0:020d}"
    copy = name.read_bytes()
    put_ok(store, [b"%d" % n for n in range(20, 40)], "Old", 0)
    for n in range(60):
        put_ok(store, [b"x" * 1000], "T", 0, now=NOW + 1000 * n)
    assert len(store.log.queue.files) > 4
    if clean:
        store.shutdown()
    else:
        flush_all(store)
        crash(store)
    name.write_bytes(copy)
    opened = open_noisily(tmp_path)
    assert opened.store.queue_range("Old", 0) == (0, 40)
    assert any("Old/0 is rebuilt" in text for text in opened.problems)
    assert put_ok(opened.store, [b"next"], "Old", 0).queue_offset == 40


def test_only_the_queue_in_doubt_is_rebuilt(tmp_path: Path) -> None:
    build(tmp_path, clean=True)
    shutil.rmtree(tmp_path / "consumequeue" / "Old")
    kept = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    inode = kept.stat().st_ino
    opened = open_noisily(tmp_path, EXT)
    assert [text for text in opened.problems if "rebuilt" in text] == opened.problems
    assert len(opened.problems) == 1
    assert kept.stat().st_ino == inode


def test_a_queue_whose_records_retention_took_keeps_its_offsets(tmp_path: Path) -> None:
    """Neither log nor files contain them any more; the note of the queues' ends does."""
    build(tmp_path, clean=True)
    for name in files_of(tmp_path, "commitlog")[:2]:
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "consumequeue" / "Old")
    opened = open_noisily(tmp_path, EXT)
    assert opened.store.queue_range("Old", 0) == (9, 9)
    assert put_ok(opened.store, [b"next"], "Old", 0).queue_offset == 9
    crash(opened.store)
    opened = open_noisily(tmp_path, EXT)
    assert opened.store.queue_range("Old", 0) == (9, 10)


def test_a_queue_that_was_removed_is_not_missed_after_a_kill(tmp_path: Path) -> None:
    build(tmp_path, clean=True)
    store = open_store(tmp_path, EXT)
    store.queues.remove_topic("Old")
    crash(store)
    opened = open_noisily(tmp_path, EXT)
    assert opened.problems == []
    assert opened.store.queues.get("Old", 0) is None


def test_a_removed_queue_stays_removed_where_the_note_has_no_room_for_it(tmp_path: Path) -> None:
    """However little room is left in the file, even if only the head of a block fits."""
    build(tmp_path, clean=True)
    store = open_store(tmp_path, EXT)
    ends, key = store.queues.ends, ("Old", 0)
    assert ends._file is not None
    ends._end = ends._file.size - queuenote._HEAD.size
    store.queues.remove_topic("Old")
    noted = known(queuenote.parse((tmp_path / "queueends").read_bytes()))
    assert key not in noted[0].queues
    crash(store)
    opened = open_noisily(tmp_path, EXT)
    assert opened.problems == []
    assert opened.store.queues.get(*key) is None


@pytest.mark.parametrize("clean", [True, False])
def test_a_note_that_cannot_be_opened_costs_no_queue_its_files(
    tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is treated as damaged: all queues are compared with the log, and none is removed."""
    build(tmp_path, clean=True)
    for name in files_of(tmp_path, "commitlog")[:2]:
        (tmp_path / name).unlink()
    if not clean:
        crash(open_store(tmp_path, EXT))
    open_file = OsDisk.open

    def fails(disk: OsDisk, path: str, writable: bool) -> OsFile:
        if path == queuenote.PATH:
            monkeypatch.undo()
            raise OSError(errno.EMFILE, "too many open files", path)
        return open_file(disk, path, writable)

    monkeypatch.setattr(OsDisk, "open", fails)
    opened = open_noisily(tmp_path, EXT)
    assert [text for text in opened.problems if "rebuilt" in text] == []
    assert put_ok(opened.store, [b"next"], "Old", 0).queue_offset == 9


def test_a_noted_queue_without_entries_is_not_missed(store: MessageStore, tmp_path: Path) -> None:
    """Its entries were truncated: no record below the note's position is dispatched to it again."""
    put_ok(store, [b"m"], "T", 0)
    put_ok(store, [b"gone"], "Old", 0)
    store.queues.remove_topic("Old")
    end = store.log.max_offset
    put_ok(store, [b"cut"], "Cut", 0)
    store.truncate(end)
    store.shutdown()
    noted = known(queuenote.parse((tmp_path / "queueends").read_bytes()))
    assert noted[0].queues["Cut", 0].end == 0
    opened = open_noisily(tmp_path)
    assert opened.problems == []
    assert opened.store.queues.table.keys() == {("T", 0)}


def test_a_note_from_before_a_cut_hides_no_record_that_spans_its_position(tmp_path: Path) -> None:
    wide = options(mapped_file_size_commit_log=1 << 16)
    store = open_store(tmp_path, wide)
    put_ok(store, [b"x"] * 10)
    end = store.log.max_offset
    put_ok(store, [b"x"] * 20)
    store.shutdown()
    note = (tmp_path / "queueends").read_bytes()
    store = open_store(tmp_path, wide)
    store.truncate(end)
    put_ok(store, [b"longer body than before"] * 20)
    store.shutdown()
    (tmp_path / "queueends").write_bytes(note)
    for _ in range(2):
        store = open_store(tmp_path, wide)
        assert store.log.corrupt_ranges == []
        assert all(store.record_at("T", 0, QueueOffset(offset)) for offset in range(30))
        crash(store)


def test_a_log_that_ends_before_its_queues_is_reported(tmp_path: Path) -> None:
    build(tmp_path, clean=True)
    last = files_of(tmp_path, "commitlog")[-1]
    (tmp_path / last).write_bytes(b"")
    opened = open_noisily(tmp_path, EXT)
    end = int(last.name)
    assert opened.store.log.max_offset == end
    assert any(f"the commit log ends at {end}, but" in text for text in opened.problems)


def test_damage_below_the_scanned_range_is_reported_when_it_is_read(tmp_path: Path) -> None:
    build(tmp_path, clean=True)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[8000:8300] = bytes(300)
    path.write_bytes(bytes(data))
    opened = open_noisily(tmp_path, EXT)
    assert opened.problems == []  # recovery reads the last segments only
    store = opened.store
    assert lost_on_reading(store) >= 1
    assert any("no valid record" in text for text in dump.check(OsDisk(tmp_path), EXT)["problems"])


def test_a_full_disk_keeps_the_older_note_and_loses_nothing(tmp_path: Path) -> None:
    from tests.support import FaultDisk

    disk = FaultDisk(tmp_path, number=28)
    store = open_store(disk)
    put_ok(store, [b"a"], "T", 0)
    drain(store)
    position = store.queues.ends.position
    store.queues.ends._end = 1 << 20  # the file is full: it has to be made anew
    job = known(store.queues_flush_job(0))
    job.then, then = None, job.then
    job.run()
    assert then is not None
    disk.fail_at = disk.calls + 2
    then()
    assert disk.failed == ["create queueends.tmp"]
    store.queues_flushed(job, True)
    assert store.queues.ends.position == position
    assert ("T", 0) in store.queues.changed, "it is in the next note"
    crash(store)
    assert [entry[1] != BLANK for entry in queue_entries(open_store(tmp_path))] == [True]


def grown(path: Path) -> list[bytes]:
    """A directory whose queue T/0 has several files; the note and first file of its beginning."""
    store = open_store(path)
    put_ok(store, [b"first"], "T", 0)
    flush_all(store)
    old = [(path / name).read_bytes() for name in ("queueends", f"consumequeue/T/0/{0:020d}")]
    for n in range(120):
        put_ok(store, [b"%d" % n + b"." * 900], "T", 0, now=NOW + 60_000 * n)
    flush_all(store)
    crash(store)
    assert len(files_of(path, "commitlog")) > 5
    return old


def test_a_note_of_a_segment_that_is_gone_vouches_for_nothing_after_it(tmp_path: Path) -> None:
    """The segments that are dispatched again because of the checkpoint have no record of T/0."""
    old_note, _ = grown(tmp_path)
    store = open_store(tmp_path)
    for n in range(60):
        put_ok(store, [b"." * 900], "U", 0, now=NOW + 60_000 * (120 + n))
    flush_all(store)
    crash(store)
    (tmp_path / files_of(tmp_path, "commitlog")[0]).unlink()
    (tmp_path / "queueends").write_bytes(old_note)
    (tmp_path / "consumequeue" / "T" / "0" / f"{2000:020d}").unlink()
    truth = read_log(tmp_path)
    opened = open_noisily(tmp_path)
    assert truth.bodies.items() <= served(opened.store).items()
    assert put_ok(opened.store, [b"next"], "T", 0).queue_offset == 121


def test_an_old_queue_file_without_a_note_is_rebuilt_from_a_whole_dispatch(tmp_path: Path) -> None:
    _, old_file = grown(tmp_path)
    open_store(tmp_path).shutdown()
    for name in files_of(tmp_path, "commitlog")[:-2]:
        (tmp_path / name).unlink()
    (tmp_path / "queueends").unlink()
    for name in files_of(tmp_path, "consumequeue/T/0")[1:]:
        (tmp_path / name).unlink()
    (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(old_file)
    truth = read_log(tmp_path)
    assert len(truth.bodies) > 10
    opened = open_noisily(tmp_path)
    assert truth.bodies.items() <= served(opened.store).items()
    assert any("T/0 is rebuilt" in text for text in opened.problems)
    assert put_ok(opened.store, [b"next"], "T", 0).queue_offset == 121
    crash(opened.store)
    assert open_noisily(tmp_path).problems == []


def test_a_queue_that_lacks_entries_costs_no_other_queue_its_offsets(tmp_path: Path) -> None:
    """Retention deleted all records of the other one: only its own file shows its end."""
    store = open_store(tmp_path, EXT)
    put_ok(store, [b"gone"] * 9, "Old", 0)
    flush_all(store)
    old_note = (tmp_path / "queueends").read_bytes()
    for n in range(120):
        put_ok(store, [b"%d" % n + b"." * 900], "T", 0, now=NOW + 60_000 * n)
    flush_all(store)
    crash(store)
    (tmp_path / files_of(tmp_path, "commitlog")[0]).unlink()
    (tmp_path / "queueends").write_bytes(old_note)
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    truth = read_log(tmp_path)
    opened = open_noisily(tmp_path, EXT)
    assert truth.bodies.items() <= served(opened.store).items()
    assert put_ok(opened.store, [b"next"], "T", 0).queue_offset == 120
    assert put_ok(opened.store, [b"next"], "Old", 0).queue_offset == 9


def test_keys_of_messages_stored_while_the_index_was_off_are_found_later(tmp_path: Path) -> None:
    off = options(message_index_enable=False)
    for chosen, key in ((SMALL, b"KEYS\x01a"), (off, b"KEYS\x01b"), (SMALL, b"KEYS\x01c")):
        store = open_store(tmp_path, chosen)
        put_ok(store, [key], "T", 0, properties=[key])
        store.shutdown()
    store = open_store(tmp_path)
    found = [len(store.lookups.by_key("T", key)) for key in "abc"]
    crash(store)
    assert found == [1, 1, 1]


def test_lost_ext_units_are_detected_at_once_without_a_note(sound: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    (copy / "queueends").unlink()
    shutil.rmtree(copy / "consumequeue_ext")
    opened = open_noisily(copy, EXT)
    assert any("extension unit" in text for text in opened.problems)
    crash(opened.store)
    opened = open_noisily(copy, EXT)
    assert opened.problems == []


def test_a_start_that_fails_at_the_note_releases_the_directory(tmp_path: Path) -> None:
    from tests.support import FaultDisk

    build(tmp_path, clean=False)
    (tmp_path / "queueends").unlink()
    disk = FaultDisk(tmp_path)
    strike = disk.strike

    def fail(what: str) -> None:
        if what.startswith("create queueends"):
            disk.fail_at = disk.calls + 1
        strike(what)

    disk.strike = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="injected"):
        MessageStore(disk, EXT).start()
    assert disk._lock < 0
    opened = open_noisily(tmp_path, EXT)
    assert truth_is_served(opened.store, tmp_path)


def truth_is_served(store: MessageStore, directory: Path) -> bool:
    return read_log(directory).bodies.items() <= served(store).items()


def test_a_queue_that_began_after_the_note_is_rebuilt_silently(tmp_path: Path) -> None:
    """A kill may lose its directory: the stretch that is dispatched again has all its records."""
    grown(tmp_path)
    store = open_store(tmp_path)
    flush_all(store)
    put_ok(store, [b"first"], "New", 0, now=NOW + 60_000 * 121)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue" / "New")
    opened = open_noisily(tmp_path)
    assert opened.problems == []
    assert opened.store.queue_range("New", 0) == (0, 1)


def test_keys_before_the_end_of_a_log_that_was_cut_are_found(tmp_path: Path) -> None:
    """The index reached further: the keys it loses by truncation are indexed from the log again."""
    store = open_store(tmp_path)
    for n in range(120):
        put_ok(
            store, [b"%d" % n + b"." * 900], "T", 0,
            properties=[b"KEYS\x01k%d" % n], now=NOW + 60_000 * n,
        )  # fmt: skip
    flush_all(store)
    crash(store)
    zero(tmp_path / files_of(tmp_path, "commitlog")[-1])
    truth = read_log(tmp_path)
    store = open_noisily(tmp_path).store
    assert 90 < len(truth.keys) < 120
    for key, body in truth.keys.items():
        assert [record.body for record in store.lookups.by_key("T", key)] == [body]


def test_queue_files_that_retention_removed_since_the_note_are_not_missed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(260):
        put_ok(store, [b"." * 200], "T", 0, now=NOW + n)
    flush_all(store)
    while len(store.log.queue.files) > 1:
        store.log.queue.remove(store.log.queue.files[0])
    store.log.queue.disk_sync_names()
    assert store.queues.delete_before(store.log.min_offset) > 1
    crash(store)
    opened = open_noisily(tmp_path)
    assert opened.problems == []
    assert opened.store.queue_range("T", 0)[1] == 260


def test_the_only_file_with_entries_may_be_missing_before_an_empty_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"x"] * 50, "T", 0)
    store.queues.table["T", 0].files.roll()
    flush_all(store)
    crash(store)
    (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    truth = read_log(tmp_path)
    opened = open_noisily(tmp_path)
    assert truth.bodies.items() <= served(opened.store).items()
    assert put_ok(opened.store, [b"next"], "T", 0).queue_offset == 50
