"""Trace records that RocketMQ's clients of protocol 4 send to RMQ_SYS_TRACE_TOPIC.

Pure. A body holds records, each ended by \\x02, with fields between \\x01. They have grown over
the versions of the clients: a field that an older one does not write has its default here, and what
cannot be read is passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass

RECORD_END, FIELD_END = "\x02", "\x01"
RETURNS = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURN_NULL", "FAILED")  # how a listener ended


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One step of one message.

    Attributes:
        kind: Pub, SubBefore, SubAfter, EndTransaction or Recall.
        message_id: the unique key of the message.
        time_ms: wall clock of the client; 0: not told.
        group: of producers or consumers.
        topic: empty where the kind does not say.
        host: the node that stored it (Pub, EndTransaction).
        cost_ms: how long it took; None: not told.
        ok: whether it worked; None: not known yet.
        retries: attempts before (SubBefore).
        request_id: what tells which SubAfter belongs to a SubBefore.
        detail: how a listener ended, or what was decided.
    """

    kind: str
    message_id: str
    time_ms: int = 0
    group: str = ""
    topic: str = ""
    host: str = ""
    cost_ms: int | None = None
    ok: bool | None = None
    retries: int = 0
    request_id: str = ""
    detail: str = ""


def parse(body: bytes) -> list[TraceRecord]:
    """The records of a message of the trace topic."""
    return list(_records(body.decode(errors="replace")))


def _records(text: str) -> Iterator[TraceRecord]:
    for line in text.split(RECORD_END):
        fields = [_plain(field) for field in line.split(FIELD_END)]
        read = _KINDS.get(fields[0])
        if read is None:
            continue
        try:
            yield read(fields)
        except (ValueError, IndexError):
            continue  # cut off, or of another version


def _plain(field: str) -> str:
    """A field; Java writes a missing one as `null`."""
    return "" if field == "null" else field


def _pub(f: list[str]) -> TraceRecord:
    return TraceRecord(
        "Pub",
        f[5],
        int(f[1]),
        f[3],
        f[4],
        host=f[8],
        cost_ms=int(f[10]),
        ok=f[13 if len(f) > 13 else 12] == "true",
    )


def _sub_before(f: list[str]) -> TraceRecord:
    return TraceRecord("SubBefore", f[5], int(f[1]), f[3], retries=int(f[6]), request_id=f[4])


def _sub_after(f: list[str]) -> TraceRecord:
    code = int(f[6]) if len(f) > 6 and f[6] else -1
    return TraceRecord(
        "SubAfter",
        f[2],
        int(f[7]) if len(f) > 7 and f[7] else 0,
        f[8] if len(f) > 8 else "",
        cost_ms=int(f[3]),
        ok=f[4] == "true",
        request_id=f[1],
        detail=RETURNS[code] if 0 <= code < len(RETURNS) else "",
    )


def _end_transaction(f: list[str]) -> TraceRecord:
    checked = len(f) > 12 and f[12] == "true"
    return TraceRecord(
        "EndTransaction",
        f[5],
        int(f[1]),
        f[3],
        f[4],
        host=f[8],
        detail=f[11] + (" (after a check)" if checked else ""),
    )


def _recall(f: list[str]) -> TraceRecord:
    return TraceRecord("Recall", f[5], int(f[1]), f[3], f[4], ok=f[6] == "true")


_KINDS = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
    "Recall": _recall,
}
