"""The cut-over: what is changed at the broker, what is durable, and what is set back."""

from pathlib import Path

import duolog
import pytest

from node.following import state as states
from node.following.cutover import FROZEN, Cutover, CutoverFailed, Patience
from node.following.follower import Follower
from node.following.program import Source, WrongSource, abort, cut_over
from node.following.state import Following, State
from store.errors import BadStoreDirectory
from store.osdisk import OsDisk
from tests.node.conftest import StartNode
from tests.node.following.conftest import Opened, config_of, sizes, until
from tests.node.following.master import HandMaster, copied, serving
from tests.node.replicas import Elected, broker_of, log_bytes

SHORT = Patience(catch_up=5, settle=0.05, pause=0.001)
QUICK = Patience(pause=0.01)


def _saved(tmp_path: Path) -> Following:
    found = states.load(OsDisk(tmp_path / "copy"))
    assert found is not None
    return found


async def _caught_up(follower: Follower, master: HandMaster) -> None:
    await until(lambda: follower.end == master.end and not follower.reason)


async def test_a_copy_becomes_duologs_own(
    tmp_path: Path, followed: Opened, log: bytes, start_node: StartNode
) -> None:
    said: list[str] = []
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        end = await Cutover(follower, said.append, QUICK).run()
        assert end == len(log)
        assert {key: master.settings[key] for key in FROZEN} == FROZEN
    found = _saved(tmp_path)
    assert (found.state, found.cut) == (State.PROMOTED, len(log))
    assert found.saved == {
        "brokerRole": "ASYNC_MASTER",
        "slaveReadEnable": "false",
        "brokerPermission": "6",
    }
    assert "promoted" in said[-1]
    node = await start_node(data=tmp_path / "copy", **sizes())
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        group = await client.admin.group("g")
        places = {(queue.topic, queue.queue_id): queue.committed for queue in group.queues}
        assert places["T", 0] == 7, "the group goes on where it was"
        async with client.producer() as producer:
            await producer.send("T", b"new")
    assert copied(tmp_path / "copy", len(log)) == log, "what was copied stays as it is"


async def test_a_directory_that_follows_is_not_served(
    tmp_path: Path, followed: Opened, log: bytes, start_node: StartNode
) -> None:
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await until(lambda: follower.end == len(log))
    with pytest.raises(BadStoreDirectory, match="a node serves it after"):
        await start_node(data=tmp_path / "copy")


async def test_a_broker_that_goes_on_storing_is_left_as_it_was(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        before = dict(master.settings)
        with pytest.raises(CutoverFailed, match=r"ends at 9000.*stores messages again"):
            await Cutover(follower, lambda text: None, SHORT).run()
        assert master.settings == before
        assert not follower.following.saved
    assert _saved(tmp_path).state is State.FOLLOWING


@pytest.mark.parametrize("code", [21, 43])
async def test_a_table_that_cannot_be_taken_ends_the_cutover(
    tmp_path: Path, followed: Opened, log: bytes, code: int
) -> None:
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await _caught_up(follower, master)
        master.refused.add(code)
        with pytest.raises(CutoverFailed, match="not today; the broker stores messages again"):
            await Cutover(follower, lambda text: None, QUICK).run()
        assert master.settings["brokerRole"] == "ASYNC_MASTER"
    assert _saved(tmp_path).state is State.FOLLOWING


async def test_a_broker_that_cannot_be_changed_is_not(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await _caught_up(follower, master)
        master.refused.add(25)
        with pytest.raises(CutoverFailed, match=r"duolog migrate abort.*brokerRole=ASYNC_MASTER"):
            await Cutover(follower, lambda text: None, QUICK).run()
    assert _saved(tmp_path).state is State.CUTTING, "nobody knows how the broker was left"


async def test_a_slave_is_not_cut_over_from(followed: Opened, log: bytes) -> None:
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await _caught_up(follower, master)
        master.settings["brokerRole"] = "SLAVE"
        with pytest.raises(CutoverFailed, match=r"cut over from its master.*nothing was changed"):
            await Cutover(follower, lambda text: None, QUICK).run()
        assert follower.following.state is State.FOLLOWING


async def test_the_program_cuts_over_in_one_go(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        assert await cut_over(config, source, lambda text: None, QUICK) == len(log)
        with pytest.raises(BadStoreDirectory, match="follows broker-a no more"):
            await cut_over(config, source, lambda text: None, QUICK)


async def test_a_cutover_that_was_killed_is_ended(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        before = {key: master.settings[key] for key in FROZEN}
        master.settings.update(FROZEN)
        states.save(OsDisk(tmp_path / "copy"), made.becomes(State.CUTTING, saved=before))
        assert await abort(config, Source())
        assert {key: master.settings[key] for key in FROZEN} == before
        assert _saved(tmp_path).state is State.FOLLOWING
        assert not await abort(config, Source()), "it can be repeated"


async def test_a_cutover_that_was_killed_may_be_tried_again(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        before = {key: master.settings[key] for key in FROZEN}
        master.settings.update(FROZEN)
        states.save(OsDisk(tmp_path / "copy"), made.becomes(State.CUTTING, saved=before))
        assert await cut_over(config, Source(), lambda text: None, QUICK) == len(log)
        assert _saved(tmp_path).saved == before


async def test_the_program_says_what_it_cannot_follow(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        with pytest.raises(WrongSource, match="give --broker"):
            await abort(config_of(tmp_path / "copy"), Source())
        with pytest.raises(Exception, match=r"set node\.group"):
            await abort(config_of(tmp_path / "copy", "other"), Source(master.address))
        assert not (tmp_path / "copy" / "commitlog").exists()
        assert not await abort(config_of(tmp_path / "copy"), Source(master.address))


async def test_further_copies_are_promoted_at_the_same_offset(tmp_path: Path, log: bytes) -> None:
    one, other = config_of(tmp_path / "a"), config_of(tmp_path / "b")
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        with pytest.raises(CutoverFailed, match=r"stores messages still.*nothing was changed"):
            await cut_over(other, source, lambda text: None, QUICK, len(log))
        assert master.settings["brokerRole"] == "ASYNC_MASTER"
        cut = await cut_over(one, source, lambda text: None, QUICK)
        with pytest.raises(CutoverFailed, match="was cut at 99"):
            await cut_over(other, Source(), lambda text: None, QUICK, 99)
        assert await cut_over(other, Source(), lambda text: None, QUICK, cut) == cut
        assert master.settings["brokerRole"] == "SLAVE"
    assert copied(tmp_path / "a", cut) == copied(tmp_path / "b", cut) == log


async def test_three_copies_begin_a_group_without_copying_again(
    tmp_path: Path, log: bytes, start_node: StartNode
) -> None:
    async with serving(HandMaster(log)) as master:
        joined = None
        for name in "abc":
            config, source = config_of(tmp_path / name), Source(master.address)
            joined = await cut_over(config, source, lambda text: None, QUICK, joined)
    group = await Elected.start(start_node, tmp_path, **sizes())
    slaves = [broker_of(node).replication.slave for node in group.nodes]
    followers = [slave for slave in slaves if slave is not None]
    assert [(slave.resets, slave.truncated_bytes) for slave in followers] == [(0, 0), (0, 0)]
    for node in group.nodes:
        assert log_bytes(node, 0, len(log)) == log
        committed = broker_of(node).metadata.tables.committed("g", "T", 0)
        assert committed == 7, "each of them knows where groups are"
