"""The programs that own a directory which follows: until a signal, for a cut-over, to end one."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import FrameType

import structlog
from duolog._background import Background

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration import status
from duolog_server.compat.migration.cutover import (
    GIVEN_UP,
    Cutover,
    CutoverFailed,
    Patience,
    give_back,
)
from duolog_server.compat.migration.divergence import cut_to_master
from duolog_server.compat.migration.follower import Follower, store_of
from duolog_server.compat.migration.preconditions import (
    check_name,
    check_same,
    check_settings,
    following_of,
)
from duolog_server.compat.migration.rocketmqbroker import OldBroker
from duolog_server.compat.migration.state import UNENDED, Following, State
from duolog_server.compat.remoting.calling import ANYBODY, Access, place_of
from duolog_server.node.runtime.config import Config
from duolog_server.node.runtime.stops import on_stop
from duolog_server.node.runtime.storemaking import disk_of

log = structlog.get_logger("duolog.following")

STATUS_SECONDS = 1.0
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CutoverStopped(CutoverFailed):
    """A signal has ended it: the program is to end as well."""


class PromotedAndStopped(Exception):
    """A signal came when the directory was being promoted: it is, and the program is to end."""

    def __init__(self, end: int) -> None:
        """end: the offset from which on the log is duolog's own."""
        super().__init__(f"promoted at offset {end}; a signal has stopped this program then")
        self.end = end


class WrongSource(Exception):
    """The directory is not a migration target yet, or one of another broker."""


@dataclass(frozen=True, slots=True)
class Source:
    """The broker to follow, as an operator names it: HOST:PORT, empty where the directory knows.

    cut_to: the broker's name, where the copy is to be cut to its log. access: for calls; the log
    comes without. left: what the directory said when this was decided, and is to say still; looked
    up where it is not given.
    """

    broker: str = ""
    ha: str = ""
    cut_to: str = ""
    access: Access = ANYBODY
    left: Following | None = None


async def follow(config: Config, source: Source) -> None:
    """Follow until SIGTERM or SIGINT.

    Raises CannotFollow, WrongSource, StoreError, OSError, CallRefused, TimeoutError.
    """
    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not stop.done():
            stop.set_result(None)

    on_stop(end)
    async with _follower(config, source, ending=GIVEN_UP) as follower:
        await _go_back(follower)
        ends: list[asyncio.Future[None]] = [stop, follower.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if follower.failed.done():
            follower.failed.result()


async def cut_over(
    config: Config,
    source: Source,
    say: Callable[[str], None],
    patience: Patience,
    joined: int | None = None,
) -> int:
    """Follow, and cut over; the offset from which on the log is duolog's own.

    joined: the offset of the cut-over of another replica of the group, which stopped the broker's
    writers. A directory that was promoted stays as it is. A signal, also that of a terminal that is
    closed, ends it as a failed step does. Raises CutoverFailed, CutoverStopped after a signal,
    PromotedAndStopped after one that came too late for that, and what `follow` raises.
    """
    found = states.load(disk_of(config))
    if found is not None and found.state is State.PROMOTED:
        if joined not in (None, found.cut):
            raise CutoverFailed(f"it was promoted at offset {found.cut} before, not at {joined}")
        say(f"already promoted at offset {found.cut}: nothing changed")
        return found.cut
    async with _follower(config, source, keep_tables=False) as follower:
        made, came = Cutover(follower, say, patience), list[int]()
        try:
            with _cancelled_by_signals(made, came):
                end = await (made.run() if joined is None else made.join(joined))
        except CutoverFailed as error:
            if came:
                raise CutoverStopped(str(error)) from error
            raise
        if came:
            raise PromotedAndStopped(end)
        return end


@contextlib.contextmanager
def _cancelled_by_signals(made: Cutover, came: list[int]) -> Iterator[None]:
    """The first signal cancels this task, unless it goes back already, which must come to its end.

    came: gets the number of each signal, at once: the loop's own handlers run in a later turn of
    it, which a task that waits for nothing more would not see.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    cancels: list[asyncio.Handle] = []

    def cancel() -> None:
        if not made.goes_back:
            task.cancel()

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if not cancels:
            cancels.append(loop.call_soon_threadsafe(cancel))

    numbers = [one for one in STOPS if signal.getsignal(one) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for planned in cancels:  # it has nothing to stop any more
            planned.cancel()


async def abort(config: Config, source: Source) -> bool:
    """End a cut-over whose process did not; whether the broker was to be given back.

    One that joined another copy's had not changed the broker. Raises as `follow`.
    """
    async with _follower(config, source, ending=GIVEN_UP) as follower:
        return await _go_back(follower)


async def _go_back(follower: Follower) -> bool:
    """After a cut-over that did not come to its end, the broker stores messages again, if it was
    told not to; whether it was.
    """
    following = follower.following
    if following.state is not State.CUTTING:
        return False
    await give_back(follower.broker, following)
    follower.becomes(State.FOLLOWING, saved={})
    return bool(following.saved)


@contextlib.asynccontextmanager
async def _follower(
    config: Config, source: Source, *, ending: str = "", keep_tables: bool = True
) -> AsyncIterator[Follower]:
    """A follower that is open, and writes how it stands.

    ending: noted from the first moment on, by a command that is to end a cut-over that was killed.
    keep_tables: see `Follower.begin`.
    """
    disk = disk_of(config)
    known = source.left or states.check_follows(disk, str(config.node.data))
    address = source.broker or (known.broker if known is not None else "")
    if not address:
        raise WrongSource(
            f"{config.node.data} is not a migration target yet: give --broker HOST:PORT"
        )
    broker = OldBroker(address, source.access)
    try:
        following = await _begun(known, config, source, broker)
        if following.state is State.CUTTING:
            following = following.becomes(State.CUTTING, reason=ending)
        follower = Follower(store_of(config, disk), broker, following)
        await follower.open(known)
    except BaseException:
        broker.close()
        raise
    try:
        if source.cut_to:
            await _cut(follower, source.cut_to)
        follower.begin(keep_tables=keep_tables)
    except BaseException:
        await follower.close()
        raise
    watching = Background()
    watching.start(_watch(config, follower))
    try:
        yield follower
    finally:
        await watching.stop()
        await follower.close()


async def _cut(follower: Follower, name: str) -> None:
    """Give up what the broker does not have. Raises WrongSource, and as `cut_to_master`."""
    following = follower.following
    if following.state is State.CUTTING:
        raise WrongSource(UNENDED)
    if name != following.name:
        raise WrongSource(f"the directory follows {following.name}, not {name}")
    check_same(await follower.broker.settings(), name, following.broker)
    given_up = await cut_to_master(follower.store, following.ha, await follower.ask())
    log.warning("the copy was cut to its broker's log", bytes_cut=given_up, end=follower.end)


async def _begun(
    known: Following | None, config: Config, source: Source, broker: OldBroker
) -> Following:
    """The broker that the directory follows from here on; a new address must be that of the broker.

    The log then comes from there as well. That it is the same log is seen when it is followed.
    """
    if source.ha:
        place_of(source.ha)
    if known is not None:
        check_name({"brokerName": known.name}, config.node.group)
    if known is not None and source.broker in ("", known.broker):
        return known.becomes(_resumed(known.state), ha=source.ha or known.ha)
    settings = await broker.settings()
    check_settings(settings, config.store)
    if known is None:
        check_name(settings, config.node.group)
        return following_of(settings, source.broker, source.ha)
    check_same(settings, known.name, source.broker)
    moved = following_of(settings, source.broker, source.ha)
    return known.becomes(_resumed(known.state), broker=moved.broker, ha=moved.ha)


def _resumed(state: State) -> State:
    return State.FOLLOWING if state is State.STOPPED else state


async def _watch(config: Config, follower: Follower) -> None:
    """Write how the follower stands, until cancelled."""
    while True:
        with contextlib.suppress(OSError):  # it is for operators alone
            status.write(config.node.data, status.status_of(follower))
        await asyncio.sleep(STATUS_SECONDS)
