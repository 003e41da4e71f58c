"""A copy whose broker lost the end of its log is cut to it, by an operator's order alone."""

import asyncio
from pathlib import Path

import pytest

from duolog_server.compat.hawire.frames import HEAD, Frame
from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.copying import CannotFollow, LogCopy, OutOfOrder
from duolog_server.compat.migration.follower import store_of
from duolog_server.compat.migration.program import Source, WrongSource, abort
from duolog_server.compat.migration.state import Following
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import config_of
from tests.compat.migration.master import SEGMENT, HandMaster, copied, serving, written


def _copied_before(path: Path, log: bytes, master: HandMaster) -> list[int]:
    """A directory with a copy of a log; the ends of its records."""
    disk = OsDisk(path)
    store = store_of(config_of(path), disk)
    store.start()
    copy = LogCopy(store)
    copy.ask(0)
    copy.take([Frame(1, log[1:])])
    ends, end = [], 0
    while size := store.log.record_bytes(end):
        end += size
        ends.append(end)
    store.shutdown()
    states.save(disk, Following(master.address, master.ha, "broker-a"))
    return ends


def _end(path: Path) -> int:
    store = store_of(config_of(path), OsDisk(path))
    store.start()
    end = store.max_offset
    store.shutdown()
    return end


@pytest.mark.parametrize("kept", [SEGMENT + 500, 3 * SEGMENT + 20, 2 * SEGMENT])
@pytest.mark.parametrize("others", [0, 300, 9000])
async def test_a_copy_is_cut_to_the_last_common_record(
    tmp_path: Path, log: bytes, kept: int, others: int
) -> None:
    async with serving(HandMaster(log)) as master:
        ends = _copied_before(tmp_path, log, master)
        common = max(end for end in ends if end <= kept)
        alike = common + min(others, 50)  # the head of a record is like that of another one
        master.log = log[:alike] + b"\x77" * others
        with pytest.raises(WrongSource, match="not broker-b"):
            await abort(config_of(tmp_path), Source(cut_to="broker-b"))
        assert _end(tmp_path) == len(log)
        assert not await abort(config_of(tmp_path), Source(cut_to="broker-a"))
        assert _end(tmp_path) == common
    assert copied(tmp_path, common) == log[:common]


async def test_a_copy_that_its_broker_has_is_not_cut(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        _copied_before(tmp_path, log, master)
        assert not await abort(config_of(tmp_path), Source(cut_to="broker-a"))
        assert _end(tmp_path) == len(log)


async def test_a_copy_of_another_log_is_not_cut(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(b"\x77" * len(log))) as master:
        _copied_before(tmp_path, log, master)
        with pytest.raises(CannotFollow, match="nothing in common"):
            await abort(config_of(tmp_path), Source(cut_to="broker-a"))
        assert _end(tmp_path) == len(log)


async def test_a_copy_of_another_log_that_begins_alike_stays(tmp_path: Path, log: bytes) -> None:
    """Every segment of any log begins with the highest bytes of a record's size."""
    other = written(tmp_path / "other", 150, first=1)
    async with serving(HandMaster(log)) as master:
        _copied_before(tmp_path / "copy", log, master)
        master.log = other
        assert other[2 * SEGMENT :][:2] == log[2 * SEGMENT :][:2]
        with pytest.raises(CannotFollow, match="nothing in common"):
            await abort(config_of(tmp_path / "copy"), Source(cut_to="broker-a"))
    assert _end(tmp_path / "copy") == len(log)


async def test_a_copy_is_not_cut_to_another_broker_behind_the_same_address(
    tmp_path: Path, log: bytes
) -> None:
    async with serving(HandMaster(log)) as master:
        _copied_before(tmp_path, log, master)
        master.log = log[: 2 * SEGMENT]
        master.settings["brokerName"] = "broker-b"
        with pytest.raises(CannotFollow, match="is broker 'broker-b', not 'broker-a'"):
            await abort(config_of(tmp_path), Source(cut_to="broker-a"))
    assert _end(tmp_path) == len(log)


async def test_bytes_of_another_place_are_not_compared(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(self: HandMaster, writer: asyncio.StreamWriter, at: int) -> None:
        await sent(self, writer, at - at % SEGMENT + SEGMENT)

    sent = HandMaster._send
    async with serving(HandMaster(log)) as master:
        _copied_before(tmp_path, log, master)
        monkeypatch.setattr(HandMaster, "_send", elsewhere)
        with pytest.raises(OutOfOrder, match="expected from"):
            await abort(config_of(tmp_path), Source(cut_to="broker-a"))
    assert _end(tmp_path) == len(log)


async def test_nonsense_is_not_compared(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(self: HandMaster, writer: asyncio.StreamWriter, at: int) -> None:
        writer.write(HEAD.pack(at, -1))

    async with serving(HandMaster(log)) as master:
        _copied_before(tmp_path, log, master)
        monkeypatch.setattr(HandMaster, "_send", nonsense)
        with pytest.raises(ConnectionError, match=f"{master.ha}: a frame of -1 bytes"):
            await abort(config_of(tmp_path), Source(cut_to="broker-a"))
    assert _end(tmp_path) == len(log)


async def test_what_the_broker_has_deleted_is_not_compared(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        ends = _copied_before(tmp_path, log, master)
        master.first, master.log = SEGMENT, log[SEGMENT : 2 * SEGMENT + 3000]
        assert not await abort(config_of(tmp_path), Source(cut_to="broker-a"))
        assert _end(tmp_path) == max(end for end in ends if end <= 2 * SEGMENT + 3000)
        master.first, master.log = 4 * SEGMENT, b""
        with pytest.raises(CannotFollow, match="nothing in common"):
            await abort(config_of(tmp_path), Source(cut_to="broker-a"))
