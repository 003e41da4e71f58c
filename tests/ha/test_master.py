"""The master accepts nothing impossible: what counts, what is released, what is refused."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha import frames, identity, masterevents
from duolog_server.ha.epochs import Epoch, EpochHistory
from duolog_server.ha.frames import Ack, Refusal, Refuse
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Close
from duolog_server.ha.options import AckMode, HaOptions
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Lost
from duolog_server.ha.waiters import Release
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from duolog_server.store.status import BrokerRole, FlushDiskType, PutMessageStatus, RunningFlags
from sim.disk import SimDisk
from tests.ha.pair import (
    NOW,
    Link,
    ack,
    close,
    flush,
    hello_of,
    log_bytes,
    mandate_of,
    new_master,
    open_master,
    open_slave,
    put,
)
from tests.known import known
from tests.support import drain


def followed(**how: Any) -> tuple[Master, Link]:
    """A master, and a slave that has all of it."""
    master = open_master(**how)
    link = Link(master, open_slave())
    link.pump()
    assert master.store.replicated_offset == master.store.log.max_offset
    return master, link


M, S = Replica("m", 1), Replica("s", 2)


def elected(*members: Replica, deadline: int = 1 << 60, **how: Any) -> Master:
    """An elected master with a SyncStateSet, and its epoch open."""
    return open_master(mandate=mandate_of(*members, deadline=deadline), **how)


def confirmed(master: Master) -> int:
    """What replicas have confirmed."""
    found = known(master.store.replicated_offset)
    return found


def test_a_put_is_released_when_the_slave_has_it_and_not_before() -> None:
    master, link = followed()
    result = put(master, b"x")
    assert master.await_slaves(result.end_offset, MonoMs(0), "token") is None
    assert confirmed(master) < result.end_offset
    assert master.store.confirm_offset < result.end_offset, "readers wait as well"
    link.pump()
    assert link.released == ["token"]
    assert master.store.confirm_offset == result.end_offset
    assert master.push2slave_max_offset == result.end_offset
    assert master.step(masterevents.Flushed(), MonoMs(0)) == [], "told once"


def test_validate_reports_unconfirmed_offsets_and_unanswered_puts() -> None:
    master, _ = followed()
    assert master.validate(MonoMs(0)) == ""
    end = put(master, b"x").end_offset
    master.group_transfer.put_request(end, MonoMs(0), "token")
    assert master.validate(MonoMs(0)) == ""
    (session,) = master.sessions.values()
    session.received = end
    assert master.validate(MonoMs(0)).startswith(f"enough replicas hold {end}")
    master.store.confirm(end)
    assert master.validate(MonoMs(0)) == f"a put up to {end} waits, {end} is confirmed"
    (release,) = master.group_transfer.notify_transfer_some(end)
    assert release.tokens == ["token"]
    assert master.validate(MonoMs(0)) == ""


def test_a_master_that_may_confirm_nothing_has_nothing_to_confirm() -> None:
    master = elected(M)
    assert confirmed(master) == 0
    assert master.validate(MonoMs(0)).startswith("enough replicas hold")
    late = elected(M, deadline=5)
    assert late.validate(MonoMs(4)).startswith("enough replicas hold")
    assert late.validate(MonoMs(5)) == ""
    alone = open_master(role=BrokerRole.ASYNC_MASTER)
    put(alone, b"x")
    assert alone.validate(MonoMs(0)) == ""


def test_a_put_that_replicas_have_already_does_not_wait() -> None:
    master, link = followed()
    result = put(master, b"x")
    link.pump()
    for end in (result.end_offset, result.physical_offset):
        assert master.await_slaves(end, MonoMs(0), "token") is PutMessageStatus.PUT_OK
    assert master.await_slaves(result.end_offset + 1, MonoMs(0), "token") is None


def test_an_epoch_is_confirmed_once_its_barrier_is() -> None:
    master = open_master()
    assert not master.epoch_confirmed
    link = Link(master, open_slave())
    link.pump()
    assert confirmed(master) == master.barrier_end == master.store.log.max_offset
    assert master.epoch_confirmed


def test_an_epoch_opens_whatever_clients_may_send() -> None:
    assert open_master(max_message_size=1).opened


def test_an_epoch_is_newer_than_all_that_were_written_or_promised() -> None:
    master = open_master(number=5)
    for number in (4, 5):
        with pytest.raises(StoreError, match=f"epoch {number} is not newer"):
            master.open_epoch(8, NOW, Epoch(number))
    master.open_epoch(8, NOW)
    assert master.epoch == 6
    master.identity = identity.promise(master.store.disk, master.identity, Epoch(9))
    with pytest.raises(StoreError, match="epoch 8 is not newer"):
        master.open_epoch(9, NOW, Epoch(8))
    master.open_epoch(9, NOW, Epoch(9))
    assert master.epoch == master.identity.promised_epoch == 9
    master.identity = identity.promise(master.store.disk, master.identity, Epoch(11))
    master.open_epoch(10, NOW)
    assert [entry.epoch for entry in master.history.entries] == [5, 6, 9, 12]


def test_the_identity_of_a_mastership_survives_a_kill() -> None:
    for role, confirmed_only in ((BrokerRole.SYNC_MASTER, True), (BrokerRole.ASYNC_MASTER, False)):
        master = open_master(role=role)
        assert identity.load(master.store.disk) == master.identity
        assert (master.identity.promised_epoch, master.identity.confirmed_only) == (
            (1, confirmed_only)
        )
        history = EpochHistory()
        history.load(master.store.disk)
        assert history.entries == master.history.entries
        master.renew(77)
        found = known(identity.load(master.store.disk))
        assert found.incarnation == master.identity.incarnation == 77


def test_an_epoch_whose_barrier_cannot_be_stored_is_not_opened() -> None:
    master = open_master()
    before = master.history.entries
    master.store.flags.set(RunningFlags.DISK_FULL)
    with pytest.raises(StoreError, match=r"cannot open an epoch.*DISK_FULL"):
        master.open_epoch(8, NOW)
    assert (master.epoch, master.history.entries) == (1, before)


def test_a_master_that_has_not_begun_serves_no_slave() -> None:
    master = new_master(close(open_master()))
    assert master.connect(MonoMs(0)) is None
    assert not master.epoch_confirmed
    told = (master.epoch, master.barrier_end, master.push2slave_max_offset, master.violations)
    assert told == (1, 0, 0, 0)
    master.open_epoch(8, NOW)
    assert master.connect(MonoMs(0)) is not None


def test_puts_of_an_async_master_do_not_wait_for_slaves() -> None:
    master = open_master(role=BrokerRole.ASYNC_MASTER)
    end = put(master, b"x").end_offset
    assert master.await_slaves(end, MonoMs(0), "token") is PutMessageStatus.PUT_OK
    assert master.store.confirm_offset == end
    assert master.step(masterevents.Flushed(), MonoMs(0)) == []


@pytest.mark.parametrize(
    ("mode", "flush_disk_type", "durable"),
    [
        (AckMode.AUTO, FlushDiskType.ASYNC_FLUSH, False),
        (AckMode.AUTO, FlushDiskType.SYNC_FLUSH, True),
        (AckMode.DURABLE, FlushDiskType.ASYNC_FLUSH, True),
        (AckMode.RECEIVED, FlushDiskType.SYNC_FLUSH, False),
    ],
)
def test_received_bytes_count_unless_durable_ones_are_required(
    mode: AckMode, flush_disk_type: FlushDiskType, durable: bool
) -> None:
    master = open_master(ack=mode, flush_disk_type=flush_disk_type)
    assert master.ack_durable is durable
    link = Link(master, open_slave())
    master.next_frame(link.number, MonoMs(0))  # the welcome
    master.next_frame(link.number, MonoMs(0))
    end = master.store.log.max_offset
    ack(master, link.number, end)
    assert master.push2slave_max_offset == (0 if durable else end)


# -- an elected master -----------------------------------------------------------------------------


def test_an_elected_master_takes_puts_while_enough_of_its_set_are_connected() -> None:
    master = elected(M, S)
    assert master.refusal() == "1 of 2 required replicas are in sync"
    link = Link(master, open_slave())
    assert not link.closed, "who holds nothing lacks nothing, as nothing is confirmed"
    link.pump()
    assert master.refusal() == ""
    master.step(masterevents.Instructed(mandate_of(M, S, opened=False)), MonoMs(0))
    assert "the group has just been formed" in master.refusal()
    wider = elected(M, S, Replica("t", 3), in_sync_replicas=3)
    Link(wider, open_slave()).pump()
    assert wider.refusal() == "2 of 3 required replicas are in sync"


def test_a_replica_outside_the_set_confirms_nothing_of_an_elected_master() -> None:
    master = elected(M, Replica("other", 3))
    link = Link(master, open_slave())
    link.pump()
    assert master.held_by(S) == master.store.log.max_offset
    assert master.refusal() == "1 of 2 required replicas are in sync"
    end = put(master, b"x").end_offset
    assert master.await_slaves(end, MonoMs(0), "token") is None
    link.pump()
    assert link.released == []
    assert confirmed(master) == 0


def test_the_puts_of_an_elected_master_wait_for_its_set() -> None:
    master = elected(M, S)
    link = Link(master, open_slave())
    assert not master.epoch_confirmed
    link.pump()
    assert master.epoch_confirmed
    end = put(master, b"x").end_offset
    assert master.await_slaves(end, MonoMs(0), "token") is None
    assert confirmed(master) < end
    link.pump()
    assert link.released == ["token"]
    assert confirmed(master) == end


def test_an_elected_master_that_is_its_whole_set_confirms_by_itself_until_its_lease_ends() -> None:
    master = elected(M, in_sync_replicas=1, deadline=100)
    end = put(master, b"x").end_offset
    assert master.await_slaves(end, MonoMs(99), "token") is PutMessageStatus.PUT_OK
    assert confirmed(master) == end
    late = put(master, b"late").end_offset
    assert master.await_slaves(late, MonoMs(100), "token") is None
    assert confirmed(master) == end


def test_a_replica_that_joins_the_set_holds_the_beginning_of_this_epoch() -> None:
    master, other = elected(M, S), Replica("t", 2)
    link = Link(master, open_slave(name="t"))
    master.next_frame(link.number, MonoMs(0))  # the welcome
    ack(master, link.number, 0)
    assert confirmed(master) == 0
    assert master.held_by(other) < master.join_floor == master.barrier_end
    Link(master, link.slave).pump()
    assert master.held_by(other) == master.join_floor


def refused(master: Master, slave: Slave, **changes: Any) -> Refuse | None:
    """What a slave's Hello is refused for; None where it is not."""
    number = known(master.connect(MonoMs(0)))
    master.step(masterevents.Received(number, frames.encode(hello_of(slave, **changes))), MonoMs(0))
    answer = known(master.next_frame(number, MonoMs(0)))
    found = frames.decode(answer)
    return found if isinstance(found, Refuse) else None


def test_a_member_must_come_back_with_all_that_is_confirmed() -> None:
    master = elected(M, S)
    link = Link(master, open_slave())
    link.pump()
    early = open_slave(link.slave.store.disk.copied())  # type: ignore[attr-defined]
    assert refused(master, early) is None, "it holds exactly what is confirmed"
    Link(master, link.slave).pump()
    put(master, b"x")
    again = Link(master, link.slave)
    again.pump()
    refuse = known(refused(master, early))
    assert refuse.code is Refusal.OLDER_COPY
    assert f"holds the log only up to {early.end}" in refuse.reason
    while len(master.store.log.queue.files) < 3:
        put(master, b"x" * 3000)
    again = Link(master, link.slave)
    again.pump()
    drain(master.store)
    master.store.log.queue.remove(master.store.log.queue.files[0])
    refuse = known(refused(master, early))
    assert "holds the log only up to 0" in refuse.reason, "nothing of it is left here"


def test_a_put_that_waits_too_long_times_out_and_stays_stored() -> None:
    master, _ = followed(slave_timeout=100)
    result = put(master, b"x")
    assert master.await_slaves(result.end_offset, MonoMs(0), "token") is None
    assert master.step(masterevents.Tick(), MonoMs(99)) == []
    assert master.step(masterevents.Tick(), MonoMs(100)) == [
        Release(["token"], PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
    ]
    assert master.step(masterevents.Tick(), MonoMs(101)) == []


def test_without_a_slave_in_sync_no_put_waits() -> None:
    master = open_master()
    result = put(master, b"x")
    status = master.await_slaves(result.end_offset, MonoMs(0), "token")
    assert status is PutMessageStatus.SLAVE_NOT_AVAILABLE
    assert master.step(masterevents.Flushed(), MonoMs(0)) == []
    assert master.store.confirm_offset < result.end_offset, "nor is it shown to readers"


def test_a_slave_that_fell_far_behind_does_not_count() -> None:
    master, _ = followed(ha_slave_fallbehind_max=4000)
    first = put(master, b"x" * 1000)
    assert master.await_slaves(first.end_offset, MonoMs(0), "a") is None
    last = put(master, b"x" * 3500)
    assert master.in_sync() == 1
    assert (
        master.await_slaves(last.end_offset, MonoMs(0), "b") is PutMessageStatus.SLAVE_NOT_AVAILABLE
    )


def test_too_few_in_sync_replicas_refuse_puts() -> None:
    master = open_master(in_sync_replicas=2, min_in_sync_replicas=2)
    assert "1 of 2" in master.refusal()
    Link(master, open_slave()).pump()
    assert master.refusal() == ""
    assert open_master(role=BrokerRole.ASYNC_MASTER, min_in_sync_replicas=2).refusal() == ""


def test_the_least_of_those_needed_confirms_not_the_fastest() -> None:
    master = open_master(in_sync_replicas=3)
    first, second = Link(master, open_slave(name="s1")), Link(master, open_slave(name="s2"))
    first.pump()
    second.pump()
    result = put(master, b"x")
    assert master.await_slaves(result.end_offset, MonoMs(0), "token") is None
    first.pump()
    assert first.released == []
    assert master.push2slave_max_offset == result.end_offset
    assert master.store.confirm_offset < result.end_offset
    second.pump()
    assert second.released == ["token"]


def test_two_connections_of_one_slave_count_once() -> None:
    master = open_master(in_sync_replicas=3)
    slave = open_slave()
    first = Link(master, slave)
    first.pump()
    number = known(master.connect(MonoMs(0)))
    effects = master.step(masterevents.Received(number, frames.encode(slave.hello())), MonoMs(0))
    assert [effect for effect in effects if isinstance(effect, Close)], "the older one is ended"
    master.next_frame(number, MonoMs(0))
    ack(master, number, slave.end)
    assert master.in_sync() == 2
    assert confirmed(master) < master.store.log.max_offset


def test_a_slave_that_disconnects_does_not_lower_what_is_confirmed() -> None:
    master, link = followed()
    put(master, b"x")
    link.pump()
    before = master.store.confirm_offset
    master.step(masterevents.Disconnected(link.number), MonoMs(0))
    put(master, b"y")
    master.step(masterevents.Flushed(), MonoMs(0))
    assert master.store.confirm_offset == before
    again = Link(master, link.slave)
    assert master.store.confirm_offset == before
    again.pump()
    assert master.store.confirm_offset == master.store.log.max_offset


def test_durable_acknowledgements_count_only_what_the_disk_has() -> None:
    master, link = followed(ack="durable")
    master.ack_durable = True
    result = put(master, b"x")
    assert master.next_frame(link.number, MonoMs(0)) is not None
    ack(master, link.number, result.end_offset, 0)
    assert master.store.confirm_offset < result.end_offset
    ack(master, link.number, result.end_offset, result.end_offset)
    assert master.store.confirm_offset == result.end_offset


def test_under_sync_flush_the_masters_own_disk_counts_too() -> None:
    master = open_master(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert master.ack_durable
    link = Link(master, open_slave())
    link.pump()
    flush(master)
    master.step(masterevents.Flushed(), MonoMs(0))
    result = put(master, b"x")
    link.pump()
    assert link.slave.store.flushed_offset == result.end_offset
    assert master.store.confirm_offset < result.end_offset
    flush(master)
    master.step(masterevents.Flushed(), MonoMs(0))
    assert master.store.confirm_offset == result.end_offset


@pytest.mark.parametrize(
    "changes",
    [
        {"received": 1 << 62},
        {"received": 10_000_000, "durable": 0},
        {"received": 0},
        {"durable": 1 << 40},
        {"epoch": 0},
        {"epoch": 2},
        {"epoch": 1 << 63},
        {"node": "other"},
        {"incarnation": 3},
    ],
)
def test_an_acknowledgement_that_cannot_be_ends_the_connection_and_moves_nothing(
    changes: dict[str, int],
) -> None:
    master, link = followed()
    end = put(master, b"x").end_offset
    master.next_frame(link.number, MonoMs(0))
    before = master.store.replicated_offset, master.push2slave_max_offset
    received = changes.pop("received", end)
    durable = changes.pop("durable", 0)
    effects = ack(master, link.number, received, durable, **changes)
    assert [type(effect) for effect in effects] == [Close]
    assert (master.store.replicated_offset, master.push2slave_max_offset) == before
    assert master.violations == 1
    assert link.number not in master.sessions


def test_an_acknowledgement_of_what_was_never_sent_moves_nothing() -> None:
    """Any offset in the log is plausible; only bytes that were sent to this slave count."""
    master, link = followed()
    end = put(master, b"x").end_offset  # not sent yet
    assert isinstance(ack(master, link.number, end)[0], Close)
    assert confirmed(master) < end


def test_frames_before_hello_and_twice_are_out_of_turn() -> None:
    master = open_master()
    number = known(master.connect(MonoMs(0)))
    assert master.next_frame(number, MonoMs(0)) is None, "nor is anything said to a stranger"
    for ack_of in (Ack(Epoch(1), 0, 0, "s", 2), Ack(Epoch(1), 0, 0, "", 0)):
        number = known(master.connect(MonoMs(0)))
        effects = master.step(masterevents.Received(number, frames.encode(ack_of)), MonoMs(0))
        assert effects == [Close(number, "bad acknowledgement: before the handshake")]
        master.step(masterevents.Disconnected(number), MonoMs(0))  # as its owner does then
    assert master.in_sync() == 1
    slave = open_slave()
    link = Link(master, slave)
    link.pump()
    link.to_master(frames.encode(slave.hello()))
    assert "out of order" in link.closed


@given(st.lists(st.binary(max_size=120), max_size=20), st.integers(0, 1 << 32))
def test_no_bytes_from_a_peer_move_the_confirm_offset(noise: list[bytes], seed: int) -> None:
    """A million frames more in tests/fuzz; here they are shrunk."""
    master, link = followed()
    put(master, b"x")
    before = master.store.replicated_offset
    chance = random.Random(seed)
    for data in noise:
        good = bytearray(
            frames.encode(
                Ack(Epoch(1), chance.randint(0, 1 << 40), chance.randint(0, 1 << 40), "s", 2)
            )
        )
        good[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        for piece in (data, bytes(good)):
            number = known(master.connect(MonoMs(0)))
            master.step(masterevents.Received(number, piece), MonoMs(0))
            master.step(masterevents.Received(link.number, piece), MonoMs(0))
            master.step(masterevents.Disconnected(number), MonoMs(0))
    assert master.store.replicated_offset == before


def test_connections_to_silent_slaves_and_strangers_are_closed() -> None:
    master, link = followed(ha_housekeeping_interval=100)
    stranger = master.connect(MonoMs(50))
    assert master.step(masterevents.Tick(), MonoMs(100)) == []
    effects = master.step(masterevents.Tick(), MonoMs(101))
    assert [effect.session for effect in effects if isinstance(effect, Close)] == [link.number]
    assert [
        e.session for e in master.step(masterevents.Tick(), MonoMs(151)) if isinstance(e, Close)
    ] == [stranger]
    assert master.in_sync() == 1


def test_heartbeats_keep_an_idle_connection_and_carry_the_confirm_offset() -> None:
    master, link = followed(ha_send_heartbeat_interval=100)
    link.pump(50)
    assert master.next_frame(link.number, MonoMs(60)) is None
    assert 0 < master.wait_ms(link.number, MonoMs(60)) <= 100
    link.pump(151)
    assert link.slave.store.replicated_offset == master.store.replicated_offset
    assert not link.closed


def test_a_heartbeat_is_sent_exactly_when_wait_ms_has_elapsed() -> None:
    """Otherwise an owner that waited as told would find nothing to send, wait 0 ms, and spin."""
    master, link = followed(ha_send_heartbeat_interval=100)
    link.pump(50)
    due = 50 + master.wait_ms(link.number, MonoMs(50))
    assert master.next_frame(link.number, MonoMs(due - 1)) is None
    assert master.wait_ms(link.number, MonoMs(due)) == 0
    assert master.next_frame(link.number, MonoMs(due)) is not None
    assert master.wait_ms(link.number, MonoMs(due)) == 100


def test_the_confirm_offset_of_a_welcome_is_not_sent_again() -> None:
    master, link = followed(ha_send_heartbeat_interval=100)
    again = Link(master, link.slave, 40)
    assert master.next_frame(again.number, MonoMs(50)) is not None
    assert master.wait_ms(again.number, MonoMs(50)) == 100


def test_no_more_than_the_window_is_sent_unacknowledged_but_a_large_record_gets_through() -> None:
    master = open_master(ha_transfer_batch_size=1024, ha_in_flight_max=2049)
    slave = open_slave()
    link = Link(master, slave)
    for _ in range(20):
        put(master, b"x" * 300)
    master.next_frame(link.number, MonoMs(0))  # the welcome
    sent = 0
    while (frame := master.next_frame(link.number, MonoMs(0))) is not None:
        sent += len(frame) - frames.HEADER_BYTES
    assert sent == 2049, "to the last byte of the window"
    beat = master.options.ha_send_heartbeat_interval
    assert master.wait_ms(link.number, MonoMs(0)) == beat, "until the slave says something"
    master.step(masterevents.Disconnected(link.number), MonoMs(0))
    put(master, b"y" * 4000)
    again = Link(master, slave)
    again.pump()
    assert log_bytes(slave.store) == log_bytes(master.store)


def test_a_byte_rate_is_kept() -> None:
    master = open_master(max_ha_transfer_byte_in_second=100_000, ha_transfer_batch_size=1024)
    link = Link(master, open_slave())
    for _ in range(10):
        put(master, b"x" * 1000)
    link.pump(0)
    assert master.wait_ms(link.number, MonoMs(0)) == 5, "then the confirm offset is told"
    link.pump(5)
    assert master.wait_ms(link.number, MonoMs(5)) == 6, "1024 bytes take 11 ms"
    now = 0
    while link.slave.end < master.store.log.max_offset:
        link.pump(now)
        now += max(1, master.wait_ms(link.number, MonoMs(now)))
    assert now >= 1000 * (master.store.log.max_offset - 2048) / 100_000
    link.pump(now)
    beat = master.options.ha_send_heartbeat_interval
    assert master.wait_ms(link.number, MonoMs(now)) == beat, "nothing is left to be sent"


def test_a_slave_truncates_bytes_that_were_never_confirmed() -> None:
    master, link = followed()
    disk = master.store.disk
    assert isinstance(disk, SimDisk)
    before = disk.copied()
    put(master, b"x")
    link.pump()
    again = Link(open_master(before, number=2), link.slave)
    again.pump()
    assert link.slave.truncated_bytes > 0
    assert log_bytes(link.slave.store) == log_bytes(again.master.store)


def test_a_slave_whose_next_segment_was_removed_must_reconnect() -> None:
    master, link = followed()
    while len(master.store.log.queue.files) < 3:
        put(master, b"x" * 3000)
    drain(master.store)
    master.store.log.queue.remove(master.store.log.queue.files[0])
    assert master.next_frame(link.number, MonoMs(10)) is not None, (
        "a heartbeat: nothing can be sent"
    )
    (effect,) = master.step(masterevents.Tick(), MonoMs(20))
    assert isinstance(effect, Close)
    assert "deleted" in effect.reason


def test_a_slave_that_needs_a_missing_segment_gets_an_error() -> None:
    master, link = followed()
    while len(master.store.log.queue.files) < 3:
        put(master, b"x" * 3000)
    drain(master.store)
    assert master.step(masterevents.Tick(), MonoMs(0)) == []
    missing = master.store.log.queue.files[1]
    master.store.log.queue.remove(missing)
    link.pump()
    (effect,) = master.step(masterevents.Tick(), MonoMs(0))
    assert isinstance(effect, Close)
    assert f"no segment for offset {missing.start}" in effect.reason


def test_readers_are_sent_to_the_slave_that_has_the_most() -> None:
    master = open_master()
    assert master.read_endpoint() == ""
    first, second = (Link(master, open_slave(name=name)) for name in ("s1", "s2"))
    first.pump()
    second.pump()
    for link, endpoint in ((first, "s1:1"), (second, "s2:1")):
        put(master, b"x")
        link.pump()
        assert master.read_endpoint() == endpoint


def test_lag_is_reported_in_bytes_and_time() -> None:
    master, link = followed()
    master.step(masterevents.Tick(), MonoMs(1000))
    put(master, b"x" * 100)
    (row,) = master.rows(MonoMs(5000))
    assert row.lag_bytes == master.store.log.max_offset - link.slave.end > 0
    assert row.lag_ms == 5000
    assert row.in_sync
    link.pump(6000)
    (row,) = master.rows(MonoMs(7000))
    assert (row.lag_bytes, row.lag_ms) == (0, 0)
    put(master, b"x" * 100)
    (row,) = master.rows(MonoMs(9000))
    assert row.lag_ms == 3000, "since the newest acknowledgement"


def test_a_slave_that_comes_is_behind_since_then_and_by_the_ends_it_has_reached_since() -> None:
    master = open_master()
    ends = [put(master, b"x").end_offset for _ in range(2)]
    link = Link(master, open_slave(), 1000)
    number, session = link.number, master.sessions[link.number]

    def acknowledged(offset: int, now: int) -> int:
        while master.next_frame(number, MonoMs(now)) is not None:
            pass
        frame = Ack(Epoch(1), offset, 0, session.node, session.incarnation)
        master.step(masterevents.Received(number, frames.encode(frame)), MonoMs(now))
        put(master, b"x")
        (row,) = master.rows(MonoMs(now))
        return row.lag_ms

    assert master.next_frame(number, MonoMs(1000)) is not None  # the welcome
    assert master.step(masterevents.Tick(), MonoMs(1500)) == [], (
        "it needs the log from its first byte on"
    )
    (row,) = master.rows(MonoMs(1500))
    assert (row.lag_ms, row.in_sync) == (500, False)
    put(master, b"x")
    assert acknowledged(ends[0], 2000) == 1000
    end = master.store.log.max_offset
    assert acknowledged(ends[1], 3000) == 2000, "all that there was when it came"
    assert acknowledged(end, 4000) == 1000, "all that there was at 3000"


def test_a_slave_that_connects_again_and_again_and_takes_nothing_is_behind_all_the_time() -> None:
    """As one whose disk is full: each connection would begin a time of patience anew."""
    master, slave = open_master(), open_slave()
    put(master, b"x")
    for now in (1000, 2000, 5000):
        link = Link(master, slave, now)
        assert master.next_frame(link.number, MonoMs(now)) is not None  # the welcome
        (row,) = master.rows(MonoMs(now + 500))
        assert row.lag_ms == now - 500
        master.step(masterevents.Disconnected(link.number), MonoMs(now))
        slave.step(Lost("its disk is full"), MonoMs(now))
    Link(master, slave, 6000).pump(6000)
    put(master, b"x")
    master.step(masterevents.Disconnected(next(iter(master.sessions))), MonoMs(7000))
    slave.step(Lost("the network"), MonoMs(7000))
    Link(master, slave, 9000)
    (row,) = master.rows(MonoMs(9500))
    assert row.lag_ms == 500, "it had the log that there was"


def test_status_shows_the_newest_refusal_of_each_node_until_it_is_served() -> None:
    master, slave = open_master(), open_slave()

    def refuse(*numbers: int) -> None:
        for number in numbers:
            assert refused(master, slave, node=f"n{number:02}", segment_bytes=1) is not None
            master.step(masterevents.Disconnected(max(master.sessions)), MonoMs(0))

    def told() -> list[int]:
        rows = master.rows(MonoMs(0))
        return [int(row.node[1:]) for row in rows if row.state is ConnectionState.SUSPEND]

    refuse(*range(64))
    assert told() == list(range(64))
    refuse(0, 64)
    assert told() == [0, *range(2, 65)], "the second one was longest ago"
    assert refused(master, slave, node="n07") is None
    assert told() == [0, *range(2, 7), *range(8, 65)]


def test_sessions_are_bounded() -> None:
    master = open_master()
    numbers = [master.connect(MonoMs(0)) for _ in range(70)]
    assert numbers.count(None) == 6


def damaged(start: int, end: int, byte: int, confirm: int = 0) -> tuple[SimDisk, int]:
    """A killed master's disk with bytes [start, end) of its log overwritten; the log's end.

    Its second epoch begins behind them.
    """
    master = open_master()
    for k in range(12):
        put(master, b"%d" % k * 900)
    master.open_epoch(8, NOW)
    drain(master.store)
    master.store.checkpoint.confirm_phy_offset = confirm
    master.store.checkpoint.flush()
    log_end = master.store.log.max_offset
    disk = close(master)
    path = next(name for name in disk._names if name.startswith("commitlog/"))
    disk._names[path].seen[start:end] = byte
    return disk, log_end


def test_a_hole_that_a_power_cut_left_is_cut_where_there_are_replicas() -> None:
    disk, end = damaged(3584, 4608, 0)
    cut = new_master(disk)
    (hole,) = cut.store.log.corrupt_ranges
    problems: list[str] = []
    cut.store.events.problem = problems.append
    cut.open_epoch(2, NOW)
    assert problems == [f"log cut at {hole.start}: the rest was never fully synced"]
    assert not cut.store.log.corrupt_ranges
    assert cut.store.log.max_offset < 4608
    epochs = [(entry.epoch, entry.start) for entry in cut.history.entries]
    assert epochs == [(1, 0), (3, hole.start)], "that of the second epoch was cut as well"
    slave = open_slave()
    Link(cut, slave).pump()
    assert log_bytes(slave.store) == log_bytes(cut.store)
    disk, end = damaged(3584, 4608, 0)
    alone = open_master(disk, nonce=2, has_slaves=False)
    assert alone.store.log.corrupt_ranges
    assert alone.store.log.max_offset > end


def test_damage_is_not_taken_for_a_hole_and_what_was_confirmed_is_never_cut() -> None:
    disk, end = damaged(3584, 4608, 0x77)
    assert open_master(disk, nonce=2).store.log.max_offset > end
    disk, end = damaged(3584, 4608, 0, confirm=6000)
    assert open_master(disk, nonce=2).store.log.max_offset > end
    (hole,) = new_master(damaged(3584, 4608, 0)[0]).store.log.corrupt_ranges
    disk, end = damaged(3584, 4608, 0, confirm=hole.start)
    assert open_master(disk, nonce=2).store.log.max_offset < end, "confirmed is what is before it"
    disk, end = damaged(3584, 4608, 0, confirm=hole.start + 1)
    assert open_master(disk, nonce=2).store.log.max_offset > end


def test_an_unknown_peer_holds_nothing_and_is_sent_nothing() -> None:
    master = open_master()
    assert master.held_by(Replica("nobody", 1)) == 0
    assert master.next_frame(99, MonoMs(0)) is None
    assert master.step(masterevents.Received(99, b""), MonoMs(0)) == []
    stranger = known(master.connect(MonoMs(0)))
    beat = master.options.ha_send_heartbeat_interval
    assert [master.wait_ms(number, MonoMs(50)) for number in (99, stranger)] == [beat, beat]


def test_a_refused_peer_may_not_repeat_its_hello_on_the_same_connection() -> None:
    master, slave = open_master(), open_slave(name="m")
    link = Link(master, slave)
    link.to_master(frames.encode(slave.hello()))
    assert "out of order" in link.closed
    (row,) = master.rows(MonoMs(0))
    told = (row.sent, row.received, row.durable, row.lag_bytes, row.lag_ms, row.in_sync)
    assert told == (0, 0, 0, 0, 0, False)


def test_a_slave_that_lags_by_exactly_the_limit_is_not_in_sync() -> None:
    master, link = followed(ha_slave_fallbehind_max=1000)
    while master.store.log.wrote_offset - link.slave.end < 1000:
        put(master, b"x")
    behind = master.store.log.wrote_offset - link.slave.end
    master.options = replace(master.options, ha_slave_fallbehind_max=behind)
    assert master.in_sync() == 1
    assert not master.rows(MonoMs(0))[0].in_sync
    master.options = replace(master.options, ha_slave_fallbehind_max=behind + 1)
    assert master.in_sync() == 2
    assert master.rows(MonoMs(0))[0].in_sync


def test_a_chunk_must_fit_the_window() -> None:
    with pytest.raises(ValueError, match="ha_in_flight_max must be at least"):
        HaOptions(ha_transfer_batch_size=4096, ha_in_flight_max=4095)
    HaOptions(ha_transfer_batch_size=4096, ha_in_flight_max=4096)
