"""Messages by topic and consumer group, counted where clients send batches and where they get them.

Plain numbers since the start of the process. A batch costs one lookup in a dict.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import grpc
import numpy as np
from duolog._message import RETRY_PREFIX

from duolog_server.node.net.methods import Handler, Methods, methods_of
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.store.columns import Columns

K = TypeVar("K")

FLOWS_MAX = 100_000
# RocketMQ's: upper bounds of the sizes of messages, bytes, and of the ages of half messages that
# are decided, seconds.
SIZE_BOUNDS = tuple(kib << 10 for kib in (1, 4, 512, 1024, 2048, 4096))
AGE_BOUNDS = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)
NORMAL, DELAY, TRANSACTION = "normal", "delay", "transaction"  # kinds, by RocketMQ's names


@dataclass(slots=True)
class Flow:
    """Messages, and bytes of their bodies. sizes: how many of each size, where that is counted."""

    messages: int = 0
    body_bytes: int = 0
    sizes: list[int] = field(default_factory=list)


class Flows(Generic[K]):
    """The flows of one direction. Over `most`, the one that began first begins again."""

    def __init__(self, most: int = FLOWS_MAX) -> None:
        self.table: dict[K, Flow] = {}
        self._most = most

    def add(self, key: K, messages: int, body_bytes: int = 0) -> Flow:
        """Count a batch; the flow that it belongs to."""
        flow = self.table.get(key)
        if flow is None:
            # The first is likely one of a topic or group that was deleted long ago.
            if len(self.table) >= self._most:
                del self.table[next(iter(self.table))]
            flow = self.table[key] = Flow()
        flow.messages += messages
        flow.body_bytes += body_bytes
        return flow


class Traffic:
    """Traffic counters of a node.

    received: by topic and kind of message, as clients send them: not retries, dead letters and
    other messages that the node stores by itself. delivered: by topic, group (empty where a reader
    names none), and whether it is for another attempt. dead: messages given up, by the topic they
    were sent to and group. committed, rolled_back: half messages decided by their producers, by
    topic. finished: their ages then, seconds. timed: messages that began to wait for a time, by
    topic; timed_out: those that were delivered at it. failures: batches that were not stored, or
    are not known to be safe, by status. wait_seconds: waits of stored batches, before their
    answers, for disk and slaves. calls: of the native API, by method, code and whether they may
    wait for messages; rpcs: of RocketMQ's, ms. messages_out, bytes_out: all that were delivered.
    reads_found, reads_missed: reads of queues by clients that found messages, and others.
    """

    def __init__(self) -> None:
        self.received: Flows[tuple[str, str]] = Flows()
        self.delivered: Flows[tuple[str, str, bool]] = Flows()
        self.dead: Flows[tuple[str, str]] = Flows()
        self.committed: Flows[str] = Flows()
        self.rolled_back: Flows[str] = Flows()
        self.finished: dict[str, Histogram] = {}
        self.timed: Flows[str] = Flows()
        self.timed_out: Flows[str] = Flows()
        self.failures: Flows[str] = Flows()
        self.wait_seconds = Histogram(CALL_BOUNDS)
        self.calls: CallTimes[tuple[str, str, bool]] = CallTimes(CALL_BOUNDS)
        self.rpcs: CallTimes[tuple[str, str, bool, str]] = CallTimes(RPC_BOUNDS)
        self.messages_out = self.bytes_out = 0
        self.reads_found = 0
        self.reads_missed = 0

    def receive(self, topic: str, kind: str, messages: int, columns: Columns) -> None:
        """Count a batch from a client. messages: the last of the columns are those stored now."""
        bodies = len(columns.bodies)
        flow = self.received.add((topic, kind), messages, bodies)
        sizes = flow.sizes or _begun(flow)
        if bodies <= SIZE_BOUNDS[0]:  # so is each of them
            sizes[0] += messages
        elif messages == 1:
            first, end = columns.body_offsets[-2:].tolist()
            sizes[bisect_left(SIZE_BOUNDS, end - first)] += 1
        else:
            lengths = np.diff(columns.body_offsets[-messages - 1 :])
            if int(lengths.max()) <= SIZE_BOUNDS[0]:
                sizes[0] += messages
                return
            found = np.bincount(np.searchsorted(SIZE_BOUNDS, lengths))
            for place, number in enumerate(found.tolist()):
                sizes[place] += number

    def finish(self, topic: str, commit: bool, age_seconds: float) -> None:
        """Count the decision on a half message that was stored so long ago."""
        (self.committed if commit else self.rolled_back).add(topic, 1)
        ages = self.finished.get(topic)
        if ages is None:
            if len(self.finished) >= FLOWS_MAX:
                del self.finished[next(iter(self.finished))]
            ages = self.finished[topic] = Histogram(AGE_BOUNDS)
        ages.observe(age_seconds)

    def deliver(
        self, topic: str, group: str, messages: int, body_bytes: int, *, again: bool = False
    ) -> None:
        """Count a batch that goes to a consumer, read from a topic, which may be a retry topic.

        again: it was read from the retry topic of this topic.
        """
        self.messages_out += messages
        self.bytes_out += body_bytes
        key = (topic, group, again or topic.startswith(RETRY_PREFIX))
        self.delivered.add(key, messages, body_bytes)

    def read(self, found: int) -> None:
        """Count a read by how many messages it found."""
        if found:
            self.reads_found += 1
        else:
            self.reads_missed += 1


def _begun(flow: Flow) -> list[int]:
    """Count the sizes of a flow from now on."""
    flow.sizes = [0] * (len(SIZE_BOUNDS) + 1)
    return flow.sizes


# How long calls of clients took, by method and how they ended; only a node with metrics asks.
#
# Keys are names that this node gives, not its clients: there are as many as methods and codes.
Wrap = Callable[[str, Handler], Handler]  # of a path

# Seconds; and RocketMQ's bounds, milliseconds.
CALL_BOUNDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RPC_BOUNDS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallTimes(Generic[K]):
    """A histogram for each kind of call."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.table: dict[K, Histogram] = {}
        self._bounds = bounds

    def note(self, key: K, took: float) -> None:
        """Count a call. took: in the unit of the bounds."""
        times = self.table.get(key)
        if times is None:
            times = self.table[key] = Histogram(self._bounds)
        times.observe(took)


def timed(methods: Methods, wrap: Wrap) -> Methods:
    """The same methods, each wrapped once."""
    made = Methods()
    made.by_path = {path: wrap(path, handler) for path, handler in methods.by_path.items()}
    for service in methods.generic:
        found = {
            path: made.by_path.get(path) or wrap(path, handler)
            for path, handler in methods_of(service).items()
        }
        name = next(iter(found)).split("/")[1]
        rows = {path.rpartition("/")[2]: cast(Any, handler) for path, handler in found.items()}
        made.generic.append(grpc.method_handlers_generic_handler(name, rows))
    return made


def code_of(error: BaseException, context: Any) -> str:
    """The name of the status that a call ends with, which raised an error."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    code = getattr(error, "code", None)  # of a call over frames
    if not isinstance(code, grpc.StatusCode):
        code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code, "UNKNOWN")
