"""The slave applies whole verified records and nothing else, however they arrive."""

import random
import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.ha import frames, identity, masterevents
from duolog_server.ha.epochs import EPOCH_TOPIC, Epoch, EpochHistory, barrier_body
from duolog_server.ha.frames import (
    Ack,
    Chunk,
    Frame,
    Heartbeat,
    Kind,
    Refusal,
    Refuse,
    Reset,
    Truncate,
    Welcome,
)
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Close
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import CUTS_MAX, Slave
from duolog_server.ha.slaveevents import (
    Adopt,
    Applied,
    CloseStream,
    Connected,
    Effect,
    Flushed,
    FlushSoon,
    Lost,
    OlderCopy,
    Received,
    Send,
    Tick,
)
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import CorruptRange
from duolog_server.store.kernels import scan
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.status import BrokerRole, FlushDiskType
from duolog_server.store.wholerecords import record_bytes_max
from sim.disk import SimDisk
from tests.ha.pair import (
    NOW,
    Link,
    close,
    fill,
    flush,
    log_bytes,
    new_disk,
    open_master,
    open_slave,
    put,
)
from tests.known import known
from tests.support import drain


def several(count: int = 30) -> Master:
    master = open_master()
    chance = random.Random(5)
    for k in range(count):
        put(master, *(b"%d-" % k + b"." * chance.randint(0, 900) for _ in range(3)))
    drain(master.store)
    return master


def welcomed(master: Master) -> Slave:
    """An empty slave in TRANSFER."""
    slave = open_slave()
    link = Link(master, slave)
    data = known(master.next_frame(link.number, MonoMs(0)))
    slave.step(Received(data), MonoMs(0))
    assert slave.state is ConnectionState.TRANSFER
    return slave


def receive(slave: Slave, frame: Frame, now: int = 0) -> list[Effect]:
    """Let a frame of the master arrive."""
    return slave.step(Received(frames.encode(frame)), MonoMs(now))


def welcome(start: int, **changes: Any) -> Welcome:
    """That of a SYNC_MASTER in epoch 1 who has confirmed nothing, with changes."""
    plain = Welcome(Epoch(1), start, 0, "m", "m:1", False, True, 5000, 20_000, (), b"")
    return replace(plain, **changes)


def feed(slave: Slave, master: Master, sizes: "list[int]") -> None:
    """Send the master's log in chunks of such sizes, in turn, never across a segment's end."""
    log, at, turn = master.store.log, 0, 0
    while at < log.max_offset:
        data = log.get_data(at)[: sizes[turn % len(sizes)]]
        slave.step(Received(frames.chunk_frame(Epoch(1), at, 0, data)), MonoMs(0))
        assert slave.state is ConnectionState.TRANSFER, slave.reason
        at += len(data)
        turn += 1


@pytest.mark.parametrize("size", [*range(1, 65), 1000, 5000, 1 << 20])
def test_chunks_of_any_size_make_the_same_log(size: int) -> None:
    master = several(6 if size < 65 else 30)
    slave = welcomed(master)
    feed(slave, master, [size])
    assert log_bytes(slave.store) == log_bytes(master.store)
    assert slave.history.entries == master.history.entries


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=6))
@settings(max_examples=30)
def test_chunks_cut_anywhere_make_the_same_log(sizes: list[int]) -> None:
    master = several(8)
    slave = welcomed(master)
    feed(slave, master, sizes)
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_a_stream_cut_at_any_byte_leaves_whole_records_and_goes_on() -> None:
    master = several(2)
    whole = log_bytes(master.store)
    for cut in range(1, len(whole), 97):
        slave = welcomed(master)
        slave.step(
            Received(frames.chunk_frame(Epoch(1), 0, 0, master.store.log.get_data(0)[:cut])),
            MonoMs(0),
        )
        assert whole.startswith(log_bytes(slave.store))
        assert master.store.log.is_boundary(slave.end)
        Link(master, slave).pump()
        assert log_bytes(slave.store) == whole


@pytest.mark.parametrize("seals", [True, False], ids=["sealed", "as RocketMQ's"])
def test_a_bit_that_flips_on_its_way_changes_nothing_and_the_bytes_come_again(seals: bool) -> None:
    """In headers and properties, in the name of a seal, and in the padding of a blank."""
    master = open_master(enabled_append_prop_crc=seals)
    put(master, b"one", b"two")
    end, blank = master.store.log.max_offset, master.store.log.queue.file_size - 60
    fill(master, 60)
    put(master, b"in the next segment")
    slave = welcomed(master)
    for start, stop in ((0, end), (end, blank), (blank, blank + 60)):
        right = frames.chunk_frame(
            Epoch(1), start, 0, master.store.log.get_data(start)[: stop - start]
        )
        damaged = range(8 * len(right)) if stop - start < 1000 else ()
        for bit in damaged:
            flipped = bytearray(right)
            flipped[bit // 8] ^= 1 << bit % 8
            before = (slave.end, slave.damaged_frames)
            (closed,) = slave.step(Received(bytes(flipped)), MonoMs(0))
            assert isinstance(closed, CloseStream)
            assert (slave.state, slave.end) == (ConnectionState.READY, before[0])
            assert slave.damaged_frames - before[1] == (bit // 8 not in (*range(5), *range(32, 36)))
            slave.state = ConnectionState.TRANSFER  # as if it had connected anew
        slave.step(Received(right), MonoMs(0))
        assert (slave.state, slave.end) == (ConnectionState.TRANSFER, stop)
    link = Link(master, slave)
    link.pump()
    assert not link.closed
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_only_a_slave_that_asks_for_the_crc_of_log_bytes_gets_it() -> None:
    """One of release 0.1.0 does not ask, and a master of that release does not give it."""
    master = several(1)
    for asks in (True, False):
        number = known(master.connect(MonoMs(0)))
        hello = replace(open_slave().hello(), node=f"s{asks}", whole_crc=asks)
        master.step(masterevents.Received(number, frames.encode(hello)), MonoMs(0))
        answer, chunk = (frames.decode(master.next_frame(number, MonoMs(0)) or b"") for _ in "12")
        assert isinstance(answer, Welcome)
        assert isinstance(chunk, Chunk)
        assert answer.whole_crc is chunk.whole_crc is asks

    for gives in (True, False):
        slave = open_slave()
        Link(master, slave)
        receive(slave, welcome(0, whole_crc=gives))
        plain = Chunk(Epoch(1), 0, 0, master.store.log.get_data(0), whole_crc=False)
        effects = receive(slave, plain)
        assert (slave.end > 0) is not gives
        assert any(isinstance(effect, CloseStream) for effect in effects) is gives
        assert slave.state is (ConnectionState.READY if gives else ConnectionState.TRANSFER)


def test_a_master_counts_the_damaged_frames_of_its_slaves() -> None:
    master = several(1)
    number = known(master.connect(MonoMs(0)))
    hello = bytearray(frames.encode(open_slave().hello()))
    hello[-1] ^= 1
    (closed,) = master.step(masterevents.Received(number, bytes(hello)), MonoMs(0))
    assert isinstance(closed, Close)
    assert "CRC-32C" in closed.reason
    assert (master.damaged_frames, master.violations) == (1, 1)


def test_a_flip_of_any_byte_is_never_applied() -> None:
    """The master's copy of it is damaged, or it covers no log bytes by the CRC of its frames.

    Except the name of the property that announces the CRC over the whole record.
    """
    master = several(1)
    whole = log_bytes(master.store)
    seals = {m.start() + k for m in re.finditer(rb"__CRC32#\x01", whole) for k in range(9)}
    for at in sorted(set(range(0, len(whole), 7)) - seals):
        slave = welcomed(master)
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        data = np.frombuffer(bytes(damaged), np.uint8)
        slave.step(Received(frames.chunk_frame(Epoch(1), 0, 0, data)), MonoMs(0))
        applied = log_bytes(slave.store)
        assert whole.startswith(applied)
        assert len(applied) <= at
        assert slave.state is ConnectionState.SUSPEND or slave._pending
        if slave.state is ConnectionState.SUSPEND:
            assert "no valid record" in slave.reason


@given(st.integers(0, 10_000), st.integers(1, 10_000))
@settings(max_examples=60)
def test_a_flipped_byte_is_not_applied_whichever_chunk_it_arrives_in(at: int, cut: int) -> None:
    master = several(3)
    whole = log_bytes(master.store)
    at, cut = at % len(whole), 1 + cut % (len(whole) - 1)
    if b"__CRC32#\x01" in whole[max(0, at - 8) : at + 9]:
        return  # the name of the property that announces the CRC
    slave = welcomed(master)
    damaged = bytearray(whole)
    damaged[at] ^= 0x10
    data = np.frombuffer(bytes(damaged), np.uint8)
    for start, part in ((0, data[:cut]), (cut, data[cut:])):
        if slave.state is ConnectionState.TRANSFER:
            slave.step(Received(frames.chunk_frame(Epoch(1), start, 0, part)), MonoMs(0))
    applied = log_bytes(slave.store)
    assert whole.startswith(applied)
    assert len(applied) <= at


def test_the_record_that_a_chunk_ends_is_all_that_is_copied() -> None:
    master = several(8)
    slave = welcomed(master)
    data = master.store.log.get_data(0)
    cut = int(master.store.log.record_bytes(0)) + 50
    slave.step(Received(frames.chunk_frame(Epoch(1), 0, 0, data[:cut])), MonoMs(0))
    first, rest = slave._pieces(data[cut:])
    assert first.tobytes() == data[cut - 50 : cut - 50 + len(first)].tobytes()
    assert len(first) == master.store.log.record_bytes(cut - 50)
    assert np.shares_memory(rest, data)
    assert cut - 50 + len(first) + len(rest) == len(data)


def test_gaps_repeats_and_other_epochs() -> None:
    master = several(3)
    slave = welcomed(master)
    log = master.store.log
    first = int(log.record_bytes(0))
    one = frames.chunk_frame(Epoch(1), 0, 0, log.get_data(0)[:first])
    slave.step(Received(one), MonoMs(0))
    assert slave.step(Received(one), MonoMs(0)) == [], "said twice"
    assert slave.end == first
    for start in (first + 1, first - 1):
        again = welcomed(master)
        again.step(Received(one), MonoMs(0))
        data = log.get_data(0)[start:][:50]
        (closed,) = receive(again, Chunk(Epoch(1), start, 0, data))
        assert closed == CloseStream(f"log bytes from {start}, expected from {first}")
        assert (again.state, again.end) == (ConnectionState.READY, first), "it may hurry back"
    slave = welcomed(master)
    stale = frames.encode(Chunk(Epoch(0), 0, 0, log.get_data(0)[:first]))
    assert any(isinstance(e, CloseStream) for e in slave.step(Received(stale), MonoMs(0)))
    assert slave.end == 0


def test_a_lost_frame_is_detected_by_the_next_heartbeat() -> None:
    master = several(1)
    slave = welcomed(master)
    beat = frames.encode(Heartbeat(Epoch(1), 500, 0, 500))
    assert any(isinstance(e, CloseStream) for e in slave.step(Received(beat), MonoMs(0)))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_heartbeat_of_another_mastership_ends_the_connection(epoch: int) -> None:
    slave = welcomed(several(1))
    (closed,) = receive(slave, Heartbeat(Epoch(epoch), 0, 0, 0))
    assert closed == CloseStream(f"a heartbeat of epoch {epoch}, expected epoch 1")


@pytest.mark.parametrize(
    "frame", [Ack(Epoch(1), 0, 0, "m", 1), Truncate(Epoch(1), 0), Reset(Epoch(1), 0)]
)
def test_an_unexpected_frame_ends_a_stream(frame: Frame) -> None:
    slave = welcomed(several(1))
    assert receive(slave, frame) == [CloseStream(f"{type(frame).__name__} out of order")]
    assert slave.state is ConnectionState.READY


@pytest.mark.parametrize("frame", [Ack(Epoch(5), 0, 0, "m", 1), Heartbeat(Epoch(5), 0, 0, 0)])
def test_a_wrong_answer_to_a_hello_ends_the_connection_and_promises_nothing(frame: Frame) -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(0))
    assert receive(slave, frame) == [CloseStream(f"{type(frame).__name__} out of order")]
    assert (slave.state, slave.identity.promised_epoch) == (ConnectionState.READY, 0)


@pytest.mark.parametrize(
    ("epoch", "code", "older"),
    [
        (2, Refusal.OLDER_COPY, True),
        (3, Refusal.OLDER_COPY, True),
        (1, Refusal.OLDER_COPY, False),
        (2, Refusal.LINEAGE, False),
    ],
)
def test_a_master_that_is_not_stale_may_call_this_directory_an_older_copy(
    epoch: int, code: Refusal, older: bool
) -> None:
    slave = open_slave()
    slave.promise(Epoch(2))
    slave.step(Connected(), MonoMs(0))
    effects = receive(slave, Refuse(Epoch(epoch), code, "why"))
    closed = CloseStream(f"{code.name}: why")
    assert effects == ([OlderCopy("why"), closed] if older else [closed])
    assert (slave.state, slave.reason) == (ConnectionState.SUSPEND, closed.reason)


def test_a_slave_that_was_never_connected_says_so() -> None:
    slave = open_slave()
    assert (slave.state, slave.reason) == (ConnectionState.READY, "")
    assert (slave.epoch, slave.master_node, slave.master_endpoint) == (0, "", "")
    assert (slave.master_end, slave.lag_bytes, slave.lag_ms(MonoMs(500))) == (0, 0, 0)
    assert (slave.truncated_bytes, slave.resets) == (0, 0)


def test_a_renewed_slave_acknowledges_as_another_replica() -> None:
    slave = welcomed(several(1))
    disk = slave.store.disk
    assert isinstance(disk, SimDisk)
    disk.full = True
    with pytest.raises(OSError, match="full disk"):
        slave.renew(77)
    disk.full = False
    for now, incarnation in ((5000, 2), (10_000, 77)):
        (beat,) = slave.step(Tick(), MonoMs(now))
        assert isinstance(beat, Send)
        ack = frames.decode(beat.data)
        assert isinstance(ack, Ack)
        assert (ack.node, ack.incarnation) == ("s", incarnation)
        assert slave.hello().incarnation == incarnation
        slave.renew(77)
    assert open_slave(close(slave)).hello().incarnation == 77


def test_a_welcome_shows_how_far_the_slave_lags() -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(0))
    receive(slave, welcome(0, confirm=700))
    assert (slave.master_node, slave.master_endpoint) == ("m", "m:1")
    assert (slave.master_end, slave.lag_bytes) == (700, 700)


@pytest.mark.parametrize("segment", [16 << 10, 1 << 20])
def test_a_record_is_waited_for_as_long_as_its_size_may_be_true(segment: int) -> None:
    """It ends before the segment does, with room for a blank, and is no larger than a message."""
    master = open_master(mapped_file_size_commit_log=segment)
    size = min(segment - 8, record_bytes_max(master.store.options))
    for over in (0, 1):
        slave = open_slave(mapped_file_size_commit_log=segment)
        link = Link(master, slave)
        data = known(master.next_frame(link.number, MonoMs(0)))
        slave.step(Received(data), MonoMs(0))
        head = np.frombuffer(struct.pack(">II", size + over, scan.MAGIC_V1), np.uint8)
        receive(slave, Chunk(Epoch(1), 0, 0, head))
        assert slave.end == 0
        if over:
            assert slave.state is ConnectionState.SUSPEND
            assert slave.reason == "the bytes at 0 hold no valid record"
        else:
            assert slave.state is ConnectionState.TRANSFER
            (closed,) = receive(slave, Chunk(Epoch(1), 9, 0, head))
            assert closed == CloseStream("log bytes from 9, expected from 8"), "8 are kept"


def test_a_chunk_of_more_records_than_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.store.wholerecords.ROWS_MAX", 2)
    disk = close(several(3))
    master = open_master(disk, nonce=8)
    put(master, b"last")
    slave = open_slave()
    Link(master, slave).pump()
    assert slave.history.entries == master.history.entries
    assert log_bytes(slave.store) == log_bytes(master.store)


@pytest.mark.parametrize(("more", "kept"), [(0, True), (1, False)])
def test_what_was_found_in_a_large_chunk_is_kept_for_dispatch(more: int, kept: bool) -> None:
    master = several(4)
    slave = welcomed(master)
    data = master.store.log.get_data(0)
    slave.many_bytes = len(data) + more
    slave.step(Received(frames.chunk_frame(Epoch(1), 0, 0, data)), MonoMs(0))
    assert slave.end == master.store.log.max_offset
    assert bool(len(slave.store.dispatcher.arrived)) is kept


@pytest.mark.parametrize("left", [8, 9])
def test_the_least_blank_that_closes_a_segment_is_taken(left: int) -> None:
    master, slave = open_master(), open_slave()
    fill(master, left)
    put(master, b"of the next segment")
    Link(master, slave).pump()
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_a_wrong_record_behind_whole_ones_is_named_by_its_offset() -> None:
    master = several(1)
    log = master.store.log
    slave, first = welcomed(master), int(log.record_bytes(0))
    data = log.get_data(0).copy()
    data[first + 4] ^= 1  # its magic
    (closed,) = receive(slave, Chunk(Epoch(1), 0, 0, data))
    assert closed == CloseStream(f"the bytes at {first} hold no valid record")
    assert (slave.state, slave.end) == (ConnectionState.SUSPEND, 0)


def test_the_last_records_time_is_that_of_the_log() -> None:
    """Should this node become the master, it gives no earlier one."""
    master = open_master()
    for later in (5, 9):
        batch = PutBatch("T", 0, Columns.of([b"x"]), WallMs(NOW + later))
        master.store.put(batch, WallMs(NOW + later))
    slave = welcomed(master)
    feed(slave, master, [1 << 20])
    assert slave.store.log.last_store_time == NOW + 9


def test_part_of_a_record_is_lag_and_comes_again_with_the_next_connection() -> None:
    master = several(1)
    slave = welcomed(master)
    first = int(master.store.log.record_bytes(0))
    receive(slave, Chunk(Epoch(1), 0, 0, master.store.log.get_data(0)[: first + 30]))
    assert (slave.end, slave.master_end, slave.lag_bytes) == (first, first + 30, 30)
    slave.step(Lost("closed"), MonoMs(0))
    Link(master, slave).pump()
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_only_records_of_the_epochs_topic_open_epochs() -> None:
    master, slave = open_master(), open_slave()
    for topic in ("T" * len(EPOCH_TOPIC), "T"):
        put(master, barrier_body(Epoch(9), 5, "m"), topic=topic)
    Link(master, slave).pump()
    assert slave.history.entries == master.history.entries
    assert slave.history.last_epoch == 1


def test_a_record_that_finds_no_room_opens_no_epoch() -> None:
    slave = welcomed(open_master())
    disk = slave.store.disk
    assert isinstance(disk, SimDisk)
    data = open_master().store.log.get_data(0)
    disk.full = True
    with pytest.raises(OSError, match="full disk"):
        receive(slave, Chunk(Epoch(1), 0, 0, data))
    assert (slave.end, slave.history.entries) == (0, ())
    disk.full = False
    receive(slave, Chunk(Epoch(1), 0, 0, data))
    assert (slave.end, slave.history.last_epoch) == (len(data), 1)


def test_a_master_of_an_older_epoch_is_not_followed() -> None:
    """I5: a promised epoch stays promised across restarts."""
    slave = open_slave()
    Link(open_master(close(open_master()), nonce=1), slave).pump()
    assert slave.identity.promised_epoch == 2
    again = open_slave(close(slave))
    assert again.identity.promised_epoch == 2
    again.step(Connected(), MonoMs(0))
    old = welcome(again.end)
    again.step(Received(frames.encode(old)), MonoMs(0))
    assert again.state is ConnectionState.SUSPEND
    again.step(Connected(), MonoMs(0))
    again.step(Received(frames.encode(Truncate(Epoch(1), 5))), MonoMs(0))
    assert again.state is ConnectionState.SUSPEND
    assert again.truncated_bytes == 0


def test_readers_of_a_slave_see_what_is_confirmed_and_the_rest_later() -> None:
    master, slave = open_master(in_sync_replicas=3), open_slave()
    link = Link(master, slave)
    put(master, b"unconfirmed")
    link.pump()
    drain(slave.store)
    assert slave.store.queue_range("T", 0) == (0, 0)
    assert slave.store.get("T", 0, QueueOffset(0)).count == 0
    other = Link(master, open_slave(name="s2"))
    other.pump()
    link.pump(100)
    drain(slave.store)
    assert slave.store.get("T", 0, QueueOffset(0)).bodies == b"unconfirmed"
    disk = close(slave)
    restarted = open_slave(disk)
    drain(restarted.store)
    assert restarted.store.get("T", 0, QueueOffset(0)).count == 1, (
        "it has heard so, a kill does not change that"
    )
    Link(master, restarted).pump()
    drain(restarted.store)
    assert restarted.store.get("T", 0, QueueOffset(0)).bodies == b"unconfirmed"


def test_an_old_master_does_not_show_its_unconfirmed_tail() -> None:
    master = open_master()
    put(master, b"never confirmed")
    drain(master.store)
    disk = close(master)
    slave = open_slave(disk)
    drain(slave.store)
    assert slave.store.get("T", 0, QueueOffset(0)).count == 0
    again = open_master(close(slave), nonce=5)
    drain(again.store)
    assert again.store.get("T", 0, QueueOffset(0)).count == 0
    result = put(again, b"next")
    assert result.queue_offset == 1, "its queue offset stays taken"
    Link(again, open_slave(name="s2")).pump()
    drain(again.store)
    assert again.store.get("T", 0, QueueOffset(0)).count == 2


def test_bytes_that_an_async_master_showed_are_not_confirmed_under_a_sync_master() -> None:
    """It was never acknowledged: readers wait for it, and a master without it may truncate it."""
    first, slave, other = open_master(role=BrokerRole.ASYNC_MASTER), open_slave(), open_slave()
    put(first, b"on all")
    Link(first, other).pump()
    put(first, b"shown at once")
    Link(first, slave).pump()
    flush(slave)
    slave.store.note_confirmed()
    assert slave.store.known_confirmed == slave.end, "as readers saw it"
    second = open_master(close(first), nonce=8, in_sync_replicas=3)
    Link(second, slave).pump()
    assert slave.store.known_confirmed == 0
    drain(slave.store)
    assert slave.store.get("T", 0, QueueOffset(0)).count == 0
    third = open_master(close(other), "other", nonce=9, number=3)
    Link(third, slave).pump()
    assert log_bytes(slave.store) == log_bytes(third.store)


def test_bytes_of_an_async_master_after_a_sync_master_are_shown_at_once() -> None:
    first, slave = open_master(in_sync_replicas=3), open_slave()
    put(first, b"unconfirmed")
    Link(first, slave).pump()
    drain(slave.store)
    assert slave.store.get("T", 0, QueueOffset(0)).count == 0
    Link(open_master(close(first), nonce=8, role=BrokerRole.ASYNC_MASTER), slave).pump()
    drain(slave.store)
    assert slave.store.get("T", 0, QueueOffset(0)).count == 1


def test_bytes_that_an_async_master_called_confirmed_may_be_truncated() -> None:
    master, slave = open_master(role=BrokerRole.ASYNC_MASTER), open_slave()
    start = put(master, b"x").physical_offset
    Link(master, slave).pump()
    flush(slave)
    slave.store.note_confirmed()
    assert slave.store.known_confirmed == slave.end > start
    slave.step(Connected(), MonoMs(0))
    assert receive(slave, Truncate(Epoch(1), start))[0] == Applied()
    assert slave.end == start


def test_the_first_record_of_an_async_masters_copy_is_repaired_before_anything_is_confirmed() -> (
    None
):
    master, slave = open_master(role=BrokerRole.ASYNC_MASTER), open_slave()
    put(master, b"x" * 900)
    Link(master, slave).pump()
    disk = close(slave)
    (name,) = disk.list("commitlog")
    disk._names[f"commitlog/{name}"].seen[60] ^= 1
    damaged = open_slave(disk)
    assert damaged.store.log.sound_end == 0
    damaged.step(Connected(), MonoMs(0))
    entries = master.history.entries
    receive(damaged, welcome(0, promise=False, epochs=entries))
    assert damaged.state is ConnectionState.TRANSFER, damaged.reason
    assert not damaged.store.log.corrupt_ranges


def test_a_damaged_record_is_repaired_from_the_master() -> None:
    master, slave = several(8), open_slave()
    Link(master, slave).pump()
    Link(master, slave).pump(100)
    disk = close(slave)
    path = next(name for name in disk._names if name.startswith("commitlog/"))
    disk._names[path].seen[700] ^= 0xFF
    damaged = open_slave(disk)
    drain(damaged.store)
    assert damaged.store.log.corrupt_ranges
    Link(master, damaged).pump()
    assert log_bytes(damaged.store) == log_bytes(master.store)
    assert not damaged.store.log.corrupt_ranges
    assert damaged.truncated_bytes > 0


def test_a_missing_segment_is_fetched_from_the_master() -> None:
    master, slave = several(120), open_slave()
    Link(master, slave).pump()
    Link(master, slave).pump(100)
    drain(slave.store)
    flush(slave)
    slave.store.note_confirmed()
    slave.store.checkpoint.flush()
    disk = close(slave)
    names = sorted(name for name in disk._names if name.startswith("commitlog/"))
    assert len(names) >= 3
    disk.remove(names[1])
    damaged = open_slave(disk)
    drain(damaged.store)
    (hole,) = damaged.store.log.corrupt_ranges
    assert damaged.store.get("T", 0, QueueOffset(0)).count, "what lies before it is served"
    Link(master, damaged).pump()
    assert log_bytes(damaged.store) == log_bytes(master.store)
    assert not damaged.store.log.corrupt_ranges
    assert damaged.store.log.queue.find(hole.start) is not None


def test_a_damaged_slave_is_repaired_by_a_new_master_that_can_confirm_nothing_without_it() -> None:
    """The master has everything below its barrier, which need not be confirmed first."""
    first, slave, third = open_master(in_sync_replicas=3), open_slave(), open_slave(name="third")
    while len(first.store.log.queue.files) < 3:
        put(first, b"x" * 900)
    link = Link(first, slave)
    link.pump()
    Link(first, third).pump()
    link.pump(100)
    assert slave.store.known_confirmed == first.store.log.max_offset
    second = open_master(close(third), "third", nonce=8, in_sync_replicas=3)
    disk = close(slave)
    disk.remove(sorted(f"commitlog/{name}" for name in disk.list("commitlog"))[1])
    damaged = open_slave(disk)
    Link(second, damaged).pump()
    assert damaged.state is ConnectionState.TRANSFER, damaged.reason
    assert log_bytes(damaged.store) == log_bytes(second.store)


def without_its_second_segment(slave: Slave) -> SimDisk:
    """Kill a slave, and lose a file from the middle of its log."""
    disk = close(slave)
    disk.remove(sorted(f"commitlog/{name}" for name in disk.list("commitlog"))[1])
    return disk


def test_a_damaged_slave_of_an_elected_group_is_another_replica_before_it_is_repaired() -> None:
    """Repaired, it may be elected again; until then it lacks what it has acknowledged."""
    master, slave = several(120), open_slave(role=BrokerRole.AUTO)
    Link(master, slave).pump()
    damaged = open_slave(without_its_second_segment(slave), role=BrokerRole.AUTO)
    before, was = (damaged.end, damaged.store.log.corrupt_ranges), damaged.identity.incarnation
    for _ in range(2):
        link = Link(master, damaged)
        link.pump()
        (told,) = link.told
        assert isinstance(told, OlderCopy)
        assert told.reason == link.closed == damaged.reason
        assert f"damaged at {damaged.store.log.sound_end}" in told.reason
        assert damaged.state is ConnectionState.SUSPEND
        assert before == (damaged.end, damaged.store.log.corrupt_ranges)
    damaged.renew(was + 1)
    link = Link(master, damaged)
    link.pump()
    assert not link.told
    assert damaged.state is ConnectionState.TRANSFER
    assert log_bytes(damaged.store) == log_bytes(master.store)
    again = open_slave(without_its_second_segment(damaged), role=BrokerRole.AUTO)
    link = Link(master, again)
    link.pump()
    assert [type(told) for told in link.told] == [OlderCopy]


def _first_record_end(slave: Slave) -> int:
    return int.from_bytes(slave.store.log.get_data(0)[:4].tobytes(), "big")


@pytest.mark.parametrize("connections", [1, 2])
def test_damage_that_shows_after_a_repair_is_damage_of_the_new_replica(connections: int) -> None:
    master, slave = several(120), open_slave(role=BrokerRole.AUTO)
    Link(master, slave).pump()
    damaged = open_slave(without_its_second_segment(slave), role=BrokerRole.AUTO)
    Link(master, damaged).pump()
    damaged.renew(7)
    for _ in range(connections):  # the first one repairs it
        Link(master, damaged).pump()
    assert not damaged.store.log.corrupt_ranges
    damaged.store.log.corrupt_ranges = [CorruptRange(0, 100)]
    for told in ([OlderCopy], [OlderCopy]):
        link = Link(master, damaged)
        link.pump()
        assert [type(effect) for effect in link.told] == told
    damaged.renew(8)
    Link(master, damaged).pump()
    assert log_bytes(damaged.store) == log_bytes(master.store)


def test_a_damaged_slave_that_its_master_refused_is_renewed_once() -> None:
    """It became another replica after its damage was seen: that is enough."""
    master, slave = several(120), open_slave(role=BrokerRole.AUTO)
    Link(master, slave).pump()
    damaged = open_slave(without_its_second_segment(slave), role=BrokerRole.AUTO)
    damaged.step(Connected(), MonoMs(0))
    receive(damaged, Refuse(Epoch(1), Refusal.OLDER_COPY, "why"))
    damaged.renew(7)
    link = Link(master, damaged)
    link.pump()
    assert not link.told
    assert log_bytes(damaged.store) == log_bytes(master.store)


def test_a_damaged_slave_of_an_elected_group_is_not_cut_below_its_damage_either() -> None:
    master, slave = several(120), open_slave(role=BrokerRole.AUTO)
    Link(master, slave).pump()
    slave.store.checkpoint.note.lower_to(0)  # it has heard of nothing that is confirmed
    damaged = open_slave(without_its_second_segment(slave), role=BrokerRole.AUTO)
    before, boundary = damaged.end, _first_record_end(damaged)
    for told in ([OlderCopy], []):
        damaged.step(Connected(), MonoMs(0))
        effects = receive(damaged, Truncate(Epoch(1), boundary))
        assert [type(effect) for effect in effects if isinstance(effect, OlderCopy)] == told
        assert damaged.end == (before if told else boundary)
        damaged.renew(7)


def test_a_hole_that_a_power_cut_left_costs_an_elected_slave_no_membership() -> None:
    """It was never acknowledged that bytes after it were on this disk."""
    for confirm, still in ((0, True), (6000, False)):
        master, slave = open_master(), open_slave(role=BrokerRole.AUTO)
        for k in range(12):
            put(master, b"%d" % k * 900)
        Link(master, slave).pump()
        slave.store.checkpoint.confirm_phy_offset = confirm
        slave.store.checkpoint.flush()
        disk = close(slave)
        disk._names["commitlog/" + disk.list("commitlog")[0]].seen[3584:4608] = 0
        torn = open_slave(disk, role=BrokerRole.AUTO)
        drain(torn.store)
        assert torn.store.log.corrupt_ranges
        link = Link(master, torn)
        link.pump()
        assert (torn.state is ConnectionState.TRANSFER) is still
        assert (link.told == []) is still


def test_a_damaged_slave_is_not_repaired_by_a_master_that_lacks_what_was_confirmed() -> None:
    first, slave, behind = open_master(), open_slave(), open_slave(name="behind")
    put(first, b"on all")
    Link(first, behind).pump()
    while len(first.store.log.queue.files) < 3:
        put(first, b"x" * 900)
    for now in (0, 100):
        Link(first, slave).pump(now)
    disk = close(slave)
    path = sorted(f"commitlog/{name}" for name in disk.list("commitlog"))[0]
    disk._names[path].seen[behind.end - 80] ^= 1
    damaged = open_slave(disk)
    assert damaged.store.log.sound_end < behind.end
    before = log_bytes(damaged.store)
    second = open_master(close(behind), "behind", nonce=8)
    Link(second, damaged).pump()
    assert damaged.state is ConnectionState.SUSPEND
    assert "not repaired" in damaged.reason
    assert log_bytes(damaged.store) == before


def test_messages_of_a_missing_segment_are_served_again_where_no_later_one_of_their_queue_is() -> (
    None
):
    """Their queue offsets are kept free until the records come again, and are theirs then."""
    master, slave = open_master(), open_slave()
    put(master, b"before", topic="U")
    while len(master.store.log.queue.files) < 2:
        put(master, b"x" * 900)
    put(master, b"in the segment", b"beside it", topic="U")
    put(master, b"alone", topic="V")
    while len(master.store.log.queue.files) < 3:
        put(master, b"x" * 900)
    for now in (0, 100):
        Link(master, slave).pump(now)
    drain(slave.store)
    wanted = {topic: slave.store.get(topic, 0, QueueOffset(0)).bodies for topic in "TUV"}
    disk = close(slave)
    disk.remove(sorted(f"commitlog/{name}" for name in disk.list("commitlog"))[1])
    damaged = open_slave(disk)
    assert damaged.store.get("U", 0, QueueOffset(0)).bodies == b"before"
    assert damaged.store.queue_range("U", 0) == (0, 3), "offsets that were given"
    for now in (0, 100):
        Link(master, damaged).pump(now)
        drain(damaged.store)
    assert not damaged.store.dispatcher.refused
    assert {topic: damaged.store.get(topic, 0, QueueOffset(0)).bodies for topic in "TUV"} == wanted


def test_a_master_that_lacks_a_segment_tells_the_slave_that_needs_it() -> None:
    disk = close(several(120))
    names = sorted(name for name in disk._names if name.startswith("commitlog/"))
    disk.remove(names[1])
    master, slave = open_master(disk, nonce=8), open_slave()
    link = Link(master, slave)
    link.pump()
    assert slave.end == int(names[1].rpartition("/")[2])
    link.effects += master.step(masterevents.Tick(), MonoMs(100))
    closed = [effect.reason for effect in link.effects if isinstance(effect, Close)]
    assert closed
    assert f"no segment for offset {slave.end}" in closed[0]


def test_a_silent_master_is_left_and_heartbeats_go_both_ways() -> None:
    master, slave = several(1), open_slave()
    Link(master, slave).pump()
    assert slave.step(Tick(), MonoMs(4999)) == []
    (beat,) = slave.step(Tick(), MonoMs(5000))
    assert isinstance(beat, Send)
    assert beat.data[5] == Kind.ACK
    effects = slave.step(Tick(), MonoMs(20_001))
    assert any(isinstance(effect, CloseStream) for effect in effects)


def test_a_heartbeat_is_due_an_interval_after_the_last_acknowledgement() -> None:
    master, slave = several(1), open_slave()
    link = Link(master, slave, 1000)
    link.pump(3000)
    assert slave.step(Tick(), MonoMs(7999)) == []
    assert len(slave.step(Tick(), MonoMs(8000))) == 1
    assert slave.step(Tick(), MonoMs(12_999)) == []
    assert len(slave.step(Tick(), MonoMs(13_000))) == 1
    assert not any(isinstance(e, CloseStream) for e in slave.step(Tick(), MonoMs(23_000)))
    (closed,) = slave.step(Tick(), MonoMs(23_001))
    assert isinstance(closed, CloseStream), "20 s after the last frame from it"


def test_a_stream_that_would_leave_a_gap_or_lie_over_bytes_is_left() -> None:
    master, slave = several(3), open_slave()
    Link(master, slave).pump()
    end, history = slave.end, slave.history.entries
    for start in (0, end - 1, end + 1):
        slave.step(Connected(), MonoMs(0))
        effects = receive(slave, welcome(start, epochs=history))
        assert [type(effect) for effect in effects] == [CloseStream]
        assert f"the master starts at {start}, but this log ends at {end}" in slave.reason
        assert (slave.state, slave.end) == (ConnectionState.READY, end)


def test_epochs_that_a_welcome_brings_are_on_disk_at_once() -> None:
    """A kill right after it must not leave bytes of an unknown epoch."""
    master = open_master(sync_from_last_file=True)
    while len(master.store.log.queue.files) < 2:
        put(master, b"x" * 3000)
    slave = welcomed(master)
    known = EpochHistory()
    known.load(slave.store.disk)
    assert known.entries == slave.history.entries == master.history.entries
    assert len(known.entries) == 1


def test_barriers_in_the_stream_extend_the_history() -> None:
    disk = close(several(2))
    for nonce in range(5):
        disk = close(open_master(disk, nonce=nonce))
    master, slave = open_master(disk, nonce=77), open_slave()
    Link(master, slave).pump()
    assert slave.history.entries == master.history.entries
    assert len(slave.history.entries) == 7
    known = EpochHistory()
    known.load(slave.store.disk)
    assert known.entries == slave.history.entries, "should retention take the barriers"


@given(st.lists(st.binary(min_size=0, max_size=300), max_size=10))
@settings(max_examples=50)
def test_no_bytes_from_a_master_break_a_slave(noise: list[bytes]) -> None:
    master, slave = several(1), open_slave()
    link = Link(master, slave)
    link.pump()
    before = log_bytes(slave.store)
    for data in noise:
        slave.step(Received(data), MonoMs(0))
        slave.step(Connected(), MonoMs(0))
        slave.step(Received(data), MonoMs(0))
        slave.state = ConnectionState.TRANSFER
        chunk = frames.chunk_frame(slave.epoch, slave.end, 0, np.frombuffer(data, np.uint8))
        slave.step(Received(chunk), MonoMs(0))
    assert log_bytes(slave.store) == before


def test_a_sync_without_an_event_is_acknowledged_at_the_next_tick() -> None:
    master = open_master(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    slave = open_slave()
    link = Link(master, slave)
    link.pump()
    put(master, b"x")
    frame = known(master.next_frame(link.number, MonoMs(0)))
    assert FlushSoon() in slave.step(Received(frame), MonoMs(0)), "the master waits for it"
    flush(slave)
    (told,) = slave.step(Tick(), MonoMs(1))
    assert isinstance(told, Send)
    ack = frames.decode(told.data)
    assert isinstance(ack, Ack)
    assert ack.durable == ack.received == slave.end


def test_nothing_is_acknowledged_before_the_handshake() -> None:
    slave = open_slave()
    assert slave.step(Flushed(), MonoMs(0)) == []


def test_a_master_that_does_not_answer_a_hello_is_left_after_twenty_seconds() -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(30_000))
    assert slave.step(Tick(), MonoMs(50_000)) == []
    (effect,) = slave.step(Tick(), MonoMs(50_001))
    assert isinstance(effect, CloseStream)


def test_a_slave_tells_since_when_it_lacks_something() -> None:
    master, slave = several(1), open_slave()
    link = Link(master, slave)
    link.pump()
    for now in (100, 200):
        beat = Heartbeat(Epoch(1), slave.end + 7 * (now == 200), 0, slave.end)
        assert slave.lag_ms(MonoMs(now + 50)) == 0, "it has all that it was told of"
        slave.step(Received(frames.encode(beat)), MonoMs(now))
    assert slave.lag_bytes == 7
    assert slave.lag_ms(MonoMs(500)) == 300
    assert slave.lag_ms(MonoMs(200)) == 0
    more = Heartbeat(Epoch(1), slave.end + 9, 0, slave.end)
    slave.step(Received(frames.encode(more)), MonoMs(400))
    assert slave.lag_ms(MonoMs(500)) == 300, "since it lacks the first byte, not the last"


def test_the_confirm_offset_of_a_first_welcome_is_known_after_a_kill() -> None:
    first, slave = open_master(role=BrokerRole.ASYNC_MASTER), open_slave()
    put(first, b"x")
    Link(first, slave).pump()
    assert slave.store.known_confirmed == 0
    second = open_master(close(first), nonce=8)
    Link(second, open_slave(name="other")).pump()
    link = Link(second, slave)
    frame = known(second.next_frame(link.number, MonoMs(0)))
    slave.step(Received(frame), MonoMs(0))
    assert open_slave(close(slave)).store.known_confirmed == slave.end > 0


def test_an_elected_node_with_an_older_config_hides_what_it_cannot_prove() -> None:
    first, slave = open_master(), open_slave(role=BrokerRole.AUTO)
    link = Link(first, slave)
    put(first, b"x")
    link.pump()
    put(first, b"y")
    frame = known(first.next_frame(link.number, MonoMs(0)))
    slave.step(Received(frame), MonoMs(0))
    disk = close(slave)
    who = known(identity.load(disk))
    assert who.confirmed_only
    identity.save(disk, replace(who, confirmed_only=False))
    again = open_slave(disk, role=BrokerRole.AUTO)
    assert 0 < again.store.dispatched_offset == again.store.known_confirmed < again.end


def test_epochs_whose_barriers_are_cut_are_forgotten_at_once() -> None:
    disk = close(open_master(role=BrokerRole.ASYNC_MASTER))
    master, slave = open_master(disk, nonce=8, role=BrokerRole.ASYNC_MASTER), open_slave()
    Link(master, slave).pump()
    first, second = slave.history.entries
    slave.step(Connected(), MonoMs(0))
    slave.step(Received(frames.encode(Truncate(Epoch(2), second.start))), MonoMs(0))
    assert slave.end == second.start
    assert slave.history.entries == (first,)
    known = EpochHistory()
    known.load(slave.store.disk)
    assert known.entries == (first,), "on disk, too"


def test_the_truncations_that_a_master_may_request_on_one_connection_are_limited() -> None:
    master, slave = open_master(role=BrokerRole.ASYNC_MASTER), open_slave()
    starts = [put(master, b"x").physical_offset for _ in range(CUTS_MAX + 1)]
    Link(master, slave).pump()
    slave.step(Connected(), MonoMs(0))
    for _ in range(CUTS_MAX):
        assert receive(slave, Truncate(Epoch(1), starts.pop()))[0] == Applied()
    assert receive(slave, Truncate(Epoch(1), starts[0])) == [
        CloseStream(f"invalid truncation to {starts[0]}")
    ]
    slave.step(Connected(), MonoMs(0))
    assert receive(slave, Truncate(Epoch(1), starts[0]))[0] == Applied(), "counted anew"


def test_records_after_the_last_confirmed_one_may_be_truncated() -> None:
    master, slave = open_master(), open_slave()
    put(master, b"confirmed")
    for now in (0, 100):
        Link(master, slave).pump(now)
    confirmed = slave.store.known_confirmed
    assert confirmed == slave.end
    put(master, b"unconfirmed")
    link = Link(master, slave)
    for _ in range(2):  # the welcome, and the record
        frame = known(master.next_frame(link.number, MonoMs(0)))
        slave.step(Received(frame), MonoMs(0))
    assert slave.end > confirmed
    slave.step(Connected(), MonoMs(0))
    assert receive(slave, Truncate(Epoch(1), confirmed))[0] == Applied()
    assert slave.end == confirmed


def test_a_refused_slave_stays_so_however_long_it_hears_nothing() -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(0))
    receive(slave, Refuse(Epoch(1), Refusal.NAME, "why"))
    assert slave.step(Tick(), MonoMs(50_000)) == []
    assert slave.step(Lost("closed"), MonoMs(50_000)) == []
    assert (slave.state, slave.reason) == (ConnectionState.SUSPEND, "NAME: why")


def test_a_slave_acknowledges_what_it_has_on_every_connection() -> None:
    """The master forgets what it received on the last one."""
    master, slave = several(1), open_slave()
    Link(master, slave).pump()
    slave.step(Lost("closed"), MonoMs(0))
    assert (slave.state, slave.reason) == (ConnectionState.READY, "closed")
    slave.step(Connected(), MonoMs(0))
    entries = master.history.entries
    effects = receive(slave, welcome(slave.end, epochs=entries))
    (sent,) = [effect for effect in effects if isinstance(effect, Send)]
    ack = frames.decode(sent.data)
    assert isinstance(ack, Ack)
    assert ack.received == slave.end


def test_an_empty_log_begins_at_a_segments_start() -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(0))
    effects = receive(slave, welcome(100))
    assert effects == [CloseStream("an empty log must start at a segment's start, not at 100")]
    assert slave.state is ConnectionState.READY


def test_an_empty_file_gives_way_to_the_segment_that_the_master_begins_with() -> None:
    master = open_master(sync_from_last_file=True)
    while len(master.store.log.queue.files) < 2:
        put(master, b"x" * 3000)
    disk, last = new_disk(1), master.store.log.queue.files[-1]
    disk.create(f"commitlog/{0:020d}", last.size)
    slave = open_slave(disk)
    assert slave.store.log.queue.files
    Link(master, slave).pump()
    assert slave.state is ConnectionState.TRANSFER, slave.reason
    assert slave.store.log.min_offset == last.start
    assert slave.end == master.store.log.max_offset


@pytest.mark.parametrize("metadata", [b"", b"tables"])
def test_tables_that_come_with_a_welcome_are_adopted(metadata: bytes) -> None:
    slave = open_slave()
    slave.step(Connected(), MonoMs(0))
    effects = receive(slave, welcome(0, metadata=metadata))
    adopted = [effect.metadata for effect in effects if isinstance(effect, Adopt)]
    assert adopted == ([metadata] if metadata else [])


def test_offsets_that_one_master_confirmed_stay_confirmed_under_the_next() -> None:
    master, slave = open_master(), open_slave()
    put(master, b"confirmed")
    for now in (0, 100):
        Link(master, slave).pump(now)
    assert slave.store.known_confirmed == slave.end
    slave.step(Connected(), MonoMs(0))
    entries = master.history.entries
    receive(slave, welcome(slave.end, epochs=entries))
    assert slave.state is ConnectionState.TRANSFER
    assert open_slave(close(slave)).store.known_confirmed == slave.end


def damaged_at(slave: Slave, offset: int) -> Slave:
    """The slave again, after a kill and with a bit of its first segment flipped."""
    disk = close(slave)
    disk._names[f"commitlog/{0:020d}"].seen[offset] ^= 1
    return open_slave(disk)


def test_a_damaged_log_is_cut_where_the_damage_begins_and_nowhere_else() -> None:
    master, slave = several(2), open_slave()
    Link(master, slave).pump()
    damaged = damaged_at(slave, 700)
    assert 0 < damaged.store.log.sound_end <= 700
    end = damaged.end
    damaged.step(Connected(), MonoMs(0))
    entries = master.history.entries
    effects = receive(damaged, welcome(0, epochs=entries))
    assert effects == [CloseStream(f"the master starts at 0, but this log ends at {end}")]
    assert (damaged.end, damaged.truncated_bytes) == (end, 0)


def test_a_master_has_all_below_its_barrier_also_where_the_slave_has_that_barrier() -> None:
    first, slave = open_master(), open_slave()
    at = put(first, b"confirmed").physical_offset
    for now in (0, 100):
        Link(first, slave).pump(now)
    second = open_master(close(first), nonce=8, in_sync_replicas=3)
    Link(second, slave).pump()
    entries = second.history.entries
    assert slave.history.entries == entries
    assert slave.store.known_confirmed == entries[-1].start
    damaged = damaged_at(slave, at + 60)
    damaged.step(Connected(), MonoMs(0))
    receive(damaged, welcome(at, epoch=2, epochs=entries))
    assert damaged.state is ConnectionState.TRANSFER, damaged.reason
    assert damaged.end == at


def test_an_epoch_whose_barrier_is_damaged_is_not_claimed() -> None:
    disk = close(open_master())
    master, slave = open_master(disk, nonce=8), open_slave()
    put(master, b"x")
    Link(master, slave).pump()
    first, second = slave.history.entries
    damaged = damaged_at(slave, second.start + 60)
    assert damaged.store.log.sound_end == second.start
    assert damaged.history.entries == (first, second)
    assert (damaged.hello().end, damaged.hello().epochs) == (second.start, (first,))


def test_a_cut_and_a_reset_that_fail_forget_no_epoch_and_count_for_nothing() -> None:
    disk = close(open_master(role=BrokerRole.ASYNC_MASTER))
    master, slave = open_master(disk, nonce=8, role=BrokerRole.ASYNC_MASTER), open_slave()
    put(master, b"x")
    Link(master, slave).pump()
    drain(slave.store)
    end, (first, second) = slave.end, slave.history.entries
    copy = slave.store.disk
    assert isinstance(copy, SimDisk)
    for frame in (Truncate(Epoch(2), second.start), Reset(Epoch(2), end)):
        slave.step(Connected(), MonoMs(0))
        copy.syncs_to_fail = 1
        with pytest.raises(OSError, match="simulated"):
            receive(slave, frame)
        assert (slave.end, slave.history.entries) == (end, (first, second))
        assert (slave.truncated_bytes, slave.resets) == (0, 0)
    slave.step(Connected(), MonoMs(0))
    receive(slave, Truncate(Epoch(2), second.start))
    assert slave.truncated_bytes == end - second.start


def test_invalid_and_endless_resets_end_the_connection_and_reset_nothing() -> None:
    slave = welcomed(several(1))
    Link(several(1), slave).pump()
    before = log_bytes(slave.store)
    slave.step(Connected(), MonoMs(0))
    effects = slave.step(Received(frames.encode(Reset(Epoch(1), slave.end - 1))), MonoMs(0))
    assert [type(effect) for effect in effects] == [CloseStream]
    assert log_bytes(slave.store) == before
    slave.step(Connected(), MonoMs(0))
    beyond = frames.encode(Reset(Epoch(1), slave.end))
    for _ in range(CUTS_MAX):
        effects = slave.step(Received(beyond), MonoMs(0))
        assert not any(isinstance(effect, CloseStream) for effect in effects)
    effects = slave.step(Received(beyond), MonoMs(0))
    assert [type(effect) for effect in effects] == [CloseStream]
    slave.step(Connected(), MonoMs(0))
    effects = slave.step(Received(beyond), MonoMs(0))
    assert not any(isinstance(effect, CloseStream) for effect in effects), "counted anew"
    assert slave.resets == CUTS_MAX + 1


def test_validate_reports_an_inconsistent_slave() -> None:
    master, slave = open_master(), open_slave()
    put(master, b"x")
    Link(master, slave).pump()
    assert slave.validate() == ""
    slave._acked = (slave.end + 1, 0)
    assert slave.validate() == f"acknowledged {slave.end + 1}, its log ends at {slave.end}"
    slave._acked, slave._ack_durable = (slave.end, slave.end), True
    assert slave.validate().startswith(f"acknowledged {slave.end} as durable, ")
    slave.identity = replace(slave.identity, promised_epoch=Epoch(slave.epoch + 1))
    assert slave.validate() == f"follows epoch {slave.epoch}, promised {slave.epoch + 1}"
    slave.state = ConnectionState.READY
    assert slave.validate() == ""


def test_an_empty_slave_acknowledges_the_beginning_of_a_log_whose_first_segments_expired() -> None:
    slave = open_slave()
    Link(open_master(), slave)
    receive(slave, welcome(3 * slave.store.log.queue.file_size, ack_durable=True))
    assert slave.end == 0
    assert slave.state is ConnectionState.TRANSFER
    assert slave.validate() == ""
