"""The connections of this process's ports, and how many bytes came on each, as the kernel says.

gRPC's core accepts them itself and reports none; so they are found among the descriptors of this
process, which stay the core's: none is closed here.
"""

import array
import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from duolog_server.node.net.grpc.receive_limit.ledger import Name, name_of

DESCRIPTORS = "/proc/self/fd"
AT_ONCE = 16  # in a step: up to a ms where all are new
_INFO_BYTES = 136
_ACKED_AND_RECEIVED = struct.Struct("=QQ")  # of Linux's tcp_info
_ACKED_AT = 120
ANSWER_PART = 64  # a client acknowledges answers in less than this part of their bytes


@dataclass(slots=True)
class _Socket:
    """name: the client's; None for anything but an open connection of these ports. raw: bytes that
    came, as the kernel says. received: those that were read, and are no acknowledgements.
    """

    inode: int
    line: socket.socket | None = None
    name: Name | None = None
    raw: int = 0
    received: int = 0


class Sockets:
    """The connections of some ports."""

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = ports
        self._known: dict[int, _Socket] = {}  # by descriptor

    def find(self) -> Iterator[None]:
        """Look for new ones, in steps between which others may have their turn."""
        found = set[int]()
        with os.scandir(DESCRIPTORS) as entries:
            for entry in entries:
                if len(found) % AT_ONCE == AT_ONCE - 1:
                    yield
                number = int(entry.name)
                found.add(number)
                self._learn(number)
        for gone in self._known.keys() - found:
            self._forget(gone)

    def _learn(self, number: int) -> None:
        try:
            status = os.fstat(number)
        except OSError:
            self._forget(number)
            return
        known = self._known.get(number)
        if known is not None and known.inode == status.st_ino:
            return
        self._forget(number)
        self._known[number] = found = _Socket(status.st_ino)
        if stat.S_ISSOCK(status.st_mode):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                line = socket.socket(fileno=number)
                found.name = self._client_of(line)
                if found.name is not None:
                    found.line = line
                else:
                    line.detach()

    def _client_of(self, line: socket.socket) -> Name | None:
        try:
            if line.type != socket.SOCK_STREAM or line.getsockname()[1] not in self._ports:
                return None
            return name_of(*line.getpeername()[:2])
        except (OSError, IndexError, TypeError):  # it listens, or has no address of this kind
            return None

    def _forget(self, number: int) -> None:
        known = self._known.pop(number, None)
        if known is not None and known.line is not None:
            known.line.detach()  # the core's, or closed already

    def received(self) -> Iterator[dict[Name, int]]:
        """Bytes that came on each, without those that nobody has read yet; some of them at a time:
        others may have their turn in between.
        """
        found: dict[Name, int] = {}
        for number, one in list(self._known.items()):
            if one.line is None or one.name is None:
                continue
            if len(found) == AT_ONCE:
                yield found
                found = {}
            try:
                self._read(one, one.line)
            except OSError:
                self._forget(number)
            else:
                found[one.name] = one.received
        yield found

    def _read(self, one: _Socket, line: socket.socket) -> None:
        """Raises OSError."""
        info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            raise OSError("the kernel's TCP_INFO lacks the bytes received: use Linux 4.2 or newer")
        acked, raw = _ACKED_AND_RECEIVED.unpack_from(info, _ACKED_AT)
        if raw != one.raw or one.raw > one.received:
            unread = array.array("i", [0])
            fcntl.ioctl(line, termios.FIONREAD, unread)
            one.raw, one.received = raw, max(0, raw - unread[0] - acked // ANSWER_PART)

    def end(self, names: Collection[Name]) -> None:
        """End connections. A descriptor may be another one's by now."""
        for number, one in list(self._known.items()) if names else ():
            if one.name not in names:
                continue
            try:
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with socket.socket(fileno=os.dup(number)) as line:
                    if self._client_of(line) == one.name:
                        line.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._forget(number)
            else:
                one.name = None  # until the core has closed it

    def close(self) -> None:
        """Look no more."""
        for number in list(self._known):
            self._forget(number)


def has_counters() -> bool:
    """Whether this system counts the bytes of connections."""
    return hasattr(socket, "TCP_INFO") and os.path.isdir(DESCRIPTORS)
