"""The engine, as services get it: verbs to write to the log, and several views to read from.

A `MessageStore` is all of the views, and a service can do no more with it than a view says: what it
changes goes through the log.
"""

from typing import Protocol

from duolog_server.node.engine.log import Outcome
from duolog_server.store.kernels.jit import I64
from duolog_server.store.lookups import Lookups
from duolog_server.store.messagestore import PutBatch, PutResult, Singles, SinglesResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import ANY, GetResult, Wanted
from duolog_server.store.record import Host, Record


class Log(Protocol):
    """The log, as services write to it."""

    def write(self, batch: PutBatch) -> PutResult:
        """Store a batch now; `settle` tells what its answer must wait for."""

    def settle(self, end_offset: PhyOffset, no_wait: bool = False) -> Outcome | None:
        """The future that an answer must wait for after a write, or None.

        If None, the caller answers first and then calls `pump_soon`.
        """

    def put(self, batch: PutBatch) -> tuple[PutResult, Outcome | None]:
        """Store a batch unless puts are refused; the future that its answer waits for, or None."""

    def put_singles(self, singles: Singles) -> tuple[SinglesResult, Outcome | None]:
        """Store messages that came at once, each of which is delivered by itself; the future that
        their answers wait for, or None.
        """

    def write_now(self, batch: PutBatch) -> PutResult:
        """Store a batch without waiting: later records follow it in the log."""

    async def put_and_wait(self, batch: PutBatch) -> PutResult:
        """Store a batch and wait until it is as durable as configured; the status says whether it
        is.
        """

    def pump_soon(self) -> None:
        """Dispatch readable records in the next turn of the event loop."""

    def count_in(self, messages: int, body_bytes: int = 0) -> None:
        """Count messages received from clients."""


class Answers(Protocol):
    """The log, as the APIs use it: what happens before a read, and before and after an answer."""

    @property
    def waits(self) -> bool:
        """Whether puts are answered later: when the disk or enough slaves have them."""

    async def caught_up(self) -> None:
        """Wait before a read until all that was answered is dispatched; a second at most.

        Raises StoreFenced, StoreClosed.
        """

    def pump_soon(self) -> None:
        """Dispatch readable records in the next turn of the event loop."""


class Reads(Protocol):
    """Messages, and how far the log and its queues reach."""

    @property
    def lookups(self) -> Lookups:
        """Records by id and key."""

    @property
    def max_offset(self) -> PhyOffset:
        """Log offset after the newest record, which readers may not see yet."""

    @property
    def min_offset(self) -> PhyOffset:
        """Log offset of the oldest record."""

    @property
    def confirm_offset(self) -> PhyOffset:
        """Log offset below which everything is durable here and on enough replicas."""

    @property
    def dispatched_offset(self) -> PhyOffset:
        """Queues and index have everything below this log offset."""

    def get(
        self, topic: str, queue_id: int, queue_offset: QueueOffset, wanted: Wanted = ANY
    ) -> GetResult:
        """Messages of a queue from an offset on, as columns."""

    def record_at(self, topic: str, queue_id: int, queue_offset: QueueOffset) -> Record | None:
        """The record at a queue offset, or None where there is none. Raises CorruptRecord."""

    def born_host(self, physical_offset: PhyOffset) -> Host:
        """The sender of the record at an offset that a queue entry names."""

    def entries(self, topic: str, queue_id: int, queue_offset: int, count: int) -> I64:
        """Entries of a queue as a table [3, n]: physical offset, size, tags code."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        """Queue offsets [min, max) that can be read."""

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The queue offset that the next message of a queue gets."""


class Positions(Protocol):
    """Times of messages, and queue offsets by time, size and place in the log."""

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of the message at a queue offset, wall-clock ms; -1 if missing."""

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int) -> QueueOffset:
        """Queue offset of the first message stored at or after a time; 0 for no such queue."""

    def offset_at_size(
        self, topic: str, queue_id: int, queue_offset: QueueOffset, size: int
    ) -> QueueOffset:
        """Queue offset up to which the records from another one on have at most size bytes."""

    def offset_in_log(self, topic: str, queue_id: int, physical_offset: PhyOffset) -> QueueOffset:
        """Queue offset of the first message at or after a log offset; 0 for no such queue."""


class KnownQueues(Protocol):
    """Which queues there are."""

    def queue_keys(self) -> list[QueueKey]:
        """Queues that have entries, or had some, by topic and id."""

    def queue_ends(self, topic: str) -> dict[int, int]:
        """The next queue offset of a topic's queues, by queue id."""

    def topics_with_messages(self) -> set[str]:
        """Topics that messages were stored in."""

    def light_of(self, topic: str) -> list[str]:
        """The light queues of a topic's lite topics."""

    def light_names(self) -> list[str]:
        """All light queues."""
