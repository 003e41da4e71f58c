"""What a master sends a slave of RocketMQ, without a connection: where it begins, and when."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog_server.compat.hawire import follower as followers
from duolog_server.compat.hawire.follower import (
    HEARTBEAT_MS,
    HOUSEKEEPING_MS,
    CannotFollow,
    Follower,
    Source,
)
from duolog_server.compat.hawire.frames import Frame, MasterReader
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from tests.compat.hawire.slave import Copy
from tests.support import NOW, SMALL, crash, flush_all, open_store, options, put_ok

SEGMENT = SMALL.mapped_file_size_commit_log
START = MonoMs(1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A log of several segments, with records of many sizes."""
    made = open_store(tmp_path)
    for n in range(80):
        put_ok(made, [b"%d" % n * (n % 7 * 100), b"x" * n])
    assert made.log.max_offset > 3 * SEGMENT
    yield made
    crash(made)


def log_of(store: MessageStore) -> bytes:
    """All of its bytes, as the files have them."""
    files = store.log.queue.files
    return b"".join(mapped.memory[: mapped.readable].tobytes() for mapped in files)


def frames_of(follower: Follower, now_ms: int = START) -> list[Frame]:
    """All that there is to send."""
    found, reader = [], MasterReader()
    while (sent := follower.next_frame(MonoMs(now_ms))) is not None:
        found += reader.feed(sent)
    return found


def follow(store: MessageStore, copy: Copy, newest_only: bool = False) -> Follower:
    """A slave connects and is sent all there is."""
    follower = Follower(Source(store, newest_only), 0, START)
    follower.heard(copy.end, START)
    for frame in frames_of(follower):
        copy.take(frame)
        if frame.data:
            follower.heard(copy.end, START)
    return follower


# -- what is sent ----------------------------------------------------------------------------------


def test_an_empty_slave_gets_every_byte_of_every_segment(store: MessageStore) -> None:
    copy = Copy(SEGMENT)
    follower = follow(store, copy)
    assert bytes(copy.data) == log_of(store), "blank records and the zeros behind them, too"
    assert (follower.session.received, follower.lag_bytes) == (store.log.max_offset, 0)
    assert follower.lag_ms(START) == 0


def test_it_may_begin_with_the_newest_segment_instead(store: MessageStore) -> None:
    copy = Copy(SEGMENT)
    follow(store, copy, newest_only=True)
    last = store.log.queue.files[-1]
    assert copy.start == last.start
    assert bytes(copy.data) == last.memory[: last.readable].tobytes()


def test_it_begins_where_retention_left_the_log(store: MessageStore) -> None:
    flush_all(store)
    store.retention.round(WallMs(NOW + 10**12), 4, store.dispatcher.reput_from)
    assert store.log.min_offset > 0
    copy = Copy(SEGMENT)
    follow(store, copy)
    assert copy.start == store.log.min_offset
    assert bytes(copy.data) == log_of(store)


def test_an_empty_log_sends_what_comes_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    follower = Follower(Source(store, False), 0, START)
    follower.heard(0, START)
    assert frames_of(follower) == []
    put_ok(store, [b"first"])
    copy = Copy(SEGMENT)
    for frame in frames_of(follower):
        copy.take(frame)
    assert bytes(copy.data) == log_of(store)
    crash(store)


def test_a_stream_cut_at_any_byte_is_continued(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are of some records here, so that a cut leaves some of them whole."""
    monkeypatch.setattr(followers, "PIECE_BYTES", 700)
    whole = Follower(Source(store, False), 0, START)
    whole.heard(0, START)
    sent = bytearray()
    while (frame := whole.next_frame(START)) is not None:
        sent += frame
    expected = log_of(store)
    for cut in range(0, len(sent), 131):
        copy = Copy(SEGMENT)
        for one in MasterReader().feed(bytes(sent[:cut])):
            copy.take(one)
        follow(store, copy)
        assert bytes(copy.data) == expected, cut


def test_frames_end_with_records_or_the_segment(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PIECE_BYTES", 300)
    follower = Follower(Source(store, False), 0, START)
    follower.heard(0, START)
    frames = frames_of(follower)
    assert len(frames) > 100
    assert all(store.log.is_boundary(one.offset + len(one.data)) for one in frames)


def test_records_and_blanks_larger_than_a_frame_are_sent_in_parts(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PIECE_BYTES", 100)
    monkeypatch.setattr(followers, "FRAME_BYTES_MAX", 128)
    copy = Copy(SEGMENT)
    follower = Follower(Source(store, False), 0, START)
    follower.heard(0, START)
    for frame in frames_of(follower):
        assert len(frame.data) <= 128
        copy.take(frame)
    assert bytes(copy.data) == log_of(store)


def test_nothing_beyond_the_confirm_offset_is_sent(store: MessageStore) -> None:
    confirmed = store.log.max_offset
    store.confirm(PhyOffset(confirmed))
    put_ok(store, [b"not confirmed"])
    copy = Copy(SEGMENT)
    follower = follow(store, copy)
    assert copy.end == confirmed < store.log.max_offset
    store.confirm(store.log.max_offset)
    for frame in frames_of(follower):
        copy.take(frame)
    assert copy.end == store.log.max_offset


def test_a_byte_rate_is_kept(store: MessageStore) -> None:
    follower = Follower(Source(store, False), 100_000, START)
    follower.heard(0, START)
    (first,) = frames_of(follower)
    takes_ms = -(-len(first.data) // 100)
    assert frames_of(follower, START + takes_ms - 1) == []
    assert len(frames_of(follower, START + takes_ms)) == 1


# -- who is refused --------------------------------------------------------------------------------


def refused(store: MessageStore, said: int) -> str:
    with pytest.raises(CannotFollow) as refusal:
        Follower(Source(store, False), 0, START).heard(said, START)
    return str(refusal.value)


def test_a_slave_that_is_ahead_is_refused(store: MessageStore) -> None:
    end = store.log.max_offset
    assert f"it ends at {end + 1}, beyond the end of this log, {end}" in refused(store, end + 1)


def test_a_slave_that_ends_within_a_record_is_refused(store: MessageStore) -> None:
    within = 0
    for offset in range(1, 2000):
        if not store.log.is_boundary(offset):
            within += 1
            assert "where no record of this log begins" in refused(store, offset)
    assert within > 1900


def test_a_slave_whose_next_bytes_were_deleted_is_refused(store: MessageStore) -> None:
    flush_all(store)
    follower = follow(store, Copy(SEGMENT))
    second = store.log.queue.files[1].start
    store.retention.round(WallMs(NOW + 10**12), 4, store.dispatcher.reput_from)
    assert "retention deleted what is between" in refused(store, second)
    follower.session.sent = follower._until = second
    with pytest.raises(CannotFollow, match="retention deleted them"):
        follower.next_frame(START)


def test_a_slave_ahead_of_what_is_confirmed_waits(store: MessageStore) -> None:
    """A new master learns later what its group had confirmed."""
    end = store.log.max_offset
    store.replicated_offset = PhyOffset(SEGMENT)
    follower = Follower(Source(store, False), 0, START)
    follower.heard(end, START)
    assert frames_of(follower) == []
    assert frames_of(follower, START + HEARTBEAT_MS) == [Frame(end, b"")]
    assert not follower.follows
    store.confirm(end)
    put_ok(store, [b"more"])
    store.confirm(store.log.max_offset)
    (frame,) = frames_of(follower)
    assert (frame.offset, frame.offset + len(frame.data)) == (end, store.log.max_offset)


def test_a_slave_that_copies_from_elsewhere_is_refused(store: MessageStore) -> None:
    follower = follow(store, Copy(SEGMENT))
    with pytest.raises(CannotFollow, match="it copies from elsewhere"):
        follower.heard(store.log.max_offset + 1, START)


def test_what_is_damaged_is_not_sent(store: MessageStore) -> None:
    records = [0]
    for _ in range(10):
        records.append(records[-1] + store.log.record_bytes(records[-1]))
    store.log.queue.files[0].memory[records[7] + 4] = 0
    copy = Copy(SEGMENT)
    follower = Follower(Source(store, False), 0, START)
    follower.heard(0, START)
    with pytest.raises(CannotFollow, match=rf"damaged at {records[7]} \(bad magic code\)"):
        for frame in MasterReader().feed(follower.next_frame(START) or b""):
            copy.take(frame)
        follower.next_frame(START)
    assert copy.end == records[7], "all before it"


# -- times -----------------------------------------------------------------------------------------


def test_a_slave_is_silent_for_five_seconds_and_then_begins(store: MessageStore) -> None:
    follower = Follower(Source(store, False), 0, START)
    assert frames_of(follower, START + HEARTBEAT_MS) == []
    assert not follower.is_silent(MonoMs(START + HEARTBEAT_MS))
    follower.heard(store.log.max_offset, MonoMs(START + HEARTBEAT_MS))
    assert follower.follows
    assert frames_of(follower, START + HEARTBEAT_MS) == []


def test_a_sign_of_life_says_what_is_sent_next(store: MessageStore) -> None:
    """RocketMQ's slaves compare it with their end."""
    follower = follow(store, Copy(SEGMENT))
    end = store.log.max_offset
    assert frames_of(follower, START + HEARTBEAT_MS - 1) == []
    assert frames_of(follower, START + HEARTBEAT_MS) == [Frame(end, b"")]
    assert frames_of(follower, START + 2 * HEARTBEAT_MS - 1) == []


def test_a_slave_that_says_nothing_for_20_s_is_gone(store: MessageStore) -> None:
    follower = follow(store, Copy(SEGMENT))
    assert not follower.is_silent(MonoMs(START + HOUSEKEEPING_MS - 1))
    assert follower.is_silent(MonoMs(START + HOUSEKEEPING_MS))
    follower.heard(store.log.max_offset, MonoMs(START + HOUSEKEEPING_MS))
    assert not follower.is_silent(MonoMs(START + HOUSEKEEPING_MS))


def test_lag_is_what_is_confirmed_and_not_received(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(mapped_file_size_commit_log=1 << 20))
    put_ok(store, [b"x"])
    follower = follow(store, Copy(1 << 20))
    before = store.log.max_offset
    put_ok(store, [b"y" * 100])
    frames_of(follower)
    assert follower.lag_bytes == store.log.max_offset - before
    assert follower.lag_ms(MonoMs(START + 300)) == 300
    follower.heard(0, START)  # an empty slave repeats its first word
    assert follower.lag_bytes == store.log.max_offset - before
    follower.heard(store.log.max_offset, MonoMs(START + 400))
    assert (follower.lag_bytes, follower.lag_ms(MonoMs(START + 400))) == (0, 0)
    crash(store)
