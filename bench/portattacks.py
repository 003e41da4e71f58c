"""Clients that mean harm to the ports beside those of messages: see `bench.attackers`."""

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable

from bench import http2bytes as h2
from bench.attackers import Counts, connect, told_to_end, under_way
from bench.callattacks import Caller, held_open, send_halves
from duolog_server.node.replication.stream import HA_METHOD

CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"
STREAMS = 64  # of a connection to the replication port


class _Asking:
    """Connections that ask for a page each, take the answer, and begin anew."""

    def __init__(self, endpoint: str, request: bytes) -> None:
        self._endpoint, self._request = endpoint, request
        self._selector = selectors.EpollSelector()
        self.asked = self.answered = self.bytes = 0

    def begin(self) -> None:
        """One more."""
        with contextlib.suppress(OSError):
            made = connect(self._endpoint)
            made.sendall(self._request)
            made.setblocking(False)
            self._selector.register(made, selectors.EVENT_READ, [0])
            self.asked += 1

    def go_on(self) -> None:
        """Read what came; where an answer is over, ask again."""
        for key, _ in self._selector.select(0.1):
            made = key.fileobj
            assert isinstance(made, socket.socket)
            data = b""
            with contextlib.suppress(OSError):
                data = made.recv(1 << 20)
            key.data[0] += len(data)
            if not data:
                self.answered += key.data[0] > 0
                self.bytes += key.data[0]
                self._selector.unregister(made)
                made.close()
                self.begin()


def _asks(endpoint: str, count: int, path: str) -> Counts:
    lines = (f"GET {path} HTTP/1.1", f"Host: {endpoint}", "Connection: close", "", "")
    asking = _Asking(endpoint, "\r\n".join(lines).encode())
    for _ in range(count):
        asking.begin()
    under_way()
    while not told_to_end():
        asking.go_on()
    return {"asked": asking.asked, "answered": asking.answered, "bytes": asking.bytes}


def scrapes(endpoint: str, count: int) -> Counts:
    """Requests for all metrics, as fast as they are answered."""
    return _asks(endpoint, count, "/metrics")


def console_pages(endpoint: str, count: int) -> Counts:
    """Requests for the console's list of topics, as fast as they are answered."""
    return _asks(endpoint, count, "/topics")


def health_checks(endpoint: str, count: int) -> Counts:
    """Calls that ask for a node's health, many under way at a time."""
    caller, calls = Caller(endpoint), 0
    under_way()
    while not (told_to_end() or caller.answers.ended):
        piece = b""
        for n in range(calls, calls + count):
            piece += h2.begin(2 * n + 1, h2.call_block(CHECK))
            piece += h2.message(2 * n + 1, b"", h2.END_STREAM)
        if caller.send(piece):
            calls += count
        caller.answers.read(0.0)
    return {"calls": calls, **caller.counts, "ended": caller.answers.ended}


def health_watches(endpoint: str, count: int) -> Counts:
    """Streams that watch a node's health, on as many connections as they need."""
    callers = [Caller(endpoint, number) for number in range(count // 2000)]
    for n in range(2000):
        for caller in callers:
            call = h2.begin(2 * n + 1, h2.call_block(WATCH))
            caller.send(call + h2.message(2 * n + 1, b"", h2.END_STREAM))
            if n % 100 == 99:
                caller.answers.read(0.001)
    return held_open(callers)


def mute_slaves(endpoint: str, count: int) -> Counts:
    """Streams of slaves that say nothing, on as many connections as they need."""
    callers = [Caller(endpoint, number) for number in range(count // STREAMS)]
    for caller in callers:
        for n in range(STREAMS):
            caller.send(h2.begin(2 * n + 1, h2.call_block(HA_METHOD.encode())))
        caller.answers.read(0.001)
    return held_open(callers)


def half_reports(endpoint: str, count: int) -> Counts:
    """Reports of slaves that do not end."""
    return send_halves(endpoint, count, HA_METHOD.encode())


def half_greetings(endpoint: str, count: int) -> Counts:
    """Slaves of RocketMQ that send half an offset, again and again."""
    sent = 0
    under_way()
    while not told_to_end():
        for number in range(count):
            with contextlib.suppress(OSError), connect(endpoint, number + 1) as made:
                made.sendall(struct.pack(">I", 0))
                sent += 1
    return {"connections": sent}


ATTACKS: dict[str, Callable[[str, int], Counts]] = {
    one.__name__: one
    for one in (
        scrapes,
        console_pages,
        health_checks,
        health_watches,
        mute_slaves,
        half_reports,
        half_greetings,
    )
}

__all__ = ["ATTACKS"]
