"""The cut-over: what is changed at the broker, what is durable, and what is set back."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import duolog
import pytest

from duolog_server.compat.migration import cutover
from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.cutover import (
    FROZEN,
    GIVEN_UP,
    Cutover,
    CutoverFailed,
    Patience,
)
from duolog_server.compat.migration.follower import Follower
from duolog_server.compat.migration.program import (
    STOPS,
    CutoverStopped,
    PromotedAndStopped,
    Source,
    WrongSource,
    abort,
    cut_over,
)
from duolog_server.compat.migration.rocketmqbroker import OldBroker, Runtime
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import RESPONSE, Command
from duolog_server.node.engine.log import Log
from duolog_server.store.errors import BadStoreDirectory, BadStoreFile
from duolog_server.store.metadata import Metadata
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import WAIT_SECONDS, Opened, config_of, sizes
from tests.compat.migration.master import HandMaster, copied, serving
from tests.known import known
from tests.node.replicas import Elected, broker_of, log_bytes
from tests.nodefixtures import StartNode
from tests.until import until

SHORT = Patience(catch_up=5, settle=0.05, pause=0.001, look=0.001)
QUICK = Patience(pause=0.01, look=0.01)


def _saved(tmp_path: Path) -> Following:
    return known(states.load(OsDisk(tmp_path / "copy")))


def _left_cutting(path: Path, master: HandMaster) -> dict[str, str]:
    """A cut-over was killed after it had frozen the broker; what its settings were."""
    made = Following(master.address, master.ha, "broker-a")
    before = {key: master.settings[key] for key in FROZEN}
    states.save(OsDisk(path), made.becomes(State.CUTTING, saved=before))
    master.settings.update(FROZEN)
    return before


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


async def test_a_queue_whose_records_the_broker_had_deleted_goes_on_after_the_cutover(
    tmp_path: Path, followed: Opened, log: bytes, start_node: StartNode
) -> None:
    """Otherwise it begins at 0, and its group, which is further, misses what comes."""
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        master.tables[code] = b'{"offsetTable":{"T@g":{0:7,3:40},"Gone@g":{0:9}}}'
        master.queue_ends["T-3"] = 50
        await Cutover(follower, lambda text: None, QUICK).run()
    node = await start_node(data=tmp_path / "copy", **sizes())
    address = f"127.0.0.1:{node.port}"
    async with duolog.Client(address, timeout=10) as client, client.producer() as producer:
        assert (await producer.send("T", b"new", queue_id=3)).queue_offset == 50


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


async def test_a_put_that_is_under_way_is_waited_for(
    tmp_path: Path, followed: Opened, log: bytes
) -> None:
    """It asked for the broker's role before that changed, and waits for the disk."""
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        whole = follower.end
        master.log, master.putting_ms = log[:whole], 3000
        work = asyncio.create_task(Cutover(follower, lambda text: None, QUICK).run())
        await until(lambda: master.settings["brokerRole"] == "SLAVE")
        before = master.called.count(28)
        await until(lambda: master.called.count(28) > before + 5)
        assert not work.done()
        await master.grow(log[whole : len(log)])
        master.putting_ms = 0
        assert await work == len(log)


async def test_a_log_that_grows_after_it_ended_once_is_waited_for(
    followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables may have changed with it: they are taken again."""
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        master.log, taken = log[: follower.end], 0
        take = follower.take_tables

        async def grows() -> None:
            nonlocal taken
            await take()
            if asyncio.current_task() is work and master.settings["brokerRole"] == "SLAVE":
                taken += 1
                await master.grow(log[len(master.log) :])

        monkeypatch.setattr(follower, "take_tables", grows)
        work = asyncio.create_task(Cutover(follower, lambda text: None, QUICK).run())
        assert await work == len(log)
        assert taken > 1


async def test_a_broker_whose_log_goes_on_is_left_as_it_was(
    followed: Opened, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(HandMaster(log[:9000])) as master, followed(master) as follower:
        await until(lambda: follower.end > 8000)
        master.log = log[: follower.end]
        take, patience = follower.take_tables, Patience(settle=0, pause=0.01, look=0.01)

        async def grows() -> None:
            await take()
            if asyncio.current_task() is work and master.settings["brokerRole"] == "SLAVE":
                await master.grow(log[len(master.log) :])

        monkeypatch.setattr(follower, "take_tables", grows)
        work = asyncio.create_task(Cutover(follower, lambda text: None, patience).run())
        with pytest.raises(CutoverFailed, match=r"log ends at .*stores messages again"):
            await work
        assert master.settings["brokerRole"] == "ASYNC_MASTER"


@pytest.mark.parametrize("code", [21, 43])
async def test_a_table_that_cannot_be_taken_ends_the_cutover(
    tmp_path: Path, followed: Opened, log: bytes, code: int
) -> None:
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await _caught_up(follower, master)
        master.refused.add(code)
        with pytest.raises(CutoverFailed, match="not today; nothing changed"):
            await Cutover(follower, lambda text: None, QUICK).run()
        assert RequestCode.UPDATE_BROKER_CONFIG not in master.called
        master.refused.clear()

        def say(text: str) -> None:
            if text == "the broker stores no more messages":
                master.refused.add(code)

        with pytest.raises(CutoverFailed, match="not today; the broker stores messages again"):
            await Cutover(follower, say, QUICK).run()
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
        with pytest.raises(CutoverFailed, match=r"cut over from its master.*nothing changed"):
            await Cutover(follower, lambda text: None, QUICK).run()
        assert follower.following.state is State.FOLLOWING


async def test_a_broker_whose_log_does_not_come_is_not_frozen(tmp_path: Path, log: bytes) -> None:
    """Its HA port is another program's, which says nothing."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    patience = Patience(catch_up=0.2, pause=0.01, look=0.01)
    async with server, serving(HandMaster(log)) as master:
        source = Source(master.address, silent)
        with pytest.raises(CutoverFailed, match=r"bytes behind after.*nothing changed"):
            await cut_over(config_of(tmp_path / "copy"), source, lambda text: None, patience)
        assert 25 not in master.called, "producers were not kept from sending"
    assert _saved(tmp_path).state is State.FOLLOWING


async def test_another_broker_is_not_cut_over(tmp_path: Path, followed: Opened, log: bytes) -> None:
    """It has the address since the copy was connected."""
    async with serving(HandMaster(log)) as master, followed(master) as follower:
        await _caught_up(follower, master)
        master.settings["brokerName"] = "broker-b"
        found = dict(master.settings)
        with pytest.raises(CutoverFailed, match=r"broker 'broker-b', not.*nothing changed"):
            await Cutover(follower, lambda text: None, QUICK).run()
        assert master.settings == found
        assert follower.following.state is State.FOLLOWING


async def test_the_program_cuts_over_in_one_go(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        assert await cut_over(config, source, lambda text: None, QUICK) == len(log)
        with pytest.raises(BadStoreDirectory, match="follows broker-a no more"):
            await abort(config, source)


async def test_a_cutover_that_was_made_is_told_again(tmp_path: Path, log: bytes) -> None:
    config, said = config_of(tmp_path / "copy"), list[str]()
    async with serving(HandMaster(log)) as master:
        cut = await cut_over(config, Source(master.address), lambda text: None, QUICK)
        before = dict(master.settings)
        assert await cut_over(config, Source(), said.append, QUICK) == cut
        assert await cut_over(config, Source(), said.append, QUICK, cut) == cut
        with pytest.raises(CutoverFailed, match=f"promoted at offset {cut} before, not at 99"):
            await cut_over(config, Source(), said.append, QUICK, 99)
        assert master.settings == before
    assert said == 2 * [f"already promoted at offset {cut}: nothing changed"]


async def test_a_cutover_that_was_killed_is_ended(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        before = _left_cutting(tmp_path / "copy", master)
        assert await abort(config, Source())
        assert {key: master.settings[key] for key in FROZEN} == before
        assert _saved(tmp_path).state is State.FOLLOWING
        assert not await abort(config, Source()), "it can be repeated"


async def test_a_join_that_was_killed_is_ended_and_the_broker_is_not_said_to_store(
    tmp_path: Path, log: bytes
) -> None:
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        master.settings.update(FROZEN)  # by the cut-over of another copy
        states.save(OsDisk(tmp_path / "copy"), made.becomes(State.CUTTING))
        assert not await abort(config_of(tmp_path / "copy"), Source())
        assert {key: master.settings[key] for key in FROZEN} == FROZEN
        assert _saved(tmp_path).state is State.FOLLOWING


async def test_a_cutover_that_was_killed_may_be_tried_again(tmp_path: Path, log: bytes) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        before = _left_cutting(tmp_path / "copy", master)
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
        with pytest.raises(CutoverFailed, match=r"still stores messages.*nothing changed"):
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


class Growing:
    """A follower whose copy grows each time it is looked at, up to an end."""

    behind_bytes = 1
    broker_end = 100
    follows = True
    reason = ""
    tables = Metadata()

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken, self._looks = list[int](), 0

    @property
    def end(self) -> int:
        self._looks += 1
        return min(self._looks, self.broker_end)

    async def shown(self, seconds: float) -> None:
        """See Follower."""

    async def reserve_deleted(self) -> None:
        pass

    async def made_durable(self, end: int) -> None:
        """See Follower."""

    async def take_tables(self) -> None:
        """See Follower."""
        self.taken.append(self.end)

    async def ask(self) -> Runtime:
        """See Follower."""
        return Runtime(0, self.broker_end, "")


async def test_tables_are_taken_once_where_the_copy_still_grows() -> None:
    """Thousands of groups take longer than all the rest."""
    growing, patience = Growing(), Patience(settle=WAIT_SECONDS, look=0.001)
    made = Cutover(cast(Follower, growing), lambda text: None, patience)
    assert await made._complete() == growing.broker_end
    assert growing.taken == [growing.broker_end]


# -- before the broker is frozen -------------------------------------------------------------------


async def test_a_complete_copy_is_cut_over_without_a_pause(tmp_path: Path, log: bytes) -> None:
    """A broker that an earlier attempt has frozen waits as well."""
    hour = Patience(catch_up=3600, pause=3600, look=0.01)
    async with serving(HandMaster(log)) as master, asyncio.timeout(WAIT_SECONDS):
        source = Source(master.address)
        assert await cut_over(config_of(tmp_path), source, lambda text: None, hour) == len(log)


class Watched(HandMaster):
    """Notes what slaves have reported when it is told to store nothing."""

    reported: int = -1

    def answer(self, request: Command) -> Command:
        if request.code == RequestCode.UPDATE_BROKER_CONFIG:
            self.reported = self.reports[-1]
        return super().answer(request)


async def test_a_broker_is_frozen_when_the_copy_is_near(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "NEAR_BYTES", 2000)
    patience = Patience(pause=WAIT_SECONDS, look=0.01)
    async with serving(Watched(log, frame_bytes=1000, pause=0.001)) as master:
        source = Source(master.address)
        await cut_over(config_of(tmp_path), source, lambda text: None, patience)
        assert isinstance(master, Watched)
        assert len(log) - 2000 - 1000 <= master.reported <= len(log)


async def test_a_broker_that_stores_nothing_is_asked_once_where_its_log_ends(
    tmp_path: Path, log: bytes
) -> None:
    """RocketMQ 5 counts all slots of its timer wheel for that, which takes half a second."""
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        assert await cut_over(config_of(tmp_path), source, lambda text: None, QUICK) == len(log)
        frozen = master.called.index(RequestCode.UPDATE_BROKER_CONFIG)
        assert master.called[frozen:].count(RequestCode.GET_BROKER_RUNTIME_INFO) == 1


async def test_a_broker_that_is_frozen_is_not_told_again(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        _left_cutting(tmp_path, master)
        assert await cut_over(config_of(tmp_path), Source(), lambda text: None, QUICK) == len(log)
        assert RequestCode.UPDATE_BROKER_CONFIG not in master.called


# -- stopped on the way ----------------------------------------------------------------------------


@pytest.fixture
def heeded() -> Iterator[None]:
    """Signals that end the command: a shell has what it runs in the background ignore some."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", STOPS)
async def test_a_cutover_that_is_stopped_lets_the_broker_go_on(
    tmp_path: Path, log: bytes, number: signal.Signals
) -> None:
    """As by a terminal that is closed; a second signal does not keep it from going back."""
    said: list[str] = []
    async with serving(HandMaster(log, putting_ms=1)) as master:
        before = {key: master.settings[key] for key in FROZEN}
        source = Source(master.address)
        work = asyncio.create_task(cut_over(config_of(tmp_path), source, said.append, QUICK))
        await until(lambda: "the broker stores no more messages" in said)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        with pytest.raises(CutoverStopped, match="it was stopped; the broker stores messages agai"):
            await work
        assert {key: master.settings[key] for key in FROZEN} == before
    found = known(states.load(OsDisk(tmp_path)))
    assert (found.state, dict(found.saved)) == (State.FOLLOWING, {})


@pytest.mark.usefixtures("heeded")
async def test_a_cutover_that_is_stopped_is_not_tried_again_where_the_broker_is_away(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that waits would do so: who stopped it did not mean that."""
    said: list[str] = []

    async def away(*_: object) -> None:
        raise ConnectionError("it is away")

    monkeypatch.setattr("duolog_server.compat.migration.cutover.give_back", away)
    async with serving(HandMaster(log, putting_ms=1)) as master:
        source = Source(master.address)
        work = asyncio.create_task(cut_over(config_of(tmp_path), source, said.append, QUICK))
        await until(lambda: "the broker stores no more messages" in said)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(CutoverStopped, match=r"did not take the setting .* \(it is away\)"):
            await work
    found = known(states.load(OsDisk(tmp_path)))
    assert (found.state, found.reason) == (State.CUTTING, GIVEN_UP)
    assert found.saved.keys() == FROZEN.keys()


@pytest.mark.usefixtures("heeded")
async def test_a_cutover_that_is_stopped_before_it_began_has_changed_nothing(
    tmp_path: Path, log: bytes
) -> None:
    async with serving(Stalling(log)) as master:
        assert isinstance(master, Stalling)
        master.left = 1
        source = Source(master.address)
        work = asyncio.create_task(
            cut_over(config_of(tmp_path), source, lambda text: None, Patience())
        )
        await until(lambda: (tmp_path / "lock").exists())
        await until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(CutoverStopped, match="it was stopped; nothing changed"):
            await work


@pytest.mark.usefixtures("heeded")
async def test_a_signal_at_the_promotion_ends_the_program(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for after it: a node would go on to serve, and not have seen the signal."""
    saved = states.save

    def signalled(disk: OsDisk, following: Following) -> Following:
        if following.state is State.PROMOTED:
            os.kill(os.getpid(), signal.SIGTERM)
        return saved(disk, following)

    monkeypatch.setattr(states, "save", signalled)
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        with pytest.raises(PromotedAndStopped, match=f"promoted at offset {len(log)}"):
            await cut_over(config_of(tmp_path), source, lambda text: None, QUICK)
    found = known(states.load(OsDisk(tmp_path)))
    assert found.state is State.PROMOTED


@pytest.mark.usefixtures("heeded")
async def test_a_cutover_that_goes_back_is_not_stopped_on_that_way(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would be left without anybody who has it store messages again."""
    given_back = cutover.give_back

    async def signalled(broker: OldBroker, following: Following) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await given_back(broker, following)

    monkeypatch.setattr(cutover, "give_back", signalled)
    async with serving(HandMaster(log, putting_ms=1)) as master:
        before = {key: master.settings[key] for key in FROZEN}
        source, patience = Source(master.address), Patience(settle=0, pause=0.01, look=0.01)
        with pytest.raises(CutoverStopped, match=r"a put has held.*stores messages again"):
            await cut_over(config_of(tmp_path), source, lambda text: None, patience)
        assert {key: master.settings[key] for key in FROZEN} == before
    found = known(states.load(OsDisk(tmp_path)))
    assert found.state is State.FOLLOWING


# -- killed on the way -----------------------------------------------------------------------------


NO_ANSWER = Command(0, -1, flag=RESPONSE)  # to a request that nobody made


class Stalling(HandMaster):
    """Answers so many calls, then none for a while."""

    left = 1 << 30

    def answer(self, request: Command) -> Command:
        self.left -= 1
        return super().answer(request) if self.left >= 0 else NO_ANSWER


class Killed(BaseException):
    """What a process does no more after SIGKILL."""


async def _killed(master: Stalling, path: Path, calls: int) -> bool:
    """A cut-over that ends at a call without going back; whether it came to its end before."""
    master.left = calls
    work = asyncio.create_task(
        cut_over(config_of(path), Source(master.address), lambda text: None, QUICK)
    )
    await until(lambda: work.done() or master.left < 0)
    work.cancel()
    await asyncio.wait([work])
    master.left = 1 << 30
    return not work.cancelled() and work.exception() is None


@pytest.mark.parametrize("again", ["abort", "cutover"])
async def test_a_cutover_that_is_killed_at_any_call_is_ended_or_repeated(
    tmp_path: Path, log: bytes, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(self: Cutover, saved: object, error: BaseException) -> None:
        raise Killed

    monkeypatch.setattr(Cutover, "_go_back", killed)
    calls, done = 0, False
    while not done:
        calls += 1
        path = tmp_path / str(calls)
        served = Stalling(log)
        async with serving(served):
            before = {key: served.settings[key] for key in FROZEN}
            done = await _killed(served, path, calls)
            config, source = config_of(path), Source(served.address)
            if again == "abort" and not done:
                await abort(config, source)
                assert {key: served.settings[key] for key in FROZEN} == before
            assert await cut_over(config, source, lambda text: None, QUICK) == len(log)
            assert {key: served.settings[key] for key in FROZEN} == FROZEN
        assert copied(path, len(log)) == log
    assert calls > 10, "each of its calls was its last one"


@pytest.mark.parametrize("state", [State.FOLLOWING, State.CUTTING, State.PROMOTED])
@pytest.mark.parametrize("noted", [False, True])
async def test_a_cutover_that_is_killed_at_a_change_of_its_state_is_repeated(
    tmp_path: Path, log: bytes, state: State, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = states.save

    def killed(disk: OsDisk, following: Following) -> Following:
        if following.state is state:
            if noted:
                saved(disk, following)
            raise Killed
        return saved(disk, following)

    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        with monkeypatch.context() as patched:
            patched.setattr(states, "save", killed)
            with pytest.raises(Killed):
                await cut_over(config, source, lambda text: None, QUICK)
        left = states.load(OsDisk(tmp_path / "copy"))
        assert (left is not None and left.state is state) is noted
        assert await cut_over(config, source, lambda text: None, QUICK) == len(log)
    found = _saved(tmp_path)
    assert (found.state, found.cut) == (State.PROMOTED, len(log))
    assert found.saved["brokerRole"] == "ASYNC_MASTER", "what undoes it is still known"


async def test_a_promotion_that_cannot_be_noted_is_told_and_repeated(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = states.save

    def full(disk: OsDisk, following: Following) -> Following:
        if following.state is State.PROMOTED:
            raise OSError("no space left")
        return saved(disk, following)

    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        source = Source(master.address)
        with monkeypatch.context() as patched:
            patched.setattr(states, "save", full)
            with pytest.raises(CutoverFailed, match=r"not be noted: no space.*stores no messages"):
                await cut_over(config, source, lambda text: None, QUICK)
        assert master.settings["brokerRole"] == "SLAVE", "nobody knows what the disk has"
        assert await cut_over(config, source, lambda text: None, QUICK) == len(log)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"brokerName": "broker-b"}, "is broker 'broker-b', not 'broker-a'"),
        ({"brokerId": "1", "brokerRole": "SLAVE"}, "not the master that was followed"),
    ],
)
async def test_another_broker_behind_the_same_address_is_not_changed(
    tmp_path: Path, log: bytes, settings: dict[str, str], why: str
) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        before = {key: master.settings[key] for key in FROZEN}
        cutting = made.becomes(State.CUTTING, saved=before)
        states.save(OsDisk(tmp_path / "copy"), cutting)
        master.settings.update(settings)
        found = dict(master.settings)
        with pytest.raises(CannotFollow, match=why):
            await abort(config, Source())
        assert master.settings == found
        known = cutting.becomes(State.CUTTING, reason=GIVEN_UP)
        assert _saved(tmp_path) == known, "what the broker must be told is still known"


async def test_a_slave_behind_the_same_address_is_not_cut_over_again(
    tmp_path: Path, log: bytes
) -> None:
    """It has the same log: only its number tells it from the master that was followed."""
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        before = {key: master.settings[key] for key in FROZEN}
        states.save(OsDisk(tmp_path / "copy"), made.becomes(State.CUTTING, saved=before))
        master.settings |= {"brokerId": "1", "brokerRole": "SLAVE"}
        found = dict(master.settings)
        with pytest.raises(CutoverFailed, match="brokerId=1, not the master"):
            await cut_over(config_of(tmp_path / "copy"), Source(), lambda text: None, QUICK)
        assert master.settings == found


class Deaf(HandMaster):
    """Says that it was changed, and was not."""

    def answer(self, request: Command) -> Command:
        if request.code == RequestCode.UPDATE_BROKER_CONFIG:
            return request.answer(0)
        return super().answer(request)


async def test_a_broker_that_does_not_do_as_told_is_not_taken_for_restored(
    tmp_path: Path, log: bytes
) -> None:
    config = config_of(tmp_path / "copy")
    async with serving(Deaf(log)) as master:
        before = _left_cutting(tmp_path / "copy", master)
        with pytest.raises(ConnectionError, match="still reports brokerRole=SLAVE"):
            await abort(config, Source())
        assert _saved(tmp_path).saved == before


async def test_a_retry_that_is_killed_in_its_recovery_has_left_its_mark(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that waits sees by it that somebody has tried again, and ends it."""

    def killed(*_: object) -> None:
        raise Killed

    config = config_of(tmp_path / "copy")
    async with serving(HandMaster(log)) as master:
        _left_cutting(tmp_path / "copy", master)
        written = (tmp_path / "copy" / states.PATH).stat()
        monkeypatch.setattr("duolog_server.store.recovery.load_queues", killed)
        with pytest.raises(Killed):
            await cut_over(config, Source(), lambda text: None, QUICK)
        again = (tmp_path / "copy" / states.PATH).stat()
        assert (again.st_ino, again.st_mtime_ns) != (written.st_ino, written.st_mtime_ns)
        assert not _saved(tmp_path).reason
        with pytest.raises(Killed):
            await abort(config, Source())
        assert _saved(tmp_path).reason == GIVEN_UP


BY_HAND = {"brokerRole": "SYNC_MASTER"}  # the operator has not thought of brokerPermission


async def test_a_broker_restored_by_hand_is_cut_over_anew(tmp_path: Path, log: bytes) -> None:
    """What was set there by hand is what it gets back, and producers are not left out."""
    said, config = list[str](), config_of(tmp_path / "copy")
    async with serving(HandMaster(log[:9000])) as master:
        before = _left_cutting(tmp_path / "copy", master)
        master.settings |= BY_HAND
        with pytest.raises(CutoverFailed, match=r"ends at 9000.*stores messages again"):
            await cut_over(config, Source(), said.append, SHORT)
        assert "the broker stores messages: an earlier cut-over is over" in said[0]
        assert {key: master.settings[key] for key in FROZEN} == before | BY_HAND
        assert _saved(tmp_path).state is State.FOLLOWING
        await master.grow(log[9000:])
        assert await cut_over(config, Source(), said.append, QUICK) == len(log)
    assert copied(tmp_path / "copy", len(log)) == log


async def test_an_abort_leaves_what_was_restored_by_hand(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        before = _left_cutting(tmp_path / "copy", master)
        master.settings |= BY_HAND
        assert await abort(config_of(tmp_path / "copy"), Source())
        assert {key: master.settings[key] for key in FROZEN} == before | BY_HAND
        assert _saved(tmp_path).state is State.FOLLOWING


@pytest.mark.usefixtures("heeded")
async def test_a_retry_that_is_stopped_early_is_given_up(tmp_path: Path, log: bytes) -> None:
    async with serving(Stalling(log)) as master:
        assert isinstance(master, Stalling)
        _left_cutting(tmp_path / "copy", master)
        master.left = 0
        work = asyncio.create_task(
            cut_over(config_of(tmp_path / "copy"), Source(), lambda text: None, QUICK)
        )
        await until(lambda: master.left < 0)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(CutoverStopped, match=r"it was stopped; an earlier cut-over"):
            await work
    assert _saved(tmp_path).reason == GIVEN_UP


async def test_a_directory_that_another_command_promotes_meanwhile_stays_so(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, recovered = OsDisk(tmp_path / "copy"), Log.recover
    async with serving(HandMaster(log)) as master:
        made = Following(master.address, master.ha, "broker-a")
        before = {key: master.settings[key] for key in FROZEN}
        master.settings.update(FROZEN)
        cutting = states.save(disk, made.becomes(State.CUTTING, saved=before))

        async def later(self: Log, locked: Callable[[], None]) -> None:
            states.save(disk, cutting.becomes(State.PROMOTED, cut=len(log)))
            await recovered(self, locked)

        monkeypatch.setattr(Log, "recover", later)
        with pytest.raises(BadStoreFile, match="changed it meanwhile"):
            await abort(config_of(tmp_path / "copy"), Source())
        assert {key: master.settings[key] for key in FROZEN} == FROZEN
    assert _saved(tmp_path).state is State.PROMOTED


async def test_what_an_earlier_cutover_left_is_said(tmp_path: Path, log: bytes) -> None:
    async with serving(HandMaster(log)) as master:
        _left_cutting(tmp_path / "copy", master)
        master.refused.add(RequestCode.GET_BROKER_CONFIG)
        with pytest.raises(CutoverFailed, match=r"an earlier cut-over.*duolog migrate abort"):
            await cut_over(config_of(tmp_path / "copy"), Source(), lambda text: None, SHORT)
