"""What clients that mean harm share: connections that are held, and what they tell of themselves.

Each is a process of its own. It prints a line when its attack is under way, goes on until the end
of its standard input, and prints what it did as JSON.
"""

import contextlib
import resource
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import http2bytes as h2

ROOT = Path(__file__).parent.parent
SLOT_SECONDS = 0.05  # of what was sent
SLOW_SECONDS = 1.0  # between two bytes
ADDRESSES = 250  # of the loopback, from which connections come
Counts = dict[str, int]


class Sent:
    """Bytes that this process sent, and when.

    Attributes:
        slots: how many there were at the end of each slot since the first connection.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots: list[int] = []
        self._clock = clock
        self._began: float | None = None
        self._total = 0

    def add(self, size: int) -> None:
        """So many were; 0 for a connection that begins."""
        now = self._clock()
        if self._began is None:
            self._began = now
        gone = int((now - self._began) / SLOT_SECONDS)
        while len(self.slots) <= gone:
            self.slots.append(self._total)
        self._total += size
        self.slots[gone] = self._total


SENT = Sent()


class _Line(socket.socket):
    """A connection whose bytes are counted."""

    def send(self, data: Any, flags: int = 0) -> int:
        """See socket."""
        size = super().send(data, flags)
        SENT.add(size)
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See socket."""
        super().sendall(data, flags)
        SENT.add(len(data))


def connect(endpoint: str, number: int = 0) -> socket.socket:
    """A connection; number: chooses one of the loopback's addresses to come from."""
    host, _, port = endpoint.rpartition(":")
    SENT.add(0)
    made = _Line()
    if number:
        made.bind((f"127.0.1.{number % ADDRESSES + 1}", 0))
    made.settimeout(10)
    made.connect((host, int(port)))
    return made


def told_to_end(seconds: float = 0.0) -> bool:
    """Whether the standard input ended, looked at for so long."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def under_way() -> None:
    """Say that the attack is on."""
    print("attacking", flush=True)


class Held:
    """Connections that are held open, and read where they must be."""

    def __init__(self) -> None:
        self.open: set[socket.socket] = set()
        self.ended = self.refused = 0
        self._selector = selectors.EpollSelector()

    def add(self, endpoint: str, first: bytes = b"", number: int = 0) -> socket.socket | None:
        """One more, that begins with some bytes; None where it is refused."""
        try:
            made = connect(endpoint, number)
            made.setblocking(False)
            if first:
                made.send(first)
        except OSError:
            self.refused += 1
            return None
        self.open.add(made)
        self._selector.register(made, selectors.EVENT_READ)
        return made

    def read(self, seconds: float = 0.0) -> None:
        """Take what came, and count those that the other side ended."""
        for key, _ in self._selector.select(seconds):
            made = key.fileobj
            assert isinstance(made, socket.socket)
            try:
                if made.recv(65_536):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            self.drop(made)

    def drop(self, made: socket.socket) -> None:
        """It was ended by the other side."""
        if made in self.open:
            self.open.discard(made)
            self._selector.unregister(made)
            made.close()
            self.ended += 1

    def send(self, data: bytes) -> None:
        """Send some bytes over each."""
        for made in list(self.open):
            try:
                made.send(data)
            except BlockingIOError:
                continue
            except OSError:
                self.drop(made)

    def counts(self) -> Counts:
        """For the report."""
        return {"open": len(self.open), "ended": self.ended, "refused": self.refused}


def held(endpoint: str, count: int, first: bytes, trickle: bytes = b"") -> Counts:
    """Connections that say little: `first` at once, of `trickle` one byte a second."""
    all_of_them = Held()
    for number in range(count):
        all_of_them.add(endpoint, first, number)
        if number % 500 == 499:
            all_of_them.read()
    under_way()
    at = 0
    while not told_to_end(SLOW_SECONDS):
        all_of_them.read()
        if trickle:
            all_of_them.send(trickle[at % len(trickle) :][:1])
            at += 1
    return all_of_them.counts()


class Answers:
    """Reads frames of a server, answers PING and SETTINGS, and counts what it refuses."""

    def __init__(self, made: socket.socket, counts: Counts) -> None:
        self._made, self._counts = made, counts
        self._data = bytearray()
        self.ended = 0
        self.windows = {0: h2.WINDOW, 1: h2.WINDOW}  # bytes that the server takes now
        self.initial = h2.WINDOW  # of a stream that begins

    def read(self, seconds: float) -> None:
        """Take what is there."""
        while not self.ended and select.select([self._made], [], [], seconds)[0]:
            seconds = 0.0
            try:
                data = self._made.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.ended = 1
                return
            self._data += data
            self._frames()

    def _frames(self) -> None:
        data = self._data
        at = 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == h2.RST_STREAM:
                self._counts["reset"] += 1
            elif kind == h2.GOAWAY:
                self._counts["goaway"] += 1
            elif kind == h2.WINDOW_UPDATE:
                stream, more = struct.unpack_from(">II", data, at + 5)
                self.windows[stream] = self.windows.get(stream, 0) + more
            elif kind == h2.SETTINGS:
                for name, value in struct.iter_unpack(">HI", data[at + 9 : at + 9 + length]):
                    if name == h2.INITIAL_WINDOW:
                        for stream in filter(None, self.windows):
                            self.windows[stream] += value - self.initial
                        self.initial = value
            elif kind == h2.PING and not flags:
                with contextlib.suppress(OSError):
                    self._made.sendall(
                        h2.frame(h2.PING, h2.ACK, 0, bytes(data[at + 9 : at + 9 + length]))
                    )
            at += 9 + length
        del data[:at]


def key() -> bytes:
    """What frames begin with, as the command line says: anybody gets one where nobody has users."""
    return bytes.fromhex(sys.argv[4]) if len(sys.argv) > 4 else bytes(16)


def raise_limit() -> None:
    """Allow this process as many connections as the machine does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 17, max(hard, 1 << 17)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


__all__ = [
    "ROOT",
    "SENT",
    "SLOT_SECONDS",
    "Answers",
    "Counts",
    "Held",
    "Sent",
    "connect",
    "held",
    "key",
    "raise_limit",
    "told_to_end",
    "under_way",
]
