"""What every service of a node is given."""

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
    """The log, as services write it."""

    def write(self, batch: PutBatch) -> PutResult:
        """Store a batch now; `settle` says what has to happen before it may be answered."""

    def settle(self, end_offset: PhyOffset, no_wait: bool = False) -> Outcome | None:
        """What has to happen after a write: a future to wait for, or None.

        Without one the caller answers first and calls `pump_soon` then.
        """

    def write_now(self, batch: PutBatch) -> PutResult:
        """Store a batch that nobody waits for: what follows is behind it in the log."""

    async def put_and_wait(self, batch: PutBatch) -> PutResult:
        """Store a batch and wait until it is as safe as was asked for; the status says if it is."""

    def pump_soon(self) -> None:
        """Dispatch what is readable, when the loop comes round."""

    def count_in(self, messages: int, body_bytes: int = 0) -> None:
        """Count messages of clients among those that came in."""


@dataclass(frozen=True, slots=True)
class Core:
    """The lower layers of one node. store: for reading; what is written goes through the log."""

    log: Log
    store: MessageStore
    times: StoreTimes
    board: ArrivalBoard
    metadata: MetadataLog
    admission: Admission
