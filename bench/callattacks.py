"""Clients that mean harm, by calls of gRPC that are begun well: see `bench.attackers`."""

import contextlib
import struct
from collections.abc import Callable, Sequence

from bench import http2bytes as h2
from bench.attackers import Answers, Counts, connect, told_to_end, under_way

APPEND = b"/duolog.v1.Messages/Append"
LIST_TOPICS = b"/duolog.v1.Admin/ListTopics"
HEARTBEAT = b"/apache.rocketmq.v2.MessagingService/Heartbeat"
TELEMETRY = b"/apache.rocketmq.v2.MessagingService/Telemetry"
MESSAGE_BYTES = 60 << 20
LATE_BYTES = 65_536  # of a message, which never come
STREAMS = 2000  # of a connection
ID_BYTES = 15_000


class Caller:
    """A connection over which calls are made, and what the server says of them."""

    def __init__(self, endpoint: str, number: int = 0, window: int = 65_535) -> None:
        self._socket = connect(endpoint, number)
        self._socket.settimeout(10)
        self.counts: Counts = {"reset": 0, "goaway": 0}
        self.answers = Answers(self._socket, self.counts)
        self.send(h2.greeting(window) + h2.frame(h2.SETTINGS, h2.ACK, 0))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Whether it was taken."""
        with contextlib.suppress(OSError):
            if not self.answers.ended:
                self._socket.sendall(data)
                return True
        self.answers.ended = 1
        return False

    def send_data(self, stream: int, size: int) -> int:
        """Bytes that were sent of so many, as far as the server lets it."""
        windows = self.answers.windows
        now = min(h2.BLOCK_BYTES_MAX, size, windows[0], windows.get(stream, 0))
        if now <= 0 or not self.send(h2.frame(h2.DATA, 0, stream, bytes(now))):
            return 0
        windows[0] -= now
        windows[stream] -= now
        return now


def half_messages(endpoint: str, count: int) -> Counts:
    """Calls on one connection with messages of 60 MiB that do not end."""
    caller = Caller(endpoint)
    left = {2 * n + 1: MESSAGE_BYTES - LATE_BYTES for n in range(count)}
    head = b"\0" + struct.pack(">I", MESSAGE_BYTES)
    for stream in left:
        caller.answers.windows[stream] = caller.answers.initial - len(head)
        caller.send(h2.begin(stream, h2.call_block(APPEND)) + h2.frame(h2.DATA, 0, stream, head))
    caller.answers.windows[0] -= len(head) * count
    caller.answers.read(0.3)
    under_way()
    while not (told_to_end() or caller.answers.ended):
        sent = 0
        for stream in left:
            now = caller.send_data(stream, left[stream])
            left[stream] -= now
            sent += now
        caller.answers.read(0.0 if sent else 0.1)
    late = LATE_BYTES * count + sum(left.values())
    return {**caller.counts, "ended": caller.answers.ended, "sent": MESSAGE_BYTES * count - late}


def half_crowd(endpoint: str, count: int) -> Counts:
    """Connections with a message each of 60 MiB that does not end."""
    return send_halves(endpoint, count, APPEND)


def returning_halves(endpoint: str, count: int) -> Counts:
    """The same from one address, on connections made anew as soon as they are ended."""
    callers = [_begun_half(endpoint, 0, APPEND) for _ in range(count)]
    left = [MESSAGE_BYTES - LATE_BYTES] * count
    under_way()
    sent = ended = 0
    while not told_to_end():
        now = 0
        for at, caller in enumerate(callers):
            caller.answers.read(0.0)
            if caller.answers.ended:
                ended += 1
                caller.close()
                callers[at] = caller = _begun_half(endpoint, 0, APPEND)
                left[at] = MESSAGE_BYTES - LATE_BYTES
            size = caller.send_data(1, left[at])
            left[at] -= size
            now += size
        sent += now
        if not now:
            told_to_end(0.01)
    return {"connections": count + ended, "ended": ended, "sent_bytes": sent}


def _begun_half(endpoint: str, number: int, path: bytes) -> Caller:
    """A connection with a call of which a long message begins."""
    caller = Caller(endpoint, number)
    head = b"\0" + struct.pack(">I", MESSAGE_BYTES)
    caller.answers.windows[1] = caller.answers.initial - len(head)
    caller.send(h2.begin(1, h2.call_block(path)) + h2.frame(h2.DATA, 0, 1, head))
    caller.answers.windows[0] -= len(head)
    return caller


def send_halves(endpoint: str, count: int, path: bytes) -> Counts:
    """The same with a method of that path."""
    callers = [_begun_half(endpoint, number, path) for number in range(count)]
    left = dict.fromkeys(callers, MESSAGE_BYTES - LATE_BYTES)
    under_way()
    while not told_to_end():
        sent = 0
        for caller in callers:
            caller.answers.read(0.0)
            now = caller.send_data(1, left[caller])
            left[caller] -= now
            sent += now
        if not sent:
            told_to_end(0.05)
    sent = (MESSAGE_BYTES - LATE_BYTES) * count - sum(left.values())
    return {"ended": sum(caller.answers.ended for caller in callers), "sent_bytes": sent}


def held_open(callers: Sequence[Caller]) -> Counts:
    """Keep the streams of some connections open, and take what comes, until told to end."""
    under_way()
    while not told_to_end(0.1):
        for caller in callers:
            caller.answers.read(0.01)
    return {
        "reset": sum(caller.counts["reset"] for caller in callers),
        "ended": sum(caller.answers.ended for caller in callers),
    }


def many_streams(endpoint: str, count: int) -> Counts:
    """Telemetry streams that are held open, on as many connections as they need."""
    callers = [Caller(endpoint, number) for number in range(count // STREAMS)]
    for n in range(STREAMS):
        for number, caller in enumerate(callers):
            name = h2.field(b"x-mq-client-id", b"c%d-%d" % (number, n))
            caller.send(h2.begin(2 * n + 1, h2.call_block(TELEMETRY, name)))
            if n % 100 == 99:
                caller.answers.read(0.001)
    return held_open(callers)


def deaf_calls(endpoint: str, count: int) -> Counts:
    """Lists of all topics on one connection, which nobody takes."""
    caller = Caller(endpoint, window=0)
    for n in range(count):
        call = h2.begin(2 * n + 1, h2.call_block(LIST_TOPICS))
        caller.send(call + h2.message(2 * n + 1, b"", h2.END_STREAM))
        if n % 100 == 99:
            caller.answers.read(0.001)
    under_way()
    while not told_to_end(0.1):
        caller.answers.read(0.1)
    return {**caller.counts, "ended": caller.answers.ended}


def strange_clients(endpoint: str, count: int) -> Counts:
    """Calls of which each names another client, at length."""
    caller, calls = Caller(endpoint), 0
    under_way()
    while not (told_to_end() or caller.answers.ended):
        piece = b""
        for n in range(calls, calls + count):
            name = h2.field(b"x-mq-client-id", b"%08d" % n + b"x" * ID_BYTES)
            piece += h2.begin(2 * n + 1, h2.call_block(HEARTBEAT, name))
            piece += h2.message(2 * n + 1, b"", h2.END_STREAM)
        if caller.send(piece):
            calls += count
        caller.answers.read(0.0)
    return {"calls": calls, **caller.counts, "ended": caller.answers.ended}


ATTACKS: dict[str, Callable[[str, int], Counts]] = {
    one.__name__: one
    for one in (
        half_messages,
        half_crowd,
        returning_halves,
        many_streams,
        deaf_calls,
        strange_clients,
    )
}

__all__ = ["ATTACKS", "Caller", "send_halves"]
