"""Clients that mean harm, by frames and by RocketMQ's remoting protocol: see `bench.attackers`."""

import contextlib
import json
import select
import socket
import struct
from collections.abc import Callable, Iterable

from duolog import _frames as frames
from duolog.wire import duolog_pb2 as wire

from bench.attackers import Counts, Held, connect, key, told_to_end, under_way

GROUPS, SUBSCRIPTIONS = 45, 1000  # of a heartbeat of 700 KiB
PULL_MESSAGE, HEARTBEAT, UNREGISTER = 11, 34, 35
REQUEST_BYTES = (1 << 24) - 8
FRAME_BYTES = (32 << 20) - 100
LATE_BYTES = 1_000_000  # of a frame that has begun, sent slowly
SLOWLY_BYTES = 2048  # a second
Fields = dict[str, str]


def request(code: int, fields: Fields | None = None, body: bytes = b"", **more: int) -> bytes:
    """A request of the remoting protocol."""
    head = json.dumps({"code": code, "extFields": fields or {}, **more}).encode()
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


def heartbeat(client_id: str, groups: Iterable[str], topics: Iterable[str] = ()) -> bytes:
    """A heartbeat of a client that reads the same topics in each of its groups."""
    rows = [{"topic": topic} for topic in topics]
    data = [{"groupName": group, "subscriptionDataSet": rows} for group in groups]
    body = json.dumps({"clientID": client_id, "consumerDataSet": data}, separators=(",", ":"))
    return request(HEARTBEAT, body=body.encode())


def _rest(all_of_them: Held) -> Counts:
    """Hold connections until the end."""
    under_way()
    while not told_to_end(1.0):
        all_of_them.read()
    return all_of_them.counts()


def _flood(endpoint: str, data: bytes) -> Counts:
    """Send the same over and over, as fast as it is taken; what comes is read."""
    with connect(endpoint) as made:
        made.setblocking(False)
        under_way()
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not told_to_end():
                readable, writable, _ = select.select([made], [made], [], 0.1)
                if readable and not made.recv(1 << 20):
                    break
                if writable:
                    sent += made.send(memoryview(data)[sent % len(data) :])
    return {"sent_bytes": sent}


# -- the remoting protocol -------------------------------------------------------------------------


def small_requests(endpoint: str, count: int) -> Counts:
    """Requests of ten bytes that nobody knows."""
    return _flood(endpoint, (struct.pack(">II", 6, 2) + b"{}") * count)


def wide_heartbeats(endpoint: str, count: int) -> Counts:
    """Connections whose heartbeats name very many subscriptions."""
    all_of_them = Held()
    for number in range(count):
        made = all_of_them.add(endpoint, b"", number)
        if made is not None:
            names = [f"{number * SUBSCRIPTIONS + n:x}" for n in range(SUBSCRIPTIONS)]
            made.settimeout(20)
            with contextlib.suppress(OSError):
                made.sendall(heartbeat(f"c{number}", (f"w{n}" for n in range(GROUPS)), names))
            made.setblocking(False)
    return _rest(all_of_them)


def restless_member(endpoint: str, count: int) -> Counts:
    """A member of a group that comes and leaves without an end, beside many that stay."""
    all_of_them = Held()
    for number in range(count):
        all_of_them.add(endpoint, heartbeat(f"c{number}", ["crowd"]), number)
        if number % 100 == 99:
            all_of_them.read()
    leaves = request(UNREGISTER, {"clientID": "x", "consumerGroup": "crowd"})
    return _flood(endpoint, (heartbeat("x", ["crowd"]) + leaves) * 20)


def held_pulls(endpoint: str, count: int) -> Counts:
    """Pulls on one connection that wait for a message."""
    fields = {
        "consumerGroup": "g",
        "topic": "quiet",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "30000",
        "subscription": "*",
        "subVersion": "0",
    }
    calls = (request(PULL_MESSAGE, fields, opaque=number) for number in range(count))
    return _many(endpoint, b"", calls)


def half_requests(endpoint: str, count: int) -> Counts:
    """Requests of 16 MiB that do not end."""
    return _halves(endpoint, count, struct.pack(">II", REQUEST_BYTES, 2) + b"{}", REQUEST_BYTES)


def broken_bursts(endpoint: str, count: int) -> Counts:
    """Connections with thousands of requests that break before the answers come."""
    data = (struct.pack(">II", 6, 2) + b"{}") * 8000
    under_way()
    made = 0
    while not told_to_end():
        with contextlib.suppress(OSError), connect(endpoint, made % count + 1) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.sendall(data)
            made += 1
    return {"connections": made}


# -- frames ----------------------------------------------------------------------------------------


def idle_frames(endpoint: str, count: int) -> Counts:
    """Connections that have greeted, answer pings, and call nothing."""
    all_of_them = Held()
    for number in range(count):
        all_of_them.add(endpoint, frames.hello(key()), number)
        if number % 500 == 499:
            all_of_them.read()
    under_way()
    while not told_to_end(1.0):
        all_of_them.read()
        all_of_them.send(frames.frame(frames.Kind.PONG))
    return all_of_them.counts()


def poll_frames(endpoint: str, count: int) -> Counts:
    """Pulls on one connection that wait for a message."""
    code = frames.NUMBERS["/duolog.v1.Messages/Pull"]
    data = wire.PullRequest(topic="quiet", wait_ms=30_000).SerializeToString()
    kind, calls = frames.Kind.CALL, range(1, count + 1)
    return _many(
        endpoint,
        frames.hello(key()),
        (frames.frame(kind, number, 30_000, data, code) for number in calls),
    )


def deaf_lists(endpoint: str, count: int) -> Counts:
    """Lists of all topics on one connection, which nobody takes."""
    code = frames.NUMBERS["/duolog.v1.Admin/ListTopics"]
    calls = (frames.frame(frames.Kind.CALL, n, 60_000, b"", code) for n in range(1, count + 1))
    with connect(endpoint) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.sendall(frames.hello(key()) + b"".join(calls))
        under_way()
        while not told_to_end(1.0):
            pass
    return {"calls": count}


def half_frames(endpoint: str, count: int) -> Counts:
    """Frames of 32 MiB that do not end."""
    begun = frames.HEADER.pack(FRAME_BYTES, frames.Kind.APPEND, 0, 0, 1, 0)
    return _halves(endpoint, count, frames.hello(key()) + begun, FRAME_BYTES)


def _many(endpoint: str, first: bytes, calls: Iterable[bytes]) -> Counts:
    """Many calls on one connection, whose answers are read."""
    with connect(endpoint) as made:
        made.sendall(first)
        for call in calls:
            made.sendall(call)
        made.setblocking(False)
        under_way()
        read = 0
        while not told_to_end(0.1):
            with contextlib.suppress(OSError):
                read += len(made.recv(1 << 20))
    return {"answered_bytes": read}


def _halves(endpoint: str, count: int, begun: bytes, size: int) -> Counts:
    """Frames that have almost arrived."""
    all_of_them = Held()
    for number in range(count):
        made = all_of_them.add(endpoint, begun, number)
        if made is not None:
            made.settimeout(5)
            with contextlib.suppress(OSError):
                made.sendall(bytes(size - LATE_BYTES))
            made.setblocking(False)
    under_way()
    while not told_to_end(1.0):
        all_of_them.send(bytes(SLOWLY_BYTES))
        all_of_them.read()
    return all_of_them.counts()


ATTACKS: dict[str, Callable[[str, int], Counts]] = {
    one.__name__: one
    for one in (
        small_requests,
        wide_heartbeats,
        restless_member,
        held_pulls,
        half_requests,
        broken_bursts,
        idle_frames,
        poll_frames,
        deaf_lists,
        half_frames,
    )
}

__all__ = ["ATTACKS"]
