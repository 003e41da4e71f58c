"""The programs that own a directory which follows: until a signal, for a cut-over, to end one."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog
from duolog._background import Background

from node.config import Config
from node.following import state as states
from node.following import status
from node.following.broker.calls import OldBroker
from node.following.cutover import Cutover, Patience, give_back
from node.following.follower import Follower, store_of
from node.following.parting import cut_to_master
from node.following.state import Following, State
from node.following.terms import check_name, check_settings, following_of
from node.remoting.calling import Sign
from store.osdisk import OsDisk

log = structlog.get_logger("duolog.following")

STATUS_SECONDS = 1.0


class WrongSource(Exception):
    """The directory follows nobody yet, or another broker than the one to be cut to."""


@dataclass(frozen=True, slots=True)
class Source:
    """The broker to follow, as an operator names it: HOST:PORT, empty where the directory knows.

    sign: adds to a request what says who sends it, for brokers that ask for that. cut_to: the
    broker's name, where the copy is to be cut to its log.
    """

    broker: str = ""
    ha: str = ""
    cut_to: str = ""
    sign: Sign | None = None


async def follow(config: Config, source: Source) -> None:
    """Follow until SIGTERM or SIGINT.

    Raises CannotFollow, WrongSource, StoreError, OSError, CallRefused, TimeoutError.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    async with _follower(config, source) as follower:
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
    writers. Raises CutoverFailed, and what `follow` raises.
    """
    async with _follower(config, source) as follower:
        made = Cutover(follower, say, patience)
        return await (made.run() if joined is None else made.join(joined))


async def abort(config: Config, source: Source) -> bool:
    """End a cut-over whose process did not; whether there was one. Raises as `follow`."""
    async with _follower(config, source) as follower:
        return await _go_back(follower)


async def _go_back(follower: Follower) -> bool:
    """After a cut-over that did not come to its end, the broker stores messages again."""
    if follower.following.state is not State.CUTTING:
        return False
    await give_back(follower.broker, follower.following.saved)
    follower.becomes(State.FOLLOWING, saved={})
    return True


@contextlib.asynccontextmanager
async def _follower(config: Config, source: Source) -> AsyncIterator[Follower]:
    """A follower that is open, and writes how it stands."""
    disk = OsDisk(config.node.data)
    known = states.check_follows(disk, str(config.node.data))
    address = source.broker or (known.broker if known is not None else "")
    if not address:
        raise WrongSource(f"{config.node.data} follows nobody yet: give --broker HOST:PORT")
    broker = OldBroker(address, source.sign)
    try:
        following = await _begun(known, config, source, broker)
        follower = Follower(store_of(config, disk), broker, following)
        await follower.open()
    except BaseException:
        broker.close()
        raise
    try:
        if source.cut_to:
            await _cut(follower, source.cut_to)
        follower.begin()
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
    if name != following.name or following.state is not State.FOLLOWING:
        raise WrongSource(f"the directory follows {following.name} ({following.state}), not {name}")
    given_up = await cut_to_master(follower.store, following.ha, (await follower.ask()).end)
    log.warning("the copy was cut to its broker's log", bytes_cut=given_up, end=follower.end)


async def _begun(
    known: Following | None, config: Config, source: Source, broker: OldBroker
) -> Following:
    """Whom the directory follows from here on; a new one must reach its broker first.

    That a broker at another address is the same one is seen when it is followed.
    """
    if known is None:
        settings = await broker.settings()
        check_settings(settings, config.store)
        check_name(settings, config.node.group)
        return following_of(settings, source.broker, source.ha)
    moved = {key: value for key, value in (("broker", source.broker), ("ha", source.ha)) if value}
    state = State.FOLLOWING if known.state is State.STOPPED else known.state
    return known.becomes(state, **moved)


async def _watch(config: Config, follower: Follower) -> None:
    """Write how the follower stands, until cancelled."""
    while True:
        with contextlib.suppress(OSError):  # it is for operators alone
            status.write(config.node.data, status.status_of(follower))
        await asyncio.sleep(STATUS_SECONDS)


__all__ = ["Source", "WrongSource", "abort", "cut_over", "follow"]
