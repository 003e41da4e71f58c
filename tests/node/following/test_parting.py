"""A copy whose broker lost the end of its log is cut to it, by an operator's order alone."""

from pathlib import Path

import pytest

from node.following import state as states
from node.following.copying import CannotFollow, LogCopy
from node.following.follower import store_of
from node.following.program import Source, WrongSource, abort
from node.following.state import Following
from node.hawire.frames import Frame
from store.osdisk import OsDisk
from tests.node.following.conftest import config_of
from tests.node.following.master import SEGMENT, HandMaster, copied, serving


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
