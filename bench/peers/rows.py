"""The rows of the comparison: what is measured, in which unit, and by which run of a client.

A client's run may fill several rows: a rate, and the processor time of the servers meanwhile.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a client program does."""

    READY = "ready"  # until a message is acknowledged: topics are made, replicas are there
    BATCH = "batch"  # the call that takes many messages
    POST = "post"  # one call a message, not waited for, all acknowledged in the end
    SINGLE = "single"  # one message at a time, each acknowledged before the next
    FILL = "fill"  # as many messages as are asked for, in the fastest way
    CONSUME = "consume"  # all messages of a topic, by the call that gives many
    CONSUME_EACH = "consume_each"  # the same, one call a message


class Meter(StrEnum):
    """Whose processor time is read."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    title: str
    unit: str
    kind: Kind
    size: int = 100  # bytes of a body
    replicated: bool = False
    source: str = ""  # name of the row whose run gives this one, too
    meter: Meter | None = None  # of such a row: whose processor time it is

    @property
    def run(self) -> str:
        """Name of the row that is run for it."""
        return self.source or self.name

    @property
    def more_is_better(self) -> bool:
        """Whether it is a rate."""
        return self.unit in ("msg/s", "MB/s")


KIB = 1024
RECOVERED_BYTES = 1 << 30
RECOVERY = "recovery"

ROWS: tuple[Row, ...] = (
    Row("batch_small", "100 B, batch call", "msg/s", Kind.BATCH),
    Row("post_small", "100 B, one call a message", "msg/s", Kind.POST),
    Row("batch_large", "1 KiB, batch call", "MB/s", Kind.BATCH, KIB),
    Row("post_large", "1 KiB, one call a message", "MB/s", Kind.POST, KIB),
    Row("single", "100 B, one at a time, p50 / p99", "µs", Kind.SINGLE),
    Row("replicated_batch_small", "replicated, 100 B, batch call", "msg/s", Kind.BATCH, 100, True),
    Row(
        "replicated_post_small",
        "replicated, 100 B, one call a message",
        "msg/s",
        Kind.POST,
        100,
        True,
    ),
    Row("replicated_batch_large", "replicated, 1 KiB, batch call", "MB/s", Kind.BATCH, KIB, True),
    Row(
        "replicated_single",
        "replicated, 100 B, one at a time, p50 / p99",
        "µs",
        Kind.SINGLE,
        100,
        True,
    ),
    Row("consume", "consume 100 B, objects, calls that give many", "msg/s", Kind.CONSUME),
    Row("consume_each", "consume 100 B, objects, one call a message", "msg/s", Kind.CONSUME_EACH),
    *(
        Row(
            f"{whose}_cpu_{kind}",
            f"{whose}'s processor time per million, 100 B, {title}",
            "s",
            kind,
            source=f"{kind}_small",
            meter=whose,
        )
        for whose in Meter
        for kind, title in ((Kind.BATCH, "batch call"), (Kind.POST, "one call a message"))
    ),
    Row(RECOVERY, "log after SIGKILL, start to first acknowledged message", "s", Kind.FILL, KIB),
)
BY_NAME = {row.name: row for row in ROWS}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    seconds: float  # that a producing client measures
    consumed: float  # share of the messages that a peer says it consumes in some seconds
    recovered_bytes: int
    server_warm: float = 1.0  # share of the time that servers run before anything is measured
    pages_bytes: int = 0  # taken from the machine before each figure of a producing client

    @property
    def warm_seconds(self) -> float:
        """What a producing client does before it measures."""
        return self.seconds / 2


FULL = Scale(
    rounds=3, seconds=2.0, consumed=1.0, recovered_bytes=RECOVERED_BYTES, pages_bytes=1 << 30
)
QUICK = Scale(
    rounds=1, seconds=0.6, consumed=0.1, recovered_bytes=RECOVERED_BYTES >> 4, server_warm=0.1
)
