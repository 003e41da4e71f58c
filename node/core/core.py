"""The ports and parts that every service of a node gets."""

from dataclasses import dataclass
from typing import Protocol

from node.core.admission import Admission
from node.core.metadatalog import MetadataLog
from node.engine.arrivals import ArrivalBoard
from node.engine.log import Outcome
from node.engine.storetimes import StoreTimes
from store.messagestore import MessageStore, PutBatch, PutResult
from store.offsets import PhyOffset


class Log(Protocol):
    """The log, as services write to it."""

    def write(self, batch: PutBatch) -> PutResult:
        """Store a batch now; `settle` tells what its answer must wait for."""

    def settle(self, end_offset: PhyOffset, no_wait: bool = False) -> Outcome | None:
        """The future that an answer must wait for after a write, or None.

        If None, the caller answers first and then calls `pump_soon`.
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


@dataclass(frozen=True, slots=True)
class Core:
    """The lower layers of one node. store: for reading only; writes go through the log."""

    log: Log
    store: MessageStore
    times: StoreTimes
    board: ArrivalBoard
    metadata: MetadataLog
    admission: Admission
