"""Ports that accept a few connections in each turn of the event loop.

asyncio accepts as many connections in a turn as its backlog says, and begins them together in the
next turns: after a failover, when all clients reconnect, requests of others would wait for all of
them. So the backlog that asyncio knows is small, and the one of the kernel is set afterwards.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable

ACCEPTED_AT_ONCE = 2  # in a turn
EVERY = "::"  # every address, of IPv4 as well
QUEUE = 1024  # connections that wait to be accepted


async def listen(made: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Server:
    """Serve each connection with a protocol that `made` returns; port 0 takes a free one. On
    `[::]`, IPv4 clients are served as well, as gRPC does. Raises OSError.
    """
    loop, host = asyncio.get_running_loop(), host.strip("[]")
    if host == EVERY and socket.has_dualstack_ipv6():
        both = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        server = await loop.create_server(made, sock=both, backlog=ACCEPTED_AT_ONCE)
    else:
        server = await loop.create_server(made, host or None, port, backlog=ACCEPTED_AT_ONCE)
    for one in server.sockets:
        with one.dup() as same:  # what asyncio shows of a socket cannot listen
            queue((same,))
    return server


async def close(server: asyncio.Server) -> None:
    """Accept no more, and close; what was accepted already is made first.

    asyncio makes a connection in the turn after it was accepted, and fails where its server is
    closed in between: nobody would close that socket then.
    """
    loop = asyncio.get_running_loop()
    try:
        for one in server.sockets:
            loop.remove_reader(one.fileno())
        await asyncio.sleep(0)
    finally:
        server.close()


def queue(listeners: Iterable[socket.socket]) -> None:
    """Let more connections wait than asyncio accepts at once."""
    for one in listeners:
        one.listen(QUEUE)
