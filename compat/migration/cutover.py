"""The cut-over: the broker stores nothing more, the copy has all of it, and becomes duolog's own.

| step | durable then | if it fails |
|------|--------------|-------------|
| catch up | | nothing was changed |
| freeze: the broker is made a slave that is read only | CUTTING, its settings | they are set back |
| settle: both logs end at one offset, and did for a while | | the same |
| in that while: take the tables a last time, sync the log | log and tables | the same |
| promote | PROMOTED | |

What stops writers is the role: a broker of RocketMQ asks for its own role at every put, while its
`brokerPermission` (and what a name server gets) only changes routes, which producers read every
30 s. Reading continues, `slaveReadEnable` sees to that: consumers may finish what is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.follower import Follower
from duolog_server.compat.migration.preconditions import check_master, check_same
from duolog_server.compat.migration.rocketmqbroker import OldBroker, Runtime
from duolog_server.compat.migration.state import UNENDED, Following, State
from duolog_server.compat.remoting.calling import CallRefused

PERMISSION = {"brokerPermission": "4"}  # to read
FROZEN = {"brokerRole": "SLAVE", "slaveReadEnable": "true", **PERMISSION}
CLOSE_BYTES = 4 << 20  # so much is copied in a moment
NEAR_BYTES = 64 << 10  # and so much in none; a broker that is busy may never be as near
GIVEN_UP = "its cut-over is given up, and the broker may store no messages: `duolog migrate abort`"
LOOKS = 5  # at the copy, in the time for which it must not grow
_FAILURES = (OSError, TimeoutError, CallRefused, CannotFollow)


class CutoverFailed(Exception):
    """The cut-over failed before promotion; the text says why, and the broker's state."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the steps of a cut-over may take, in seconds.

    producers: given to producers, who read their routes anew, before the broker refuses messages;
    where other brokers have the same topics, none of their sends fails then. pause: between two
    looks at how far the copy is. look: for which the broker's log must not have grown at the end.
    """

    catch_up: float = 600.0
    producers: float = 0.0
    settle: float = 30.0
    pause: float = 1.0
    look: float = 0.25


async def give_back(broker: OldBroker, following: Following) -> None:
    """Have the broker store messages again, if it was set not to.

    What somebody has set otherwise there meanwhile stays. Raises CannotFollow where another one has
    its address, CallRefused, OSError, TimeoutError.
    """
    saved = following.saved
    if saved:
        found = await broker.settings()
        check_master(found, following)
        by_hand = {key: found[key] for key in found.keys() & FROZEN if found[key] != FROZEN[key]}
        wanted = {**saved, **by_hand}  # all of them: a freeze without an answer may be on its way
        await broker.change(wanted)
        wrong = _differing(await broker.settings(), wanted)
        if wrong:
            raise ConnectionError(f"the broker accepted the settings, but still reports {wrong}")


def _differing(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """The settings that are not as they should be; empty if all are."""
    return ", ".join(f"{key}={found.get(key)}" for key in wanted if found.get(key) != wanted[key])


class Cutover:
    """One attempt, by a follower that is open.

    Attributes:
        goes_back: it has failed, and has the broker store messages again: nothing may stop that.
    """

    def __init__(self, follower: Follower, say: Callable[[str], None], patience: Patience) -> None:
        """say: told each step as it is done."""
        self._follower = follower
        self._say = say
        self._patience = patience
        self.goes_back = False
        self._putting_ms = 0  # when it was last asked

    async def run(self) -> int:
        """Cut over; the offset at which duolog's own log begins. Raises CutoverFailed."""
        follower = self._follower
        try:
            frozen = await self._goes_on()
            if not frozen:
                await self._catch_up()
            saved = await self._settings()
            self._check_follows()
            follower.becomes(State.CUTTING, saved=saved)
        except (*_FAILURES, asyncio.CancelledError) as error:
            self._note_stopped(error)
            raise CutoverFailed(f"{_text(error)}; {self._as_before()}") from error
        try:
            if not frozen:
                await self._freeze()
            end = await self._complete()
        except BaseException as error:
            await self._go_back(saved, error)
        return self._promoted(end)

    def _as_before(self) -> str:
        if not self._follower.following.saved:
            return "nothing changed"
        return UNENDED

    async def join(self, cut: int) -> int:
        """Promote one more copy at the offset of another one's cut-over; the broker is not changed.

        So all replicas of a group begin with the same bytes. Raises CutoverFailed.
        """
        follower = self._follower
        if follower.following.saved:
            raise CutoverFailed("another cut-over is running: first run `duolog migrate abort`")
        try:
            await self._catch_up()
            follower.becomes(State.CUTTING, saved={})
            try:
                self._check_frozen(await follower.broker.settings())
                end = await self._complete()
                if end != cut:
                    raise ConnectionError(f"the logs end at {end}, the other copy was cut at {cut}")
            except BaseException:
                follower.becomes(State.FOLLOWING)
                raise
        except (*_FAILURES, asyncio.CancelledError) as error:
            raise CutoverFailed(f"{_text(error)}; nothing changed") from error
        return self._promoted(end)

    def _promoted(self, end: int) -> int:
        try:
            self._follower.becomes(State.PROMOTED, cut=end)
        except OSError as error:
            raise CutoverFailed(
                f"the copy has everything, but its promotion could not be noted: {_text(error)}; "
                "the broker stores no messages: `duolog migrate status` says whether it was noted; "
                "cut over again, or run `duolog migrate abort`"
            ) from error
        self._say(f"promoted: the log is duolog's own from offset {end} on")
        return end

    # -- the steps -----------------------------------------------------------------------------

    async def _goes_on(self) -> bool:
        """Whether an earlier attempt has stopped the broker's writers: nobody waits for less.

        One that had not, or was undone by hand there, is over: its settings may be old ones.
        """
        follower, following = self._follower, self._follower.following
        if not following.saved:
            return False
        found = await follower.broker.settings()
        check_master(found, following)
        if not _differing(found, FROZEN):
            return True
        await give_back(follower.broker, following)
        follower.becomes(State.FOLLOWING, saved={})
        self._say("the broker stores messages: an earlier cut-over is over, this one begins anew")
        return False

    async def _catch_up(self) -> None:
        follower, seconds, pause = self._follower, self._patience.catch_up, self._patience.pause
        await follower.shown(min(seconds, pause))  # not the pause of a look that came too early

        async def close() -> bool:
            await follower.ask()
            return follower.follows and follower.behind_bytes <= CLOSE_BYTES

        await self._until(
            close,
            (seconds, pause),
            lambda: (
                f"the copy is {follower.behind_bytes} bytes behind after {seconds:g} s "
                f"{follower.reason}".rstrip()
            ),
        )
        await self._come_near()
        self._say(f"caught up: {follower.behind_bytes} bytes behind")

    async def _come_near(self) -> None:
        """Do what can be done before the broker refuses messages: less is left for afterwards."""
        follower, loop = self._follower, asyncio.get_running_loop()
        await follower.take_tables()
        await follower.made_durable(follower.end)
        until = loop.time() + self._patience.pause
        while follower.behind_bytes > NEAR_BYTES and loop.time() < until:
            await asyncio.sleep(self._patience.look / LOOKS)
            await follower.ask()

    async def _settings(self) -> dict[str, str]:
        """The settings to restore on the broker if this fails."""
        if self._follower.following.saved:  # of an attempt that this one continues
            return dict(self._follower.following.saved)
        found = await self._follower.broker.settings()
        following = self._follower.following
        check_same(found, following.name, following.broker)
        missing = [key for key in FROZEN if not found.get(key)]
        if missing:
            raise ConnectionError(f"the broker does not report its {', '.join(missing)}")
        if found["brokerRole"] == "SLAVE":
            raise ConnectionError(
                "the broker is a slave: cut over from its master. If another copy was promoted "
                "already, give --join OFFSET"
            )
        return {key: found[key] for key in FROZEN}

    async def _freeze(self) -> None:
        broker, seconds = self._follower.broker, self._patience.producers
        check_master(await broker.settings(), self._follower.following)
        if seconds:
            await broker.change(PERMISSION)
            self._say(f"routes permit reading alone: waiting {seconds:g} s for producers to go")
            await asyncio.sleep(seconds)
        await broker.change(FROZEN)
        self._check_frozen(await broker.settings())
        self._say("the broker stores no more messages")

    @staticmethod
    def _check_frozen(found: Mapping[str, str]) -> None:
        wrong = _differing(found, FROZEN)
        if wrong:
            raise ConnectionError(f"the broker still stores messages: it reports {wrong}")

    async def _complete(self) -> int:
        """The end of both logs, once everything up to there is here, and on disk.

        The broker's log must not have grown for a while: a put that asked for the broker's role
        before it changed may be waiting for the disk still, with others behind it. That it has not
        is seen by one question at the end: the copy had all of it at the beginning. What else is
        to be done is done in that time. RocketMQ 5 takes up to half a second for the answer.
        Tables that were taken before the copy grew would have to be taken again: they wait until it
        has not for a moment.
        """
        follower, loop = self._follower, asyncio.get_running_loop()
        deadline = loop.time() + self._patience.settle
        await follower.shown(self._patience.pause)
        moment, grows = self._patience.look / LOOKS, follower.behind_bytes > 0
        while True:
            end, again = follower.end, loop.time() + self._patience.look
            if grows:
                await asyncio.sleep(moment)
            if follower.end == end:
                await follower.take_tables()
                await follower.made_durable(end)
            while follower.end == end and (left := again - loop.time()) > 0:
                await asyncio.sleep(min(left, moment))
            grows = follower.end != end
            if not grows:
                found = await follower.ask()
                if self._ends_with(found) and found.end == end:
                    break
            self._check_follows()
            if loop.time() >= deadline:
                raise TimeoutError(
                    f"the broker's log ends at {follower.broker_end}, the copy at {follower.end} "
                    f"{self._reason()}".rstrip()
                )
        await follower.reserve_deleted()
        self._say(f"both logs end at offset {end}")
        tables = follower.tables
        self._say(
            f"tables taken: {len(tables.topics)} topics, {len(tables.groups)} groups, offsets of "
            f"{len(tables.offsets)} topics and groups, {len(tables.delay_offsets)} delay levels"
        )
        return end

    def _ends_with(self, found: Runtime) -> bool:
        """Whether both logs end alike, with no put that holds the lock of the broker's."""
        follower = self._follower
        self._putting_ms = found.putting_ms
        return follower.follows and not found.putting_ms and found.end == follower.end

    def _reason(self) -> str:
        """Why two logs that end at one offset do not count; empty for others."""
        if self._putting_ms:
            return f"(a put has held the lock of the broker's log for {self._putting_ms} ms)"
        return self._follower.reason

    async def _until(
        self,
        done: Callable[[], Awaitable[bool]],
        times: tuple[float, float],
        late: Callable[[], str],
    ) -> None:
        """times: the longest wait, and the one between two looks."""
        loop, (seconds, pause) = asyncio.get_running_loop(), times
        deadline = loop.time() + seconds
        while not await done():
            self._check_follows()
            if loop.time() >= deadline:
                raise TimeoutError(late())
            await asyncio.sleep(pause)

    def _check_follows(self) -> None:
        """Raise ConnectionError where the copy has stopped for good."""
        if self._follower.failed.done():
            raise ConnectionError(str(self._follower.failed.exception()))

    def _note_stopped(self, error: BaseException) -> None:
        """A node that waits does not continue what a signal has stopped."""
        follower = self._follower
        if follower.following.saved and isinstance(error, asyncio.CancelledError):
            with suppress(OSError):
                follower.becomes(State.CUTTING, reason=GIVEN_UP)

    async def _go_back(self, saved: Mapping[str, str], error: BaseException) -> NoReturn:
        """Have the broker store messages again. Raises CutoverFailed."""
        follower, self.goes_back = self._follower, True
        self._note_stopped(error)
        try:
            await give_back(follower.broker, follower.following)
            follower.becomes(State.FOLLOWING, saved={})
        except _FAILURES as another:
            settings = ", ".join(f"{key}={value}" for key, value in saved.items())
            raise CutoverFailed(
                f"{_text(error)}; and the broker did not take the setting to store messages again "
                f"({_text(another)}): run `duolog migrate abort`, or set {settings} in its "
                "configuration and restart it"
            ) from error
        raise CutoverFailed(f"{_text(error)}; the broker stores messages again") from error


def _text(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "it was stopped"
    return str(error) or type(error).__name__
