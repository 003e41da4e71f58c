"""Entries on their way: none waits for another, none is lost in silence."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog._background import Background
from structlog.testing import capture_logs

from duolog_server.node.audit import auditlog as module
from duolog_server.node.audit.auditfile import AuditFile
from duolog_server.node.audit.auditlog import WAITING_MAX, AuditLog, Batch, Outlet
from duolog_server.node.audit.entry import SPAN_MS, Decision, Entry
from duolog_server.node.core.core import Core
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.runtime.config import AuditSection
from tests.until import until

LOST = "audit entries are lost: too many wait to be written"
NOT_TAKEN = "audit entries are lost: the disk of the file did not take them before the stop"


def entry(number: int) -> Entry:
    return Entry(0, "alice", "", "Admin/CreateTopic", f"Topic:{number}", Decision.ALLOWED)


class Place:
    """Where entries go."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.works = True
        self.tries = 0

    async def write(self, batch: Batch) -> None:
        self.tries += 1
        if self.works:
            self.lines += batch.lines
            batch.done = len(batch.lines)

    @property
    def resources(self) -> list[str]:
        return [json.loads(line)["resource"] for line in self.lines]


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
async def outlet(place: Place, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outlet]:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    made = Outlet("file", "n", place.write)
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_entries_are_written_in_their_order(place: Place, outlet: Outlet) -> None:
    for number in range(5):
        outlet.put(entry(number))
    await turns()
    outlet.put(entry(5))
    await turns()
    assert place.resources == [f"Topic:{number}" for number in range(6)]
    assert (len(outlet), outlet.written, outlet.lost) == (0, 6, 0)


async def test_what_does_not_work_is_tried_again_and_written_once(
    place: Place, outlet: Outlet
) -> None:
    place.works = False
    outlet.put(entry(1))
    await turns()
    assert place.tries > 1
    assert not place.lines
    place.works = True
    await turns()
    assert place.resources == ["Topic:1"]


async def test_what_finds_no_room_is_counted_and_told_in_its_place(
    place: Place, outlet: Outlet
) -> None:
    place.works = False
    for number in range(WAITING_MAX + 7):
        outlet.put(entry(number))
    assert outlet.lost == 7
    place.works = True
    await turns()
    assert json.loads(place.lines[-1])["decision"] == "lost", "also where none comes after it"
    outlet.put(entry(-1))
    await turns()
    assert len(place.lines) == WAITING_MAX + 2
    told, last = map(json.loads, place.lines[-2:])
    assert (told["decision"], told["times"]) == ("lost", 7)
    assert last["resource"] == "Topic:-1"
    assert outlet.lost == 7


async def test_many_lost_entries_are_few_lines_of_the_nodes_log(
    place: Place, outlet: Outlet
) -> None:
    with capture_logs() as logged:
        for _ in range(3):
            place.works = False
            for number in range(WAITING_MAX + 1000):
                outlet.put(entry(number))
            place.works = True
            await until(lambda: not len(outlet))
    assert [one["event"] for one in logged].count(LOST) == 3
    counts = [row.get("times", 1) for row in map(json.loads, place.lines)]
    assert sum(counts) == outlet.lost + outlet.written - 3 == 3 * (WAITING_MAX + 1000)


async def test_one_batch_is_bounded(place: Place) -> None:
    sizes: list[int] = []

    async def write(batch: Batch) -> None:
        sizes.append(sum(map(len, batch.lines)))
        await place.write(batch)

    outlet = Outlet("file", "n", write)
    for number in range(WAITING_MAX):
        outlet.put(entry(number))
    await outlet.drain()
    assert place.resources == [f"Topic:{number}" for number in range(WAITING_MAX)]
    assert max(sizes) <= module.AT_ONCE_BYTES
    assert len(sizes) > 1


async def test_a_batch_that_was_written_while_its_task_was_cancelled_is_not_written_again(
    place: Place,
) -> None:
    async def write(batch: Batch) -> None:
        await place.write(batch)
        raise asyncio.CancelledError

    outlet = Outlet("file", "n", write)
    outlet.put(entry(1))
    with pytest.raises(asyncio.CancelledError):
        await outlet.run()
    await outlet.drain()
    assert place.resources == ["Topic:1"]


async def test_lines_are_not_written_again_and_given_up_at_the_end(place: Place) -> None:
    async def write(batch: Batch) -> None:
        place.lines.append(batch.lines[0])
        batch.done = 1

    outlet = Outlet("file", "n", write)
    for number in range(3):
        outlet.put(entry(number))
    for _ in range(3):
        await outlet.drain()
    assert place.resources == ["Topic:0", "Topic:1", "Topic:2"]
    outlet = Outlet("file", "n", place.write)
    outlet.put(entry(1))
    place.works = False
    await outlet.drain()
    assert place.tries == 1


async def test_nothing_is_stored_in_the_topic_while_the_node_may_be_behind() -> None:
    """Its predecessor may have stored the topic already, and batches that are not known here."""
    may_store = False
    refused: Any = SimpleNamespace(check_master=lambda: None, may_store=lambda: may_store)
    audit = AuditLog(AuditSection(topic=True), "n", cast(Core, SimpleNamespace(admission=refused)))
    batch = Batch([b"{}"], ["denied"])
    await audit._to_topic(batch)
    assert (batch.done, batch.dropped) == (0, False)
    may_store = True
    with pytest.raises(AttributeError, match="metadata"):  # it goes on
        await audit._to_topic(batch)


async def test_repeated_denials_are_written_while_the_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.0)
    now = 0
    core: Any = SimpleNamespace(times=SimpleNamespace(mono_ms=lambda: now, wall_ms=lambda: 0))
    path = tmp_path / "audit.log"
    audit = AuditLog(AuditSection(file=path), "n", cast(Core, core))
    running = asyncio.ensure_future(audit.run())
    for _ in range(3):
        audit.denied(Who("alice", ""), "Messages/Pull", "Topic:T", Exception("no entry"))
    await until(lambda: audit.outlets["file"].written == 1)
    now = SPAN_MS
    await until(lambda: audit.outlets["file"].written == 2)
    running.cancel()
    await audit.close()
    assert [json.loads(line).get("times") for line in path.read_text().splitlines()] == [None, 2]


class HungDisk:
    """A file whose writes do not end before the test does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hangs = True
        self.begun = self.ended = 0
        self._answers = threading.Event()
        write = AuditFile.write

        def hanging(file: AuditFile, lines: Sequence[bytes]) -> int:
            self.begun += 1
            if self.hangs:
                self._answers.wait()
            written = write(file, lines)
            self.ended += 1
            return written

        monkeypatch.setattr(AuditFile, "write", hanging)

    async def answer(self) -> None:
        self._answers.set()
        await until(lambda: self.ended == self.begun)


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HungDisk]:
    monkeypatch.setattr(module, "END_SECONDS", 0.05)
    made = HungDisk(monkeypatch)
    yield made
    await made.answer()


def audit_log(path: Path) -> AuditLog:
    core: Any = SimpleNamespace(times=SimpleNamespace(mono_ms=lambda: 0, wall_ms=lambda: 0))
    return AuditLog(AuditSection(file=path), "n", cast(Core, core))


@contextlib.contextmanager
def no_thread_that_keeps_a_process_alive() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert all(thread.daemon for thread in threading.enumerate() if thread not in before)


async def test_a_disk_that_hangs_does_not_hold_up_a_stop(disk: HungDisk, tmp_path: Path) -> None:
    audit = audit_log(tmp_path / "audit.log")
    tasks = Background()
    tasks.start(audit.run())
    with capture_logs() as logged, no_thread_that_keeps_a_process_alive():
        audit.note(entry(1))
        await until(lambda: disk.begun == 1)
        audit.note(entry(2))
        async with asyncio.timeout(60):
            await tasks.stop(None)  # as the broker stops its parts
            await audit.close()
    assert [row for row in logged if row["log_level"] == "warning"] == [
        {"event": NOT_TAKEN, "count": 2, "log_level": "warning"}
    ]
    assert disk.begun == 1, "two threads would write the same file"


async def test_a_disk_that_begins_to_hang_while_the_node_stops_does_not_hold_it_up(
    disk: HungDisk, tmp_path: Path
) -> None:
    audit = audit_log(tmp_path / "audit.log")
    with capture_logs() as logged, no_thread_that_keeps_a_process_alive():
        audit.note(entry(1))
        async with asyncio.timeout(60):
            await audit.close()
    assert [row["event"] for row in logged] == [NOT_TAKEN]


async def test_a_stop_waits_for_a_write_that_is_under_way(
    disk: HungDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 60.0)
    path = tmp_path / "audit.log"
    audit = audit_log(path)
    running = asyncio.ensure_future(audit.run())
    audit.note(entry(1))
    await until(lambda: disk.begun == 1)
    audit.note(entry(2))
    running.cancel()
    await turns()
    assert not running.done()
    disk.hangs = False
    await disk.answer()
    with pytest.raises(asyncio.CancelledError):
        await running
    await audit.close()
    rows = map(json.loads, path.read_text().splitlines())
    assert [row["resource"] for row in rows] == ["Topic:1", "Topic:2"]
