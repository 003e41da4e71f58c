"""Every log of a slave leads to a defined answer."""

import zlib
from typing import Any, TypeVar

import pytest

from duolog_server.ha import frames, masterevents
from duolog_server.ha.epochs import Epoch, EpochEntry, EpochHistory
from duolog_server.ha.frames import Refusal, Refuse, Reset, Truncate, Welcome
from duolog_server.ha.handshake import TAIL_BYTES, tail_crc, tail_of
from duolog_server.ha.master import Master
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import CloseStream, Connected, Received
from duolog_server.store.clocks import MonoMs
from duolog_server.store.offsets import PhyOffset
from tests.ha.pair import Link, close, hello_of, log_bytes, open_master, open_slave, put
from tests.known import known
from tests.support import drain

Kind = TypeVar("Kind", Welcome, Reset, Refuse)


def answer_to(master: Master, slave: Slave, kind: type[Kind], **changes: Any) -> Kind:
    """What the master says to the slave's Hello, with changes; of a kind."""
    number = known(master.connect(MonoMs(0)))
    master.step(masterevents.Received(number, frames.encode(hello_of(slave, **changes))), MonoMs(0))
    data = known(master.next_frame(number, MonoMs(0)))
    master.step(masterevents.Disconnected(number), MonoMs(0))
    found = frames.decode(data)
    assert isinstance(found, kind)
    return found


def filled(master: Master, segments: int = 3) -> Master:
    while len(master.store.log.queue.files) < segments:
        put(master, b"x" * 1000, b"y" * 2000)
    drain(master.store)
    return master


def alike(segments: int = 1) -> tuple[Master, Slave]:
    """A master with so many segments, and a slave that has all of them."""
    master, slave = filled(open_master(), segments), open_slave()
    Link(master, slave).pump()
    return master, slave


def test_an_empty_slave_begins_with_the_first_segment() -> None:
    master = filled(open_master())
    assert answer_to(master, open_slave(), Welcome).start == 0


def test_an_empty_slave_begins_with_the_newest_segment_if_configured() -> None:
    master, slave = filled(open_master(sync_from_last_file=True)), open_slave()
    link = Link(master, slave)
    link.pump()
    assert slave.state is ConnectionState.TRANSFER
    last = master.store.log.queue.files[-1].start
    assert slave.store.log.min_offset == last > 0
    assert log_bytes(slave.store) == log_bytes(master.store)[last:]
    assert slave.history.entries == master.history.entries, "epochs of what it does not hold, too"


def test_an_empty_slave_of_a_master_that_lost_its_first_segments() -> None:
    master, slave = filled(open_master()), open_slave()
    master.store.log.queue.remove(master.store.log.queue.files[0])
    Link(master, slave).pump()
    assert slave.store.log.min_offset == master.store.log.min_offset > 0
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_a_prefix_goes_on_at_its_end() -> None:
    master, slave = alike()
    end = slave.end
    put(master, b"more")
    assert answer_to(master, slave, Welcome).start == end


def test_the_tail_of_a_log_lies_in_the_segment_that_it_ends_in() -> None:
    """The master compares it with one of its segments: it has no byte of the previous one."""
    master, slave = alike(2)
    first, last = slave.store.log.queue.files
    while slave.end - last.start > 2000:  # further in, the tail's own length keeps it inside
        slave.store.truncate(
            PhyOffset(max(o for o in range(last.start, slave.end) if boundary(slave, o)))
        )
    assert last.start < slave.end
    crc = zlib.crc32(log_bytes(slave.store)[last.start :])
    assert tail_of(slave.store.log, slave.end) == (last.start, crc)
    assert tail_of(slave.store.log, first.end)[0] == first.end - 4096
    assert answer_to(master, slave, Welcome).start == slave.end


def boundary(slave: Slave, offset: int) -> bool:
    return slave.store.log.is_boundary(offset) and offset < slave.end


def test_the_tail_of_an_empty_log_has_no_bytes_and_crc_0() -> None:
    """As with any log that has no byte before its end: a Hello says the same with and without."""
    slave = open_slave()
    assert tail_of(slave.store.log, 0) == (0, 0)
    assert (hello_of(slave).tail_start, hello_of(slave).tail_crc) == (0, 0)
    log = open_master().store.log
    assert tail_of(log, log.min_offset) == (0, 0)


def test_a_slave_beyond_the_masters_end_is_truncated_where_the_histories_diverge() -> None:
    """The master lost what it had not synced, and wrote something else since."""
    master, slave = open_master(), open_slave()
    put(master, b"kept")
    Link(master, slave).pump()
    parted = master.store.log.max_offset
    lost = [put(master, b"lost %d" % k) for k in range(9)]
    slave.identity = slave.identity.__class__("s", 2)  # nothing was confirmed to anybody
    link = Link(master, slave)
    slave._promise = False
    link.pump()
    assert slave.end == lost[-1].end_offset
    disk = close(master)
    names = [name for name in disk._names if name.startswith("commitlog/")]
    disk._names[names[0]].seen[parted:] = 0
    again = open_master(disk, nonce=8)
    slave.identity = slave.identity.__class__("s", 2)
    slave.store.replicated_offset = None
    second = Link(again, slave)
    second.pump()
    assert slave.truncated_bytes == lost[-1].end_offset - parted
    assert log_bytes(slave.store) == log_bytes(again.store)
    assert slave.history.entries == again.history.entries


def test_a_slave_below_the_masters_minimum_starts_anew() -> None:
    master, slave = alike()
    behind = slave.end
    filled(master, 4)
    for mapped in master.store.log.queue.files[:2]:
        master.store.log.queue.remove(mapped)
    assert behind < master.store.log.min_offset
    answer_to(master, slave, Reset)
    Link(master, slave).pump()
    assert slave.resets == 1
    assert slave.store.log.min_offset == master.store.log.min_offset
    assert log_bytes(slave.store) == log_bytes(master.store)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "other"}, Refusal.CLUSTER),
        ({"group": "other"}, Refusal.CLUSTER),
        ({"node": ""}, Refusal.NAME),
        ({"node": "m"}, Refusal.NAME),
        ({"segment_bytes": 1 << 30}, Refusal.SEGMENT_SIZE),
        ({"promised": 2}, Refusal.NEWER_EPOCH),
        ({"tail_crc": 1}, Refusal.LINEAGE),
        ({"epochs": (EpochEntry(Epoch(1), 0, 8),)}, Refusal.LINEAGE),
        ({"epochs": ()}, Refusal.LINEAGE),
    ],
)
def test_a_peer_that_does_not_belong_here_is_refused_with_the_reason(
    changes: dict[str, Any], code: Refusal
) -> None:
    master, slave = alike()
    master.refusals.clear()
    assert answer_to(master, slave, Refuse, **changes).code is code
    if code is not Refusal.CLUSTER and changes.get("node") != "":
        assert any(code.name in row.reason for row in master.rows(MonoMs(0))), "shown in status"


def test_a_slave_that_ends_where_the_master_begins_goes_on_there() -> None:
    """The master cannot compare bytes that it no longer holds."""
    master, slave = alike(3)
    end = master.store.log.queue.files[0].end
    master.store.log.queue.remove(master.store.log.queue.files[0])
    said = {"end": end, "durable": 0, "tail_start": end - 100, "tail_crc": 1}
    assert answer_to(master, slave, Welcome, **said).start == end == master.store.log.min_offset


def test_a_log_without_epochs_is_not_reset_for_a_master_that_lacks_its_bytes() -> None:
    """Both may begin with bytes of before the first epoch, which need not be the same."""
    master, slave = alike(3)
    master.store.log.queue.remove(master.store.log.queue.files[0])
    begin = master.store.log.min_offset
    master.history = EpochHistory((EpochEntry(Epoch(1), begin + 1, 7),))
    answer = answer_to(
        master, slave, Refuse, end=begin - 100, durable=0, tail_start=begin - 200, epochs=()
    )
    assert answer.code is Refusal.LINEAGE
    assert "have no epoch" in answer.reason


def test_as_many_last_bytes_are_compared_as_a_slave_tells_of() -> None:
    master, slave = alike(2)
    end = slave.store.log.before_blank(slave.store.log.queue.files[0].end)
    start, crc = tail_of(slave.store.log, end)
    assert end - start == TAIL_BYTES
    said = {"end": end, "durable": 0, "tail_start": start}
    answer_to(master, slave, Welcome, tail_crc=crc, **said)
    assert answer_to(master, slave, Refuse, tail_crc=crc ^ 1, **said).code is Refusal.LINEAGE


@pytest.mark.parametrize("in_blank", [True, False])
def test_other_bytes_before_a_segments_end_are_cut_for_an_epochs_blank_only(in_blank: bool) -> None:
    """Either a blank without an epoch after it, or an epoch without a blank before the end."""
    master, slave = alike(2)
    log = slave.store.log
    opens = log.queue.files[0].end
    blank = log.before_blank(opens)
    assert opens - blank > 4
    if not in_blank:
        master.history.open(EpochEntry(Epoch(2), opens, 8))
    end = opens - 4 if in_blank else blank
    said = {"end": end, "durable": 0, "tail_start": end - 50, "tail_crc": 1}
    assert answer_to(master, slave, Refuse, **said).code is Refusal.LINEAGE


def test_a_slave_in_mid_record_is_refused() -> None:
    master, slave = alike()
    end = slave.end - 7
    start = end - 100
    found = known(tail_crc(master.store.log, start, end))
    said = {"end": end, "durable": 0, "tail_start": start, "tail_crc": found}
    assert answer_to(master, slave, Refuse, **said).code is Refusal.MID_RECORD


def test_a_refused_slave_is_suspended_and_says_why() -> None:
    master, slave = filled(open_master(), 1), open_slave()
    stranger = open_slave(name="m")
    link = Link(master, stranger)
    link.pump()
    assert stranger.state is ConnectionState.SUSPEND
    assert "NAME" in stranger.reason
    assert slave.state is ConnectionState.READY


def test_a_truncation_below_what_was_confirmed_is_refused_by_the_slave() -> None:
    """I6: a loss is detected, never hidden."""
    master, slave = open_master(), open_slave()
    put(master, b"confirmed")
    link = Link(master, slave)
    link.pump(0)
    link.pump(100)  # the heartbeat that carries the confirm offset
    assert slave.store.replicated_offset == master.store.log.max_offset
    before = log_bytes(slave.store)
    other = open_master(nonce=99)  # another disk: the operator restored a wrong one
    put(other, b"something else")
    other.history = EpochHistory((EpochEntry(Epoch(1), 0, 7), EpochEntry(Epoch(2), 100, 99)))
    other.epoch = Epoch(2)
    Link(other, slave).pump()
    assert slave.state is ConnectionState.SUSPEND
    assert "confirmed" in slave.reason
    assert log_bytes(slave.store) == before


def test_invalid_truncations_end_the_connection_and_truncate_nothing() -> None:
    _, slave = alike()
    before = log_bytes(slave.store)
    for end in (0, slave.end, slave.end + 5, slave.end - 3):
        slave.store.replicated_offset = PhyOffset(0)
        slave.store.checkpoint.confirm_phy_offset = 0
        slave.step(Connected(), MonoMs(0))
        effects = slave.step(Received(frames.encode(Truncate(Epoch(1), end))), MonoMs(0))
        assert any(isinstance(effect, CloseStream) for effect in effects)
    slave.step(Connected(), MonoMs(0))
    effects = slave.step(Received(frames.encode(Reset(Epoch(1), slave.end - 1))), MonoMs(0))
    assert any(isinstance(effect, CloseStream) for effect in effects)
    assert log_bytes(slave.store) == before
