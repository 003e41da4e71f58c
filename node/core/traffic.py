"""Messages by topic and consumer group, counted where clients send batches and where they get them.

Plain numbers since the start of the process. A batch costs one lookup in a dict.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from duolog._message import RETRY_PREFIX

from duolog_server.node.core.calltimes import CALL_BOUNDS, RPC_BOUNDS, CallTimes
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
