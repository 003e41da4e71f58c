"""Records the work on batches of messages with a trace context, for the exporter.

Rules: no OpenTelemetry here; a batch without a context costs one search of its properties; what
does not fit the queue is counted and forgotten.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

import numpy as np

from duolog_server.store.kernels import decode
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.reader import GetResult
from duolog_server.store.status import PutMessageStatus

P = ParamSpec("P")
MARK = b"traceparent\x01"  # in the properties of a message that carries a context
QUEUED_MAX = 4096  # batches that the exporter has not taken yet,
QUEUED_BYTES_MAX = 16 << 20  # and what they hold


@dataclass(frozen=True, slots=True)
class Standing:
    """The node's state at the time. epoch: of the master's mastership; 0: it led none."""

    role: str
    epoch: int


@dataclass(slots=True)
class Sighting:
    """Messages that were stored, or delivered, together.

    Attributes:
        what: `store` or `deliver`.
        group: that they were delivered to; empty for none.
        text: their properties, one after the other.
        ends: where the properties of each message end in it.
        queue_offsets: of each message.
        log_offset: of the first one, in bytes.
        standing: of the node.
        began_ns, ended_ns: by the wall clock.
        made: span contexts made of it, by the ids of trace and parent: parents of what follows.
    """

    what: str
    topic: str
    queue_id: int
    group: str
    text: bytes
    ends: "np.ndarray[tuple[int], np.dtype[np.integer]]"
    queue_offsets: "np.ndarray[tuple[int], np.dtype[np.integer]]"
    log_offset: int
    standing: Standing
    began_ns: int
    ended_ns: int
    made: dict[tuple[bytes, bytes], object] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the note."""
        return len(self.text) + self.ends.nbytes + self.queue_offsets.nbytes + 500


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A wait of a stored batch. what: `replicate` or `flush`; status: how it ended."""

    what: str
    of: Sighting
    status: PutMessageStatus
    ended_ns: int

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the note."""
        return 100


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a consumer gets by itself."""

    queue_id: int
    queue_offset: int
    properties: dict[str, str]


def _harmless(
    taking: "Callable[Concatenate[Recorder, P], None]",
) -> "Callable[Concatenate[Recorder, P], None]":
    """Records spans so that its faults cost spans only: the work has happened already, and the
    caller must not see it fail.
    """

    @functools.wraps(taking)
    def take(self: "Recorder", /, *args: P.args, **words: P.kwargs) -> None:
        try:
            taking(self, *args, **words)
        except Exception as error:
            self.lost += 1
            self.fault = f"{type(error).__name__}: {error}"

    return take


class Recorder:
    """Takes notes on the event loop; the exporter's thread takes them away."""

    def __init__(
        self, standing: Callable[[], Standing], wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._standing = standing
        self._wall_ns = wall_ns
        self._queue: deque[Sighting | Confirmed] = deque()
        self._noted_bytes = 0  # written by the event loop only,
        self._taken_bytes = 0  # and by the exporter's thread only
        self._last: Sighting | None = None  # stored, and not yet settled
        self._last_end = PhyOffset(-1)
        self.lost = 0  # batches that did not fit the queue, or that a fault kept from it
        self.fault = ""  # the last one: a bug

    @_harmless
    def stored(self, batch: PutBatch, result: PutResult, seconds: float) -> None:
        """A batch was put into the log, which took so long."""
        columns = batch.columns
        text = columns.properties.tobytes()
        if MARK not in text:
            return
        now = self._wall_ns()
        before = columns.count - result.count  # stored by an earlier attempt
        ends = columns.property_offsets[1:]
        sighting = Sighting(
            "store",
            batch.topic,
            batch.queue_id,
            "",
            text,
            ends,
            np.arange(result.queue_offset - before, result.queue_offset + result.count),
            result.physical_offset,
            self._standing(),
            now - int(seconds * 1e9),
            now,
        )
        if self._note(sighting):
            self._last, self._last_end = sighting, result.end_offset

    def awaits(
        self, what: str, end_offset: PhyOffset, outcome: "asyncio.Future[PutMessageStatus]"
    ) -> None:
        """The answer to what was stored last waits for the disk, or for slaves."""
        stored = self._last
        if stored is None or end_offset != self._last_end:
            return
        outcome.add_done_callback(lambda done: self._confirmed(what, stored, done))

    def _confirmed(self, what: str, of: Sighting, done: "asyncio.Future[PutMessageStatus]") -> None:
        if not done.cancelled() and done.exception() is None:  # a disk that fails ends the node
            self._note(Confirmed(what, of, done.result(), self._wall_ns()))

    @_harmless
    def delivered(self, topic: str, queue_id: int, group: str, result: GetResult) -> None:
        """A batch goes to a consumer."""
        if MARK not in result.properties:
            return
        now, table = self._wall_ns(), result.table
        sighting = Sighting(
            "deliver",
            topic,
            queue_id,
            group,
            result.properties,
            table[decode.OUT_PROPERTIES_END].copy(),
            table[decode.OUT_QUEUE_OFFSET].copy(),
            int(table[decode.OUT_PHY, 0]),
            self._standing(),
            now,
            now,
        )
        self._note(sighting)

    @_harmless
    def popped(self, topic: str, group: str, found: Iterable[Delivery]) -> None:
        """Messages go to a consumer one by one."""
        now = self._wall_ns()
        for one in found:
            parent = one.properties.get("traceparent")
            if parent is None:
                continue
            text = f"traceparent\x01{parent}"
            state = one.properties.get("tracestate")
            if state:
                text += f"\x02tracestate\x01{state}"
            made = text.encode()
            sighting = Sighting(
                "deliver",
                topic,
                one.queue_id,
                group,
                made,
                np.array([len(made)]),
                np.array([one.queue_offset]),
                -1,
                self._standing(),
                now,
                now,
            )
            self._note(sighting)

    def _note(self, one: Sighting | Confirmed) -> bool:
        held = self._noted_bytes - self._taken_bytes + one.held_bytes
        if len(self._queue) >= QUEUED_MAX or held > QUEUED_BYTES_MAX:
            self.lost += 1
            return False
        self._noted_bytes += one.held_bytes
        self._queue.append(one)
        return True

    def take(self) -> list[Sighting | Confirmed]:
        """All notes so far. Called by another thread, and by one at a time."""
        taken = [self._queue.popleft() for _ in range(len(self._queue))]
        self._taken_bytes += sum(one.held_bytes for one in taken)
        return taken
