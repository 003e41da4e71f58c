"""The confirm note survives a kill, and after a power cut claims no more than the log holds."""

import numpy as np
import pytest

from duolog_server.store.checkpoint import SLOT_BYTES, ConfirmNote
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import BrokerRole
from sim.disk import SimDisk
from tests import support
from tests.ha.pair import new_disk
from tests.known import known
from tests.support import flush_log, options, put_ok


def memory() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.zeros(2 * SLOT_BYTES, np.uint8)


def noted(*offsets: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    for offset in offsets:
        note.raise_to(offset, offset // 2)
    return page


def test_the_newest_note_counts() -> None:
    note = ConfirmNote()
    note.attach(noted(10, 20, 30))
    assert (note.confirmed, note.durable) == (30, 15)
    note.raise_to(25, 0)
    assert note.confirmed == 30, "it never falls by being told less"


def test_a_half_written_note_leaves_the_previous_one_valid() -> None:
    whole = noted(10, 20)
    for at in range(SLOT_BYTES):
        torn = noted(10, 20, 30)
        torn[SLOT_BYTES + at :] = whole[SLOT_BYTES + at :]  # the third note is in slot 1
        note = ConfirmNote()
        note.attach(torn)
        assert note.confirmed in (20, 30)


def test_a_note_names_who_wrote_what_is_confirmed_and_one_of_an_older_version_nobody() -> None:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    note.wrote = lambda end: (5, 2**64 - 1) if end > 50 else (1, 7)
    note.raise_to(80, 40)
    again = ConfirmNote()
    again.attach(page)
    assert (again.confirmed_by, again.durable_by) == ((5, 2**64 - 1), (1, 7))
    note.lower_to(20)
    page[68:SLOT_BYTES] = page[SLOT_BYTES + 68 :] = 0  # where versions before it end
    again.attach(page)
    assert (again.confirmed, again.confirmed_by, again.durable_by) == (20, (0, 0), (0, 0))


def test_garbage_claims_nothing() -> None:
    note = ConfirmNote()
    note.attach(np.full(2 * SLOT_BYTES, 0xA5, np.uint8))
    assert (note.confirmed, note.durable) == (0, 0)


@pytest.mark.parametrize(
    ("boot", "abnormal", "whole_end", "end", "claimed"),
    [
        ("one", True, 100, 100, 80),  # a kill
        ("one", True, 60, 100, 80),  # a kill, and damage: what it confirmed is still claimed
        ("two", True, 100, 100, 80),  # a power cut that took nothing
        ("two", True, 70, 70, 70),  # a power cut took the end
        ("two", True, 60, 100, 60),  # a power cut tore a hole into what was not synced
        ("two", True, 30, 100, 40),  # damage where all was synced
        ("two", False, 60, 100, 80),  # a clean stop and a reboot
    ],
)
def test_after_recovery_the_note_claims_no_more_than_the_log_holds(
    boot: str, abnormal: bool, whole_end: int, end: int, claimed: int
) -> None:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    note.settle("one", 0, 0, False)
    note.write()
    note.raise_to(80, 40)
    again = ConfirmNote()
    again.attach(page)
    again.settle(boot, whole_end, end, abnormal)
    assert again.confirmed == claimed


def test_a_note_without_a_file_keeps_its_values_in_memory_only() -> None:
    note = ConfirmNote()
    told = (note.confirmed, note.durable, note.boot_id, note.unsynced)
    assert told == (0, 0, b"", False)
    note.raise_to(9, 5)
    assert (note.confirmed, note.durable, note.unsynced) == (9, 5, False)
    note.attach(memory())
    assert (note.confirmed, note.durable) == (0, 0)


def test_a_note_is_written_where_it_says_more_and_into_the_older_slot() -> None:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    for confirmed, durable, due in (
        (0, 0, False), (9, 0, True), (9, 0, False), (9, 5, True), (8, 5, False), (20, 4, True),
        (20, 90, True), (20, 90, False),
    ):  # fmt: skip
        before = page.copy()
        note.unsynced = False
        note.raise_to(confirmed, durable)
        assert (page != before).any() == note.unsynced == due
        changed = np.flatnonzero(page != before) // SLOT_BYTES
        assert len(set(changed.tolist())) == due
    assert (note.confirmed, note.durable) == (20, 20), "what is durable was confirmed"
    assert page[SLOT_BYTES:].any()
    again = ConfirmNote()
    again.attach(page)
    assert (again.confirmed, again.durable, again._number) == (20, 20, note._number)


def test_a_note_is_lowered_only_before_the_log_is_truncated() -> None:
    page = noted(30)
    note = ConfirmNote()
    note.attach(page)
    for offset, lowers, durable in ((31, False, 15), (30, False, 15), (20, True, 15), (9, True, 9)):
        assert note.lower_to(offset) == lowers
        assert (note.confirmed, note.durable) == (min(offset, 30), durable)
    again = ConfirmNote()
    again.attach(page)
    assert (again.confirmed, again.durable) == (9, 9)


def test_a_note_names_the_boot_that_wrote_it() -> None:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    assert note.is_of("")
    note.settle("one", 0, 0, abnormal=True)
    assert note.is_of("one")
    note.raise_to(80, 40)
    again = ConfirmNote()
    again.boot_id = b"another"
    again.attach(page)
    assert again.is_of("one")
    assert not again.is_of("two")
    again.settle("x" * 50, 100, 100, abnormal=False)
    again.write()
    assert (again.confirmed, again.durable) == (80, 40)
    last = ConfirmNote()
    last.attach(page)
    assert last.is_of("x" * 50)
    last.settle("two", 50, 60, abnormal=False)
    assert (last.confirmed, last.durable) == (60, 40)
    last.settle("two", 30, 30, abnormal=False)
    assert (last.confirmed, last.durable) == (30, 30)
    last.boot_id = b"another"
    last.attach(memory())
    assert last.is_of(""), "the other memory has no note"


def test_a_detached_note_leaves_the_memory_as_it_is() -> None:
    page = noted(10)
    note = ConfirmNote()
    note.attach(page)
    note.detach()
    before = page.copy()
    note.raise_to(20, 20)
    assert note.confirmed == 20
    assert (page == before).all()


def open_store(disk: SimDisk, boot: str = "one") -> MessageStore:
    chosen = options(broker_role=BrokerRole.SYNC_MASTER, message_index_enable=False)
    return support.open_store(disk, chosen, boot_id=boot)


def test_a_kill_forgets_nothing_that_was_confirmed() -> None:
    disk = new_disk(1)
    store = open_store(disk)
    store.hide_from(PhyOffset(0))
    end = put_ok(store, [b"a", b"b"]).end_offset
    store.confirm(end)
    put_ok(store, [b"c"])
    disk.kill()
    assert open_store(disk).known_confirmed == end


def test_a_power_cut_leaves_no_claim_to_bytes_that_it_took() -> None:
    for seed in range(30):
        disk = new_disk(seed)
        store = open_store(disk)
        store.hide_from(PhyOffset(0))
        store.confirm(put_ok(store, [b"a"]).end_offset)
        flush_log(store)
        store.note_confirmed()
        store.checkpoint.flush()
        durable = store.flushed_offset
        store.confirm(put_ok(store, [b"b" * 900, b"c" * 900]).end_offset)
        disk.power_cut()
        again = open_store(disk, "two")
        assert durable <= again.known_confirmed <= again.log.max_offset
        assert again.known_confirmed <= max(durable, again.log.sound_end)


def test_an_older_note_does_not_claim_truncated_bytes_again() -> None:
    """A power cut right after a truncation: the lower note is on disk before the log is shorter."""
    for seed in range(20):
        disk = new_disk(seed)
        store = open_store(disk)
        store.hide_from(PhyOffset(0))
        kept = put_ok(store, [b"a"]).end_offset
        store.confirm(put_ok(store, [b"b"]).end_offset)
        store.checkpoint.flush()
        store.truncate(kept)
        put_ok(store, [b"other bytes"])
        job = known(store.log.queue.flush_job(0))
        job.run()
        disk.power_cut()
        assert open_store(disk, "two").known_confirmed <= kept
