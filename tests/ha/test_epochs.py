import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.epochs import (
    EPOCH_TOPIC,
    NO_EPOCH,
    PATH,
    Epoch,
    EpochEntry,
    EpochHistory,
    barrier_body,
    barrier_entry,
    common_end,
    holds_what_it_noted,
    next_epoch,
    recover_history,
)
from duolog_server.ha.progress import ConnectionState
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.status import BrokerRole
from sim.disk import SimDisk
from tests.ha.pair import (
    Link,
    close,
    log_bytes,
    new_disk,
    open_master,
    open_slave,
    open_store,
    put,
)
from tests.support import drain, flush_log


def test_epochs_follow_each_other_or_are_refused() -> None:
    history = EpochHistory()
    assert history.open(EpochEntry(Epoch(1), 0, 5))
    assert history.open(EpochEntry(Epoch(3), 100, 6))
    assert not history.open(EpochEntry(Epoch(3), 200, 7))
    assert not history.open(EpochEntry(Epoch(4), 100, 7))
    assert not history.open(EpochEntry(Epoch(2), 50, 7))
    assert [history.entry_at(offset).epoch for offset in (0, 99, 100, 5000)] == [1, 1, 3, 3]
    history.truncate(100)
    assert history.last_epoch == 1
    assert EpochHistory().entry_at(5).epoch == 0
    assert EpochHistory().last_epoch == 0
    for wrong in (EpochEntry(Epoch(0), 0, 5), EpochEntry(Epoch(1), -1, 5)):
        nothing = EpochHistory()
        assert not nothing.open(wrong)
        assert nothing.entries == ()


@given(st.binary(max_size=60))
def test_a_barrier_body_says_something_or_nothing(body: bytes) -> None:
    barrier_entry(0, body)
    assert barrier_entry(9, barrier_body(Epoch(3), 1 << 63, "m")) == EpochEntry(
        Epoch(3), 9, 1 << 63
    )


@given(st.data())
def test_common_end_is_where_the_logs_diverge(data: st.DataObject) -> None:
    """Two logs with a common history that continue under different masterships."""
    past = sorted(data.draw(st.sets(st.integers(0, 30), max_size=4)))
    end = data.draw(st.integers(past[-1] + 1 if past else 0, 40))
    sides = []
    for side in (100, 200):
        held = data.draw(st.integers(0, end))
        entries = [
            EpochEntry(Epoch(k + 1), start, k) for k, start in enumerate(past) if start < held
        ]
        epoch = len(past)
        own = data.draw(st.integers(0, 3))
        length = held
        for k in range(own):  # each opens where the log ends, and writes at least its barrier
            epoch += 1
            entries.append(EpochEntry(Epoch(epoch), length, side + k))
            length += data.draw(st.integers(1, 5))
        writers = [0] * length
        for entry in entries:
            for offset in range(entry.start, length):
                writers[offset] = (entry.epoch << 32) + entry.nonce + 1
        sides.append((tuple(entries), length, writers))
    (a, a_end, a_log), (b, b_end, b_log) = sides
    found, _ = common_end(a, a_end, b, b_end)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a_log, b_log, strict=False))
    assert found == len(list(same))


def test_epochs_are_shared_as_far_as_they_are_the_same_in_the_same_order() -> None:
    first, second = EpochEntry(Epoch(1), 0, 5), EpochEntry(Epoch(2), 10, 6)
    assert common_end((), 8, (), 9) == (8, 0)
    assert common_end((first,), 8, (first, second), 20) == (8, 1)
    assert common_end((first, second), 30, (first, second), 20) == (20, 2)
    assert common_end((first, second), 30, (first, replace(second, nonce=7)), 20) == (10, 1)


def test_the_file_is_trusted_only_if_its_crc_matches(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    history = EpochHistory((EpochEntry(Epoch(1), 0, 5), EpochEntry(Epoch(2), 10, 6)))
    history.save(disk)
    again = EpochHistory()
    again.load(disk)
    assert again.entries == history.entries
    path = tmp_path / PATH
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        damaged = EpochHistory()
        try:
            damaged.load(disk)
        except BadStoreFile:
            continue
        assert damaged.entries in ((), history.entries)
    path.write_bytes(good.replace(b"[1,0", b"[1,1"))
    with pytest.raises(BadStoreFile, match="CRC"):
        damaged.load(disk)


def test_the_history_is_rebuilt_from_the_log_alone() -> None:
    disk = close(open_master())
    for nonce in range(20):  # elections with nothing in between
        disk = close(open_master(disk, nonce=nonce))
    disk.remove(PATH)
    disk.remove(PATH + ".bak")
    store = open_store(disk, BrokerRole.SLAVE)
    history = recover_history(store)
    assert [entry.epoch for entry in history.entries] == list(range(1, 22))
    assert [entry.nonce for entry in history.entries[1:]] == list(range(20))


def test_a_start_on_a_full_disk_finds_the_barriers_that_no_queue_has() -> None:
    master = open_master()
    for _ in range(20):
        put(master, b"x" * 100)
    drain(master.store)
    disk = close(master)
    master = open_master(disk, nonce=8)
    entries = master.history.entries
    assert len(entries) == 2
    disk = close(master)
    for path in list(disk._names):  # the queue has no file yet, and the disk no room for one
        if EPOCH_TOPIC in path:
            disk.remove(path)
    EpochHistory(entries[:1]).save(disk)  # as was the case with the history
    disk.full = True
    store = open_store(disk, BrokerRole.SLAVE)
    assert store.dispatched_offset < store.max_offset
    history = recover_history(store)
    assert history.entries == entries
    disk.full = False
    history.save(disk)
    again = EpochHistory()
    again.load(disk)
    assert again.entries == entries


def test_what_could_not_be_saved_is_saved_the_next_time() -> None:
    disk = close(open_master())
    history = EpochHistory()
    history.load(disk)
    assert history.open(EpochEntry(Epoch(2), 500, 9))
    disk.full = True
    with pytest.raises(OSError, match="full"):
        history.save(disk)
    disk.full = False
    history.adopt(history.entries, 1000)
    history.save(disk)
    again = EpochHistory()
    again.load(disk)
    assert again.entries == history.entries
    disk.full = True
    history.save(disk)  # the file has it


def noted(disk: SimDisk, *bodies: bytes, nonce: int = 7) -> tuple[SimDisk, int]:
    """A disk where a mastership confirmed messages, one by one; how far."""
    master = open_master(disk, nonce=nonce)
    store = master.store
    holds_what_it_noted(store, master.history)
    for body in bodies:
        store.confirm(PhyOffset(put(master, body).end_offset))
        flush_log(store)
    return close(master), store.log.max_offset


def put_back(disk: SimDisk, older: SimDisk) -> tuple[bool, int]:
    """An older log beside a newer checkpoint: whether it holds what was noted; what is known."""
    mixed = disk.copied(older, ("commitlog/", "consumequeue/", "config/", "queueends"))
    store = open_store(mixed, BrokerRole.SLAVE)
    return holds_what_it_noted(store, recover_history(store)), store.known_confirmed


def test_what_another_mastership_replaced_in_an_older_log_was_never_confirmed() -> None:
    disk, common = noted(new_disk(), b"confirmed")
    older, end = noted(disk.copied(), *[b"replaced"] * 9, nonce=8)
    newer, confirmed = noted(disk.copied(), *[b"in its place"] * 9, nonce=9)
    assert common < end < confirmed
    assert put_back(newer, older) == (False, 0)


def test_an_older_log_of_the_same_masterships_was_confirmed_as_far_as_it_goes() -> None:
    disk, _ = noted(new_disk(), b"1")
    master = open_master(disk, nonce=8)
    holds_what_it_noted(master.store, master.history)
    master.store.confirm(PhyOffset(put(master, b"2").end_offset))
    flush_log(master.store)
    older, end = disk.copied(), master.store.log.max_offset
    master.store.confirm(PhyOffset(put(master, b"3").end_offset))
    flush_log(master.store)
    assert put_back(close(master), older) == (True, end)


def test_a_note_whose_barrier_has_expired_is_believed() -> None:
    disk, _ = noted(new_disk(), *[b"x" * 3000] * 60)
    store = open_store(disk, BrokerRole.SLAVE)
    store.log.queue.remove(store.log.queue.files[0])
    store.disk.remove(PATH)
    known, history = store.known_confirmed, EpochHistory()
    history.lost = [(0, store.log.min_offset)]
    assert holds_what_it_noted(store, history)
    assert store.known_confirmed == known > store.log.min_offset > 0


def test_a_barrier_that_went_with_the_end_of_the_log_leaves_what_was_durable() -> None:
    disk, durable = noted(new_disk(), b"1")
    master = open_master(disk.copied(), nonce=8)
    holds_what_it_noted(master.store, master.history)
    master.store.confirm(PhyOffset(put(master, b"2").end_offset))  # as a power cut leaves it
    mixed = close(master).copied(disk, ("commitlog/", "consumequeue/", "config/", "queueends"))
    store = open_store(mixed, BrokerRole.SLAVE)
    note = store.checkpoint.note
    assert (store.log.max_offset, note.durable, note.confirmed_by) == (
        durable,
        durable,
        (durable, 8),
    )
    assert holds_what_it_noted(store, recover_history(store))
    assert (note.confirmed, note.durable) == (durable, durable)


def test_a_damaged_barrier_stays_in_the_history_and_its_bytes_confirmed() -> None:
    disk, confirmed = noted(new_disk(), *[b"x" * 3000] * 60)
    store = open_store(disk, BrokerRole.SLAVE)
    (entry,) = recover_history(store).entries
    store.log.queue.files[0].memory[entry.start + 30] ^= 1
    store.log.queue.files[0].memory[entry.start + 100] ^= 1
    history = recover_history(store)
    assert history.entries == (entry,)
    assert holds_what_it_noted(store, history)
    assert store.known_confirmed == confirmed


def test_the_bytes_before_a_barrier_are_of_the_mastership_before_it() -> None:
    history = EpochHistory((EpochEntry(Epoch(1), 0, 7), EpochEntry(Epoch(2), 50, 8)))
    assert [history.wrote(end) for end in (0, 1, 50, 51)] == [(0, 0), (0, 7), (0, 7), (50, 8)]


def test_where_log_and_file_differ_the_log_is_right() -> None:
    master = open_master()
    put(master, b"x")
    drain(master.store)
    disk = close(master)
    EpochHistory((EpochEntry(Epoch(1), 0, 7), EpochEntry(Epoch(9), 50, 3))).save(disk)
    store = open_store(disk, BrokerRole.SLAVE)
    assert recover_history(store).entries == (EpochEntry(Epoch(1), 0, 7),)
    again = EpochHistory()
    again.load(disk)
    assert again.entries == (EpochEntry(Epoch(1), 0, 7),), "put right on disk, too"


def test_epochs_whose_barriers_retention_removed_are_kept() -> None:
    master = open_master()
    while len(master.store.log.queue.files) < 3:
        put(master, b"x" * 3000)
    drain(master.store)
    master.store.log.queue.remove(master.store.log.queue.files[0])
    disk = close(master)
    store = open_store(disk, BrokerRole.SLAVE)
    assert store.log.min_offset > 0
    assert recover_history(store).entries == (EpochEntry(Epoch(1), 0, 7),)


def test_epochs_whose_barriers_are_lost_with_a_segment_are_kept_where_they_fit() -> None:
    master = open_master()
    for k in range(1, 4):
        while len(master.store.log.queue.files) < k:
            put(master, b"x" * 3000)
        for nonce in (10 * k, 10 * k + 1):
            drain(master.store)
            master = open_master(close(master), nonce=nonce)
    entries = master.history.entries
    size = master.store.log.queue.file_size
    lost = tuple(entry for entry in entries if size <= entry.start < 2 * size)
    assert [entry.epoch for entry in lost] == [4, 5]
    disk = close(master)
    disk.remove(f"commitlog/{size:020d}")
    damaged = open_store(disk, BrokerRole.SLAVE)
    assert recover_history(damaged).entries == entries
    first = lost[0]
    for wrong in (  # a number or an offset that the log has
        replace(first, epoch=Epoch(3)),
        replace(first, epoch=Epoch(6)),
        replace(first, start=2 * size),
    ):
        EpochHistory((wrong,)).save(disk)
        kept = tuple(entry for entry in entries if entry not in lost)
        assert recover_history(damaged).entries == kept


def test_a_slave_whose_lost_segment_held_a_barrier_is_repaired() -> None:
    """Everything that it knows to be confirmed is after that barrier, so its master has it."""
    master, slave = open_master(), open_slave()
    for k in range(1, 4):
        while len(master.store.log.queue.files) < k:
            put(master, b"x" * 3000)
        drain(master.store)
        master = open_master(close(master), nonce=k)
    for now in (0, 100):
        Link(master, slave).pump(now)
    assert slave.store.known_confirmed == slave.end == master.store.log.max_offset
    disk = close(slave)
    disk.remove(f"commitlog/{slave.store.log.queue.file_size:020d}")
    damaged = open_slave(disk)
    Link(master, damaged).pump()
    assert damaged.state is ConnectionState.TRANSFER, damaged.reason
    assert log_bytes(damaged.store) == log_bytes(master.store)


def test_a_barrier_is_a_record_of_its_own_topic() -> None:
    master = open_master()
    assert master.store.log.get_message(0).topic == EPOCH_TOPIC
    assert not master.history.open(EpochEntry(Epoch(1), 0, 0))


def test_knowledge_of_a_log_holds_as_far_as_this_log_continued_it() -> None:
    history = EpochHistory(
        (EpochEntry(Epoch(1), 0, 11), EpochEntry(Epoch(2), 500, 22), EpochEntry(Epoch(4), 900, 44))
    )
    assert history.held_from(450, 11) == 450
    assert history.held_from(700, 11) == 500  # the rest of that epoch was given up
    assert history.held_from(880, 22) == 880
    assert history.held_from(5000, 44) == 5000
    assert history.held_from(850, 33) == 0  # an epoch of a log that parted from this one
    assert history.held_from(850, 0) == 0
    assert EpochHistory().held_from(10, 0) == 0
    assert [history.entry_at(offset).nonce for offset in (-1, 0, 499, 500, 5000)] == [
        0,
        11,
        11,
        22,
        44,
    ]


def test_a_masters_history_is_adopted_as_far_as_its_bytes_are_held() -> None:
    history = EpochHistory((EpochEntry(Epoch(1), 0, 7),))
    history.adopt(
        (EpochEntry(Epoch(1), 0, 8), EpochEntry(Epoch(2), 50, 9), EpochEntry(Epoch(3), 90, 9)), 90
    )
    assert history.entries == (EpochEntry(Epoch(1), 0, 8), EpochEntry(Epoch(2), 50, 9))


def test_a_new_epoch_is_newer_than_all_that_are_known() -> None:
    assert next_epoch(NO_EPOCH) == 1
    assert next_epoch(Epoch(3), Epoch(5), Epoch(2)) == 6
