"""How a port accepts connections: some in each turn of the event loop, and some in a second.

asyncio accepts as many in a turn as may wait to be accepted, and begins them together in the next
ones: requests of others would wait for all of them. Those that wait for long are many, and the
loop would do nothing else for as long: so there is a pause after each few, in which clients that
are connected have the processor.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable

import structlog
from duolog._background import Background

log = structlog.get_logger("duolog.node")

ACCEPTED_AT_ONCE = 2  # in a turn
BURST = 32  # connections, without a pause
PAUSE_SECONDS = 0.004  # after ACCEPTED_AT_ONCE: 500 in a second
SCARCE_SECONDS = 1.0  # until the next try where the system has no room for a connection
EVERY = "::"  # every address, of IPv4 as well
QUEUE = 1024  # connections that wait to be accepted
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
Made = Callable[[], asyncio.BaseProtocol]


class Pace:
    """How many connections a port may accept now, at all its addresses together. No clock: it is
    told of seconds.
    """

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def pause_seconds(self, count: int, now: float) -> float:
        """So many were accepted; how long to accept no more."""
        gone = (now - self._at) / PAUSE_SECONDS
        self._left = min(float(BURST), self._left + gone * ACCEPTED_AT_ONCE) - count
        self._at = now
        lacking = (ACCEPTED_AT_ONCE - self._left) / ACCEPTED_AT_ONCE
        return max(1.0, lacking) * PAUSE_SECONDS if lacking > 0 else 0.0


class Listening:
    """A port that accepts.

    Attributes:
        sockets: where it listens.
    """

    def __init__(self, made: Made, sockets: Iterable[socket.socket]) -> None:
        """made: a protocol for each connection. sockets: bound; they are this one's from now on."""
        self.sockets = tuple(sockets)
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._beginning = Background()  # each is over in a turn or two
        self._pace = Pace()
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        for one in self.sockets:
            one.setblocking(False)
            one.listen(QUEUE)
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Accept no more; the connections go on. It may be closed already."""
        for timer in self._timers.values():
            timer.cancel()
        for one in self.sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one)
                one.close()

    def _accept(self, listener: socket.socket) -> None:
        count = 0
        while count < ACCEPTED_AT_ONCE:
            try:
                line, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in _SCARCE:
                    log.warning("a connection cannot be accepted", reason=str(error))
                    self._pause(listener, SCARCE_SECONDS)
                    return
                log.debug("a connection did not begin", reason=str(error))  # what broke it already
                count += 1
                continue
            self._beginning.start(self._begin(line))
            count += 1
        seconds = self._pace.pause_seconds(count, self._loop.time())
        if seconds:
            self._pause(listener, seconds)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listener)
        self._timers[listener] = self._loop.call_later(seconds, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        self._loop.add_reader(listener, self._accept, listener)

    async def _begin(self, line: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._made, line)
        except OSError as error:  # it is gone already
            log.debug("a connection did not begin", reason=str(error))
            line.close()


async def listen(made: Made, host: str, port: int) -> Listening:
    """Serve connections by what `made` gives; with port 0 on a free one. On `[::]`, IPv4 as well,
    as gRPC does. Raises OSError.
    """
    host = host.strip("[]")
    if host == EVERY and socket.has_dualstack_ipv6():
        both = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        return Listening(made, [both])
    bound = await asyncio.get_running_loop().create_server(
        made, host or None, port, start_serving=False
    )
    sockets: list[socket.socket] = []
    try:
        try:
            sockets += (one.dup() for one in bound.sockets)
        finally:
            bound.close()
        return Listening(made, sockets)
    except OSError:
        for one in sockets:
            asyncio.get_running_loop().remove_reader(one)
            one.close()
        raise


def queue(listeners: Iterable[socket.socket]) -> None:
    """Let more connections wait than asyncio accepts at once: it has one number for both."""
    for one in listeners:
        one.listen(QUEUE)


__all__ = ["ACCEPTED_AT_ONCE", "QUEUE", "Listening", "Pace", "listen", "queue"]
