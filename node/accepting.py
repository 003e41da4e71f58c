"""How a port accepts connections: some in each turn of the event loop.

asyncio accepts as many in a turn as may wait to be accepted, and begins them together in the next
ones: requests of others would wait for all of them.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable

ACCEPTED_AT_ONCE = 2  # in a turn
QUEUE = 1024  # connections that wait to be accepted


async def listen(made: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Server:
    """Serve connections by what `made` gives; with port 0 on a free one. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        made, host.strip("[]") or None, port, backlog=ACCEPTED_AT_ONCE
    )
    for one in server.sockets:
        with one.dup() as listener:
            queue((listener,))
    return server


def queue(listeners: Iterable[socket.socket]) -> None:
    """Let more connections wait than asyncio accepts at once: it has one number for both."""
    for one in listeners:
        one.listen(QUEUE)


__all__ = ["ACCEPTED_AT_ONCE", "QUEUE", "listen", "queue"]
