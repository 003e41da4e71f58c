"""One name server: the connection to it, and how it took the last registration.

Rules: it gets every change at once, and of all else every PERIOD_SECONDS. One that does not
take a registration delays nobody, and is logged once for each change. It is asked again after
RETRY_SECONDS, and after twice as long each time up to RETRY_SECONDS_MAX, however much changes.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

import structlog

from duolog_server.compat.remoting.calling import Access, Calling, CallRefused, connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.naming.registration import Registration

log = structlog.get_logger("duolog.remoting")

# A name server forgets a broker that is silent for 120 s; RocketMQ's tell it every 30 s. But one of
# the same name that shuts down has this node forgotten as well, wherever it is.
PERIOD_SECONDS = 10.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 5.0, 30.0
REGISTER_SECONDS = 6.0  # RocketMQ's
LEAVE_SECONDS = 1.0

Newer = Callable[[Registration | None, float], Awaitable[Registration | None]]


class NameServer:
    """A name server, and its knowledge of this node."""

    def __init__(self, address: str, access: Access) -> None:
        """address: HOST:PORT."""
        self.address = address
        self._access = access
        self._calling: Calling | None = None
        self._told: Registration | None = None  # the last one that it took
        self._told_at = -math.inf
        self._failed_at = -math.inf
        self._pause_seconds = 0.0  # before it is asked again; 0: it answers
        self._problem: str | None = None  # as logged; empty: it answers

    @property
    def is_reached(self) -> bool:
        """Whether it accepted the last registration, on a connection that is still open."""
        return self._told is not None and self._calling is not None and self._calling.is_open

    async def run(self, newer: Newer) -> None:
        """Keep it informed, until cancelled.

        newer: waits so many seconds for another registration than the one given; the newest.
        """
        seen: Registration | None = None
        while True:
            seen = await newer(seen, RETRY_SECONDS)
            if seen is not None and self._is_due(seen):
                await self._tell(seen, REGISTER_SECONDS)

    def _is_due(self, registration: Registration) -> bool:
        """Whether to send now, and not later."""
        now = asyncio.get_running_loop().time()
        if now - self._failed_at < self._pause_seconds:
            return False
        is_known = registration is self._told and self.is_reached
        return not is_known or now - self._told_at >= PERIOD_SECONDS

    async def _tell(self, registration: Registration, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            calling = self._calling
            if calling is None or not calling.is_open:
                calling = self._calling = await connect(self.address, self._access)
            code = RequestCode.REGISTER_BROKER
            await calling.call(code, registration.fields, registration.body, seconds)
        except (OSError, CallRefused) as error:  # TimeoutError is an OSError
            self._told, self._failed_at = None, loop.time()
            self._pause_seconds = min(
                max(RETRY_SECONDS, 2 * self._pause_seconds), RETRY_SECONDS_MAX
            )
            if isinstance(error, OSError):  # without the connection, it forgets what it took before
                self.close()
            self._note(str(error) or "it did not answer in time")
            return
        self._told, self._told_at, self._pause_seconds = registration, loop.time(), 0.0
        self._note("")

    def _note(self, problem: str) -> None:
        if bool(problem) != bool(self._problem) or self._problem is None:
            if problem:
                log.warning("name server: not registered", address=self.address, reason=problem)
            else:
                log.info("name server: registered", address=self.address)
        self._problem = problem

    async def leave(self, registration: Registration) -> None:
        """Unregister this node, within a moment. No task remains.

        It forgets who has an id, whatever the address: so a node that was the master, and is not
        any more, takes its own id first. A node that it was never told of has nothing to end.
        """
        if self.is_reached:
            with contextlib.suppress(OSError, CallRefused):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._unregister(registration)
        self.close()

    async def _unregister(self, registration: Registration) -> None:
        assert self._calling is not None, "reached"
        if registration is not self._told:
            await self._tell(registration, LEAVE_SECONDS)
        if self.is_reached:
            code = RequestCode.UNREGISTER_BROKER
            await self._calling.call(code, registration.unregister_fields(), seconds=LEAVE_SECONDS)

    def close(self) -> None:
        """End the connection."""
        if self._calling is not None:
            self._calling.close()
            self._calling = None
