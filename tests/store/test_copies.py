"""A directory that was copied while a process wrote to it: what its copy lacks is not lost."""

import shutil
from pathlib import Path

from duolog_server.store import dump
from duolog_server.store.copied import is_copied
from duolog_server.store.messagestore import MessageStore, StoreEvents
from duolog_server.store.osdisk import OsDisk
from tests.support import SMALL, open_store, put_ok


def copy(source: Path, target: Path, *, log_first: bool, between: MessageStore) -> Path:
    """Copy log and other files, the store being written between the two."""
    parts = [["commitlog"], sorted(p.name for p in source.iterdir() if p.name != "commitlog")]
    target.mkdir()
    for names in parts if log_first else reversed(parts):
        for name in names:
            if (source / name).is_dir():
                shutil.copytree(source / name, target / name)
            else:
                shutil.copy2(source / name, target / name)
        if names is (parts[0] if log_first else parts[1]):
            put_ok(between, [b"later"] * 12)
            between.note_confirmed()
    return target


def opened(path: Path) -> tuple[MessageStore, list[str], list[str]]:
    """A store, what it tells of problems, and of copies."""
    problems: list[str] = []
    copies: list[str] = []
    events = StoreEvents(problem=problems.append, copied=copies.append)
    store = MessageStore(OsDisk(path), SMALL, events)
    store.start()
    return store, problems, copies


def test_a_copy_whose_log_was_copied_before_its_queues_reports_no_loss(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_ok(store, [b"first"] * 20)
    end = store.max_offset
    made = copy(tmp_path / "a", tmp_path / "b", log_first=True, between=store)
    again, problems, copies = opened(made)
    assert problems == []
    assert len(copies) == 1
    assert f"its log ends at {end}" in copies[0]
    assert again.max_offset == end
    assert again.queues.table["T", 0].max_offset == 20
    put_ok(again, [b"after"])
    again.abandon()
    again, problems, copies = opened(made)  # from now on it is a directory of its own
    assert (problems, copies) == ([], [])


def test_the_directory_itself_reports_what_its_log_has_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_ok(store, [b"first"] * 20)
    end = store.max_offset
    put_ok(store, [b"later"] * 12)
    store.abandon()
    segment = tmp_path / "a" / "commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    segment.write_bytes(data[:end] + bytes(len(data) - end))
    (tmp_path / "a").rename(tmp_path / "moved")
    _, problems, copies = opened(tmp_path / "moved")
    assert [f"[{end}, " in text and "are lost on this node" in text for text in problems] == [True]
    assert copies == []


def test_the_check_takes_queues_that_are_behind_the_log_for_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_ok(store, [b"first"] * 20)
    made = copy(tmp_path / "a", tmp_path / "b", log_first=False, between=store)
    found = dump.check(OsDisk(made, read_only=True), SMALL)
    assert (found["problems"], found["records"]) == ([], 32)
    assert found["not_in_queues"] == 12
    assert found["copied"]
    store.shutdown()
    found = dump.check(OsDisk(tmp_path / "a", read_only=True), SMALL)
    assert (found["problems"], found["not_in_queues"], found["copied"]) == ([], 0, False)
    queue = tmp_path / "a" / "consumequeue" / "T" / "0" / f"{0:020d}"
    queue.write_bytes(queue.read_bytes()[: 20 * 30] + bytes(20 * 20))
    (problem,) = dump.check(OsDisk(tmp_path / "a", read_only=True), SMALL)["problems"]
    assert "entry 30 (and 1 more) differs from the log" in problem


def test_an_entry_that_is_missing_before_others_is_damage_in_a_copy_as_well(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_ok(store, [b"first"] * 20)
    made = copy(tmp_path / "a", tmp_path / "b", log_first=False, between=store)
    queue = made / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[100:120] = bytes(20)
    queue.write_bytes(data)
    (problem,) = dump.check(OsDisk(made, read_only=True), SMALL)["problems"]
    assert "entry 5 (and 0 more) differs from the log" in problem
    assert is_copied(OsDisk(made, read_only=True))
