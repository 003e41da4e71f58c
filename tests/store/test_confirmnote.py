"""What was confirmed is known after a kill, and after a power cut no more than the log holds."""

import numpy as np
import pytest

from sim.disk import SimDisk
from store.confirmnote import SLOT_BYTES, ConfirmNote
from store.messagestore import MessageStore
from store.status import BrokerRole
from tests.ha.pair import new_disk
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


def test_a_note_that_was_being_written_leaves_the_one_before_it() -> None:
    whole = noted(10, 20)
    for at in range(SLOT_BYTES):
        torn = noted(10, 20, 30)
        torn[SLOT_BYTES + at :] = whole[SLOT_BYTES + at :]  # the third note is in slot 1
        note = ConfirmNote()
        note.attach(torn)
        assert note.confirmed in (20, 30)


def test_nonsense_says_nothing() -> None:
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
def test_after_recovery_no_more_is_claimed_than_the_log_holds(
    boot: str, abnormal: bool, whole_end: int, end: int, claimed: int
) -> None:
    page = memory()
    note = ConfirmNote()
    note.attach(page)
    note.settle("one", 0, 0, False)
    note.raise_to(80, 40)
    again = ConfirmNote()
    again.attach(page)
    again.settle(boot, whole_end, end, abnormal)
    assert again.confirmed == claimed


def open_store(disk: SimDisk, boot: str = "one") -> MessageStore:
    chosen = options(broker_role=BrokerRole.SYNC_MASTER, message_index_enable=False)
    store = MessageStore(disk, chosen, boot_id=boot)
    store.start()
    return store


def test_a_kill_forgets_nothing_that_was_confirmed() -> None:
    disk = new_disk(1)
    store = open_store(disk)
    store.hide_from(0)
    end = put_ok(store, [b"a", b"b"]).end_offset
    store.confirm(end)
    put_ok(store, [b"c"])
    disk.kill()
    assert open_store(disk).known_confirmed == end


def test_a_power_cut_leaves_no_claim_to_bytes_that_it_took() -> None:
    for seed in range(30):
        disk = new_disk(seed)
        store = open_store(disk)
        store.hide_from(0)
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


def test_what_is_cut_is_not_claimed_again_by_an_older_note() -> None:
    """A power cut right after a cut: the lower note is on the disk before the log is shorter."""
    for seed in range(20):
        disk = new_disk(seed)
        store = open_store(disk)
        store.hide_from(0)
        kept = put_ok(store, [b"a"]).end_offset
        store.confirm(put_ok(store, [b"b"]).end_offset)
        store.checkpoint.flush()
        store.truncate(kept)
        put_ok(store, [b"other bytes"])
        job = store.log.queue.flush_job(0)
        assert job is not None
        job.run()
        disk.power_cut()
        assert open_store(disk, "two").known_confirmed <= kept
