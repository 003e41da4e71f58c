"""An address taken before the node listens on it.

The sockets are bound and do not listen: connections are refused while the store is recovered, but
the port is known, and an address in use is reported at once. gRPC binds beside them, which
SO_REUSEADDR allows as long as neither listens.
"""

import socket

from duolog_server.node.net.listener import EVERY

ADVICE = "choose another address, or stop the process that uses it"
IN_USE = f"it is in use; {ADVICE}"


class ListenError(Exception):
    """The address cannot be listened on."""


class ReservedPort:
    """HOST:PORT, bound; with port 0 a free one is chosen."""

    def __init__(self, listen: str) -> None:
        """Raises ListenError if the address cannot be bound."""
        host, _, port = listen.rpartition(":")
        self.host, self.port = host, int(port)
        self._sockets: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in found:
                self._bind(socket.socket(family, kind, protocol), address)
        except (OSError, UnicodeError) as error:  # a name that DNS cannot have is no text for it
            self.release()
            reason = getattr(error, "strerror", None) or error
            raise ListenError(f"cannot listen on {listen}: {reason}; {ADVICE}") from None

    def _bind(self, made: socket.socket, address: tuple[object, ...]) -> None:
        self._sockets.append(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != EVERY)
        made.bind((address[0], self.port, *address[2:]))
        self.port = made.getsockname()[1]

    @property
    def address(self) -> str:
        """HOST:PORT with the port that was taken."""
        return f"{self.host}:{self.port}"

    def listen(self) -> list[socket.socket]:
        """Its sockets, which listen from now on and are the caller's. Raises ListenError."""
        taken, self._sockets = self._sockets, []
        try:
            for made in taken:
                made.listen()
        except OSError:
            for made in taken:
                made.close()
            raise ListenError(f"cannot listen on {self.address}: {IN_USE}") from None
        return taken

    def release(self) -> None:
        """Close the sockets; may be called again."""
        for made in self._sockets:
            made.close()
        self._sockets.clear()
