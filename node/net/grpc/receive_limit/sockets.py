"""The connections of this process's ports, and how many bytes came on each, as the kernel says.

gRPC's core accepts them itself and tells nobody; so they are looked for among the descriptors of
this process, which stay the core's: none is closed here.
"""

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
import sys
import termios
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from duolog_server.node.net.grpc.receive_limit import segments
from duolog_server.node.net.grpc.receive_limit.ledger import Name, name_of

DESCRIPTORS = "/proc/self/fd"
AT_ONCE = 16  # in a step: up to a ms where all are new
_INFO_BYTES = 136
_ACKED_AND_RECEIVED = struct.Struct("=QQ")  # of Linux's tcp_info
_ACKED_AT = 120
_LIBC = ctypes.CDLL(None)
_NOWHERE = struct.pack("=H14x", socket.AF_UNSPEC)  # an address: connected to it, one is to nobody
ANSWER_PART = 64  # a client acknowledges answers in less than this part of their bytes
BOUND_BYTES = 192 << 10  # that a client may send which may not send what it likes


@dataclass(slots=True)
class _Socket:
    """name: the client's; None for what is no connection of these ports. raw: came, as the kernel
    says. received: that were read, and are no acknowledgements. listens: it is a port. is_bound:
    what it sends; None: as it was when its port made it.
    """

    inode: int
    line: socket.socket | None = None
    name: Name | None = None
    raw: int = 0
    received: int = 0
    listens: bool = False
    is_bound: bool | None = None


class Sockets:
    """Those of some ports."""

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = ports
        self._known: dict[int, _Socket] = {}
        self._held: Sequence[str] = ()  # networks, the first ones as far as there is memory
        self._fit = sys.maxsize  # of them: so many
        self._has_held = False  # any: of those that were, connections may still be found

    def find(self) -> Iterator[list[Name]]:
        """See which there are, in steps between which others may have their turn; the clients of
        those that are new.
        """
        found, new = set[int](), list[Name]()
        with os.scandir(DESCRIPTORS) as entries:
            for entry in entries:
                if len(found) % AT_ONCE == AT_ONCE - 1:
                    yield new
                    new = []
                number = int(entry.name)
                found.add(number)
                name = self._learn(number)
                if name is not None:
                    new.append(name)
        for gone in self._known.keys() - found:
            self._forget(gone)
        yield new

    def _learn(self, number: int) -> Name | None:
        """The client of a connection that was not known."""
        try:
            status = os.fstat(number)
        except OSError:
            self._forget(number)
            return None
        known = self._known.get(number)
        if known is not None and known.inode == status.st_ino:
            return None
        self._forget(number)
        self._known[number] = found = _Socket(status.st_ino)
        if stat.S_ISSOCK(status.st_mode):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                line = socket.socket(fileno=number)
                found.name = self._client_of(line)
                found.listens = found.name is None and self._is_port(line)
                if found.name is not None or found.listens:
                    found.line = line
                else:
                    line.detach()
                if found.listens:
                    self._begin(line)
        return found.name

    def _client_of(self, line: socket.socket) -> Name | None:
        try:
            if line.type != socket.SOCK_STREAM or line.getsockname()[1] not in self._ports:
                return None
            return name_of(*line.getpeername()[:2])
        except (OSError, IndexError, TypeError):  # it listens, or has no address of this kind
            return None

    def _is_port(self, line: socket.socket) -> bool:
        try:
            listens = line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return bool(listens) and line.getsockname()[1] in self._ports
        except (OSError, IndexError, TypeError):  # it is no socket of this kind
            return False

    def _begin(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # this system bounds nobody
            segments.remember(listener)
            if self._held:
                segments.hold(listener, self._held)

    def hold(self, networks: Sequence[str]) -> None:
        """What new connections from these networks send is dropped until `restrain`; from the first
        of them where there is too little memory for all.
        """
        if networks == self._held or set(networks[: self._fit]) == set(self._held[: self._fit]):
            return
        self._held, self._has_held, self._fit = networks, True, sys.maxsize
        for one in self._known.values():
            if one.line is not None and one.listens:
                with contextlib.suppress(OSError):  # it drops nothing: then nobody is bound
                    if networks:
                        self._fit = min(self._fit, segments.hold(one.line, networks))
                    else:
                        segments.free(one.line)

    def restrain(self, is_bound: Callable[[Name], bool]) -> Iterator[None]:
        """Let clients send what they like, or BOUND_BYTES from the beginning of their connections
        on; some at a time, as in `received`.
        """
        for at, one in enumerate(list(self._known.values()) if self._has_held else (), 1):
            if at % AT_ONCE == 0:
                yield
            if one.line is None or one.name is None:
                continue
            wanted = is_bound(one.name)
            if wanted != one.is_bound:
                one.is_bound = wanted
                with contextlib.suppress(OSError):  # it was free, or it is closed
                    _restrain(one.line, wanted)

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
            raise OSError("the system tells less of a connection")
        acked, raw = _ACKED_AND_RECEIVED.unpack_from(info, _ACKED_AT)
        if raw != one.raw or one.raw > one.received:
            unread = array.array("i", [0])
            fcntl.ioctl(line, termios.FIONREAD, unread)
            one.raw, one.received = raw, max(0, raw - unread[0] - acked // ANSWER_PART)

    def end(self, names: Collection[Name]) -> None:
        """End connections, with what came on them and was not read yet, which may be some MiB: the
        core would read it before it sees the end. A descriptor may be another one's by now.
        """
        for number, one in list(self._known.items()) if names else ():
            if one.name not in names:
                continue
            try:
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with socket.socket(fileno=os.dup(number)) as line:
                    if self._client_of(line) == one.name:
                        _disconnect(line)
            except OSError:
                self._forget(number)

    def close(self) -> None:
        """Look no more, and let all clients send."""
        self.hold(())
        if self._has_held:
            with contextlib.suppress(OSError):  # there is no descriptor left to look for them
                for _ in self.find():
                    pass
        for _ in self.restrain(lambda _: False):
            pass
        for number in list(self._known):
            self._forget(number)


def _restrain(line: socket.socket, is_bound: bool) -> None:
    """Raises OSError."""
    if is_bound:
        try:
            segments.bound(line, BOUND_BYTES)
            return
        except OSError:  # it was made by a port that remembers nothing
            pass
    segments.free(line)


def _disconnect(line: socket.socket) -> None:
    """End a connection, and drop what was not read; the descriptor stays open. Raises OSError."""
    if _LIBC.connect(line.fileno(), _NOWHERE, len(_NOWHERE)) != 0:
        line.shutdown(socket.SHUT_RDWR)


def are_told() -> bool:
    """Whether this system tells of them."""
    return hasattr(socket, "TCP_INFO") and os.path.isdir(DESCRIPTORS)


__all__ = ["Sockets", "are_told"]
