"""A follower and its master: the log, the tables, and what ends it."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from duolog_server.compat.hawire.frames import Frame
from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.cutover import CutoverFailed, Patience
from duolog_server.compat.migration.follower import Follower
from duolog_server.compat.migration.program import Source, abort, cut_over
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.migration.status import status_of
from duolog_server.store.clocks import MonoMs
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import WAIT_SECONDS, Opened, config_of
from tests.compat.migration.master import SEGMENT, HandMaster, copied, serving
from tests.known import known
from tests.support import SMALL, open_store, read_all
from tests.until import until


async def fails(follower: Follower, why: str) -> None:
    """It follows no more."""
    await until(follower.failed.done)
    with pytest.raises(CannotFollow, match=why):
        follower.failed.result()


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


async def test_tables_that_are_being_written_are_written_before_the_directory_is_released(
    followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that waits for the promotion takes the directory, and these files, at once."""
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def write(*given: object) -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS)
        done.append("written")

    monkeypatch.setattr("duolog_server.compat.migration.follower.save_tables", write)
    async with serving(HandMaster(log[:2000])) as master, followed(master) as follower:
        await until(begun.is_set)
        close = follower.log.close

        async def closed() -> None:
            done.append("released")
            go_on.set()
            await close()

        monkeypatch.setattr(follower.log, "close", closed)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        await follower.close()
    assert done == ["written", "released"]


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
        await until(lambda: "another form" in follower.tables_reason)
        assert follower.tables.offsets == {("T", "g"): {0: 9, 1: 0}}
        assert status_of(follower).reason == follower.tables_reason, "operators are told"
        master.tables[43] = b'{"offsetTable":{"T@g":{0:9,1:1}}}'
        await until(lambda: follower.tables.offsets == {("T", "g"): {0: 9, 1: 1}})
        assert not follower.tables_reason


async def test_a_master_that_lost_its_end_is_followed_no_more(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:9000])) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end > 8000)
            end = follower.end
            master.log = log[:5000]
            master.drop()
            await fails(follower, f"ends at 5000, this copy of it at {end}")
            assert follower.end == end, "nothing is truncated"
        found = known(states.load(OsDisk(tmp_path / "copy")))
        assert (found.state, "ends at 5000" in found.reason) == (State.STOPPED, True)


async def test_a_master_with_other_bytes_is_followed_no_more(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        end = follower.end
        other = bytearray(log)
        other[end - 100] ^= 1
        master.log = bytes(other)
        master.drop()
        await fails(follower, f"differs from this copy at offset {end - 100}")


async def test_a_master_that_deleted_what_is_missing_is_left(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        master.first, master.log = 2 * SEGMENT, log[2 * SEGMENT :]
        master.drop()
        await fails(follower, f"begins at {2 * SEGMENT}")


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
            await fails(follower, why)
            assert follower.end == 0


async def test_a_master_that_sends_nothing_is_asked_again(
    followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.migration.follower.STALL_MS", 50)
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000 and not follower.reason)
        master.log = log  # without a word to its slaves
        await until(lambda: follower.end == len(log))
        assert len(master.asked) > 1


async def test_a_part_of_a_long_record_is_a_sign_of_life(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000 and not follower.reason)
        end, follower._moved_ms = follower.end, MonoMs(0)
        follower._take([Frame(9000, log[9000:9001])])
        assert follower.end == end < 9000
        assert follower._moved_ms > 0
        follower._moved_ms = MonoMs(0)
        follower._take([Frame(9001, b"")])  # a heartbeat is none
        assert follower._moved_ms == 0


async def test_a_broker_whose_log_begins_where_the_copy_ends_is_followed(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[: 2 * SEGMENT])) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end == 2 * SEGMENT)
        master.first, master.log = 2 * SEGMENT, log[2 * SEGMENT :]
        async with followed(master) as follower:
            await until(lambda: follower.end == len(log))
            assert master.asked[-1] == 2 * SEGMENT, "it has nothing before"
    assert copied(tmp_path / "copy", len(log)) == log


async def test_tables_are_taken_from_the_broker_whose_log_this_is(
    tmp_path: Path, followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker of the same name, as many have it, now has the address."""
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000 and follower.tables_read_ms > 0)
        other = bytearray(log)
        other[follower.end - 100] ^= 1
        master.log = bytes(other)
        master.tables[43] = b'{"offsetTable":{"T@g":{0:99}}}'
        master.refused = set(master.tables)  # until the connection has ended
        master.drop()
        await until(lambda: not follower.follows)
        master.refused = set()
        await until(follower.failed.done)
        before = len(master.called)
        await until(lambda: len(master.called) > before + 3)
        assert follower.tables.offsets == {("T", "g"): {0: 7, 1: 0}}
        offsets = tmp_path / "copy" / "config" / "consumerOffset.json"
        assert b"99" not in offsets.read_bytes()


async def test_a_broker_that_moved_is_followed_at_its_new_address(
    tmp_path: Path, log: bytes
) -> None:
    """The log comes from the new one, too; an address of another broker is not noted."""
    config, disk = config_of(tmp_path / "copy"), OsDisk(tmp_path / "copy")
    async with serving(HandMaster(log)) as here, serving(HandMaster(log)) as there:
        assert not await abort(config, Source(here.address))
        there.settings["brokerName"] = "broker-b"
        with pytest.raises(CannotFollow, match="is broker 'broker-b', not 'broker-a'"):
            await abort(config, Source(there.address))
        assert states.load(disk) == Following(here.address, here.ha, "broker-a")
        with pytest.raises(ConnectionError, match="cannot be reached"):
            await abort(config, Source("127.0.0.1:1"))
        there.settings["brokerName"] = "broker-a"
        assert not await abort(config, Source(there.address))
        moved = Following(there.address, there.ha, "broker-a")
        assert states.load(disk) == moved
        assert not await abort(config, Source(ha=here.ha))
        assert not await abort(config, Source(there.address)), "an address that is known"
        assert states.load(disk) == Following(there.address, here.ha, "broker-a")


@pytest.mark.parametrize("nonsense", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b""])
async def test_an_address_that_answers_nonsense_is_named(tmp_path: Path, nonsense: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(nonsense)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(ConnectionError, match=address):
            await abort(config_of(tmp_path / "copy"), Source(address))
    assert not (tmp_path / "copy" / "commitlog").exists()


async def test_a_copy_that_lost_a_segment_is_followed_no_further_and_not_promoted(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log)) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end == len(log))
        lost = tmp_path / "copy" / "commitlog" / f"{SEGMENT:020d}"
        lost.unlink()
        async with followed(master) as follower:
            await fails(follower, "this copy is damaged")
        config = config_of(tmp_path / "copy")
        with pytest.raises(CutoverFailed, match="this copy is damaged"):
            await cut_over(
                config, Source(), lambda text: None, Patience(catch_up=5, pause=0.01, look=0.01)
            )
        assert master.settings["brokerRole"] == "ASYNC_MASTER"


async def test_a_copy_is_not_opened_with_segments_of_another_size(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log)) as master:
        async with followed(master) as follower:
            await until(lambda: follower.end == len(log))
        config = config_of(tmp_path / "copy")
        store = replace(config.store, mapped_file_size_commit_log=2 * SEGMENT)
        with pytest.raises(Exception, match="the configured segment size is"):
            await abort(config.model_copy(update={"store": store}), Source())
    assert copied(tmp_path / "copy", len(log)) == log


@pytest.mark.parametrize(
    ("group", "source", "why"),
    [
        ("other", Source(), "set node.group"),
        ("broker-a", Source(ha="nowhere"), "is not HOST:PORT"),
    ],
)
async def test_what_cannot_be_is_refused_before_it_is_noted(
    tmp_path: Path, log: bytes, group: str, source: Source, why: str
) -> None:
    async with serving(HandMaster(log)) as master:
        assert not await abort(config_of(tmp_path / "copy"), Source(master.address))
        with pytest.raises(Exception, match=why):
            await abort(config_of(tmp_path / "copy", group), source)
        made = Following(master.address, master.ha, "broker-a")
        assert states.load(OsDisk(tmp_path / "copy")) == made
