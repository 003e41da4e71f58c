"""Where messages were stored: what a producer is answered."""

from collections.abc import Callable
from dataclasses import dataclass

from duolog.wire import duolog_pb2 as wire


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was stored.

    Attributes:
        status: PUT_OK, or the name of what it did not wait for (stored all the same).
        store_time_ms: when the node stored it, ms since 1970.
        duplicate: the node had it already, from an earlier try.
        epoch: number of the mastership that answered.
        group: replica group that the queue lies in.
    """

    topic: str
    queue_id: int
    queue_offset: int
    unique_key: str
    store_time_ms: int
    status: str = "PUT_OK"
    duplicate: bool = False
    epoch: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """Where a batch was stored: one part per request, in the order of its messages."""

    count: int
    parts: tuple["Part", ...]

    @property
    def status(self) -> str:
        """PUT_OK where every part is."""
        return next((part.status for part in self.parts if part.status != "PUT_OK"), "PUT_OK")


@dataclass(frozen=True, slots=True)
class Part:
    """Messages [first, first + count) of a batch, stored at consecutive queue offsets."""

    topic: str
    queue_id: int
    first: int
    count: int
    queue_offset: int
    sequence: int
    store_time_ms: int
    status: str
    duplicate: bool = False
    epoch: int = 0
    group: str = ""

    def receipt(self, k: int, unique_key: Callable[[int], str]) -> Receipt:
        """Where the k-th of its messages is. unique_key: gives that of a sequence."""
        return Receipt(
            self.topic,
            self.queue_id,
            self.queue_offset + k,
            unique_key(self.sequence + k),
            self.store_time_ms,
            self.status,
            self.duplicate,
            self.epoch,
            self.group,
        )


def parts_of(
    request: wire.AppendRequest, reply: wire.AppendReply, group: str, count: int, first: int
) -> list[Part]:
    """Where the messages [first, first + count) of a batch are, by the answer to their request."""
    parts = []
    done = 0
    status = wire.PutStatus.Name(reply.status)
    for run in reply.duplicates:
        parts.append(
            Part(
                run.topic,
                run.queue_id,
                first + done,
                run.count,
                run.queue_offset,
                request.sequence + done,
                reply.store_time,
                status,
                True,
                reply.master_epoch,
                group,
            )
        )
        done += run.count
    if done < count:
        parts.append(
            Part(
                request.topic,
                request.queue_id,
                first + done,
                count - done,
                reply.queue_offset,
                request.sequence + done,
                reply.store_time,
                status,
                False,
                reply.master_epoch,
                group,
            )
        )
    return parts
