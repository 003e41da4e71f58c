"""A follower and its master: the log, the tables, and what ends it."""

import json
from pathlib import Path

import pytest

from node.following import state as states
from node.following.copying import CannotFollow
from node.following.state import State
from store.osdisk import OsDisk
from tests.node.following.conftest import Opened, until
from tests.node.following.master import SEGMENT, HandMaster, copied, serving
from tests.support import SMALL, open_store, read_all


async def test_a_log_is_copied_byte_for_byte(tmp_path: Path, followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[: SEGMENT + 99], frame_bytes=1000)) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end >= SEGMENT)
            await master.grow(log[SEGMENT + 99 :])
            await until(lambda: follower.end == len(log))
            await until(lambda: master.reports[-1] == len(log))
            assert master.asked == [1], "over one connection"
            assert follower.behind_bytes == 0
        assert copied(tmp_path / "copy", len(log)) == log
        store = open_store(tmp_path / "copy", SMALL)
        assert len(read_all(store)) == 120, "queues are built as in a node"
        assert store.lookups is not None
        store.shutdown()


async def test_a_connection_that_breaks_is_made_again(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:5000], frame_bytes=777)) as master:
        async with followed(master) as follower:
            for end in range(9000, len(log), 9000):
                before = follower.end
                await master.grow(log[len(master.log) : end])
                await until(lambda before=before: follower.end > before)  # type: ignore[misc]
                master.drop()
            await master.grow(log[len(master.log) :])
            await until(lambda: follower.end == len(log))
            assert len(master.asked) > 3
        assert copied(tmp_path / "copy", len(log)) == log


async def test_a_follower_goes_on_where_it_was(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:30_000])) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end > 20_000)
            end = follower.end
        async with followed(master) as follower:
            assert follower.end == end
            await master.grow(log[30_000:])
            await until(lambda: follower.end == len(log))
            assert master.asked[-1] == end - 4096
        assert copied(tmp_path / "copy", len(log)) == log


async def test_tables_are_kept_as_the_broker_writes_them(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:2000])) as master, followed(master) as follower:
        await until(lambda: follower.tables_read_ms > 0)
        assert follower.tables.offsets == {("T", "g"): {0: 7, 1: 0}}
        master.tables[43] = b'{"offsetTable":{"T@g":{0:9,1:0}}}'
        await until(lambda: follower.tables.offsets == {("T", "g"): {0: 9, 1: 0}})
        config = tmp_path / "copy" / "config"
        assert (config / "consumerOffset.json").read_bytes() == master.tables[43]
        assert (config / "topics.json").read_bytes() == master.tables[21]
        assert json.loads((config / "delayOffset.json").read_text()) == {"offsetTable": {}}
        master.tables[43] = b'{"offsetTable":[]}'  # nothing of it is taken
        await until(lambda: not follower.failed.done())
        assert follower.tables.offsets == {("T", "g"): {0: 9, 1: 0}}


async def test_a_master_that_lost_its_end_is_followed_no_more(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:9000])) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end > 8000)
            end = follower.end
            master.log = log[:5000]
            master.drop()
            await until(follower.failed.done)
            with pytest.raises(CannotFollow, match=f"ends at 5000, this copy of it at {end}"):
                follower.failed.result()
            assert follower.end == end, "nothing is truncated"
        found = states.load(OsDisk(tmp_path / "copy"))
        assert found is not None
        assert (found.state, "ends at 5000" in found.reason) == (State.STOPPED, True)


async def test_a_master_with_other_bytes_is_followed_no_more(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        end = follower.end
        other = bytearray(log)
        other[end - 100] ^= 1
        master.log = bytes(other)
        master.drop()
        await until(follower.failed.done)
        with pytest.raises(CannotFollow, match=f"differs from this copy at offset {end - 100}"):
            follower.failed.result()


async def test_a_master_that_deleted_what_is_missing_is_followed_no_more(
    followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        master.first, master.log = 2 * SEGMENT, log[2 * SEGMENT :]
        master.drop()
        await until(follower.failed.done)
        with pytest.raises(CannotFollow, match=f"begins at {2 * SEGMENT}"):
            follower.failed.result()


async def test_a_broker_that_is_away_is_waited_for(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[:9000])) as master:
        master.refused.add(28)
        async with followed(master) as follower:
            await until(lambda: "not today" in follower.reason)
            master.refused.clear()
            await until(lambda: follower.end > 8000)
            assert not follower.reason


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("mappedFileSizeCommitLog", "1073741824", "set store.mapped_file_size_commit_log"),
        ("enableDLegerCommitLog", "true", "DLedger"),
        ("enableControllerMode", "true", "controllers"),
        ("brokerName", "broker-b", "is broker 'broker-b', not 'broker-a'"),
    ],
)
async def test_a_log_of_another_form_is_refused(
    followed: Opened, log: bytes, setting: str, value: str, why: str
) -> None:
    async with serving(HandMaster(log)) as master:
        master.settings[setting] = value
        async with followed(master) as follower:
            await until(follower.failed.done)
            with pytest.raises(CannotFollow, match=why):
                follower.failed.result()
            assert follower.end == 0


async def test_a_master_that_sends_nothing_is_asked_again(
    followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.following.follower.STALL_MS", 50)
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000 and not follower.reason)
        master.log = log  # without a word to its slaves
        await until(lambda: follower.end == len(log))
        assert len(master.asked) > 1
