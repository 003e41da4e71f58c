"""The trace of a message for `duolog msg track`, and what RocketMQ's clients record of it.

Clients of protocol 4 send trace records to RMQ_SYS_TRACE_TOPIC. A body holds records, each ended by
\\x02, with fields between \\x01. They have grown over the versions of the clients: a field that an
older one does not write has its default here, and what cannot be read is passed over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duolog._tracecontext import context_of

from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import GroupTrack, TrackedMessage, TrackStep

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


COLUMNS = ["message", "time", "step", "place", "detail"]
_STEPS = {"HALF": "half message", "DELAYED": "delayed", "STORED": "stored"}
_CLIENT_STEPS = {
    "Pub": "client sent",
    "SubBefore": "client began",
    "SubAfter": "client ended",
    "EndTransaction": "client decided",
    "Recall": "client recalled",
}
Row = dict[str, object]


def place_text(topic: str, queue_id: int, offset: int) -> str:
    """A place in a queue, as people read it."""
    return f"{topic}/{queue_id}@{offset}"


def as_json(message: "TrackedMessage", records: Iterable[TraceRecord]) -> Row:
    """All that is known of a message."""
    return {
        "unique_key": message.unique_key,
        "trace_id": _trace_id(message),
        "traceparent": message.traceparent,
        "born_time": message.born_time_ms,
        "born_host": message.born_host,
        "steps": [
            {
                "step": step.kind,
                "time": step.store_time_ms,
                "topic": step.topic,
                "queue_id": step.queue_id,
                "queue_offset": step.queue_offset,
                "physical_offset": step.physical_offset,
                **({"deliver_time": step.deliver_time_ms} if step.deliver_time_ms else {}),
            }
            for step in message.steps
        ],
        "groups": [_group_json(track) for track in message.groups],
        "client_records": [
            {name: getattr(record, name) for name in TraceRecord.__slots__} for record in records
        ],
    }


def _group_json(track: "GroupTrack") -> Row:
    found: Row = {"group": track.group, "state": track.state, "attempts": track.attempts}
    if track.copy is not None:
        topic, queue_id, offset = track.copy
        found["copy"] = {
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": offset,
            "time": track.copy_time_ms,
        }
    return found


def rows(message: "TrackedMessage", records: Iterable[TraceRecord]) -> Iterator[Row]:
    """The rows of a trace: a line for each step, then one for each group."""
    key, trace_id = message.unique_key, _trace_id(message)
    trace = f"trace {trace_id}" if trace_id else ""
    timed = [(message.born_time_ms, "sent", message.born_host, trace)]
    timed += [_step(step) for step in message.steps]
    timed += [_client_step(record) for record in records]
    for time_ms, step, place, detail in sorted(timed, key=lambda one: one[0]):
        yield _row(key, time_ms, step, place, detail)
    if not any(step.kind == "STORED" for step in message.steps):
        yield _row(key, 0, _awaited(message.steps), "", "no consumer gets it before")
    for track in message.groups:
        yield _group_row(key, track)


def _awaited(steps: "Iterable[TrackStep]") -> str:
    last = max(steps, key=lambda step: step.physical_offset)
    return "not due yet" if last.kind == "DELAYED" else "not committed"


def _row(key: str, time_ms: int, step: str, place: str, detail: str) -> Row:
    when = iso(time_ms) if time_ms else ""
    return {
        "message": key,
        "time": when,
        "time_ms": time_ms,
        "step": step,
        "place": place,
        "detail": detail,
    }


def _step(step: "TrackStep") -> tuple[int, str, str, str]:
    detail = f"log offset {step.physical_offset}"
    if step.deliver_time_ms:
        detail += f", until {iso(step.deliver_time_ms)}"
    place = place_text(step.topic, step.queue_id, step.queue_offset)
    return step.store_time_ms, _STEPS[step.kind], place, detail


def _client_step(record: TraceRecord) -> tuple[int, str, str, str]:
    words = [] if record.cost_ms is None else [f"{record.cost_ms} ms"]
    if record.ok is not None:
        words.append("ok" if record.ok else "failed")
    if record.retries:
        words.append(f"attempt {record.retries + 1}")
    if record.detail:
        words.append(record.detail)
    return record.time_ms, _CLIENT_STEPS[record.kind], record.group, ", ".join(words)


def _group_row(key: str, track: "GroupTrack") -> Row:
    detail = f"{track.attempts} failed" if track.attempts else ""
    if track.copy is not None:
        detail += f"{', ' if detail else ''}copy {place_text(*track.copy)}"
    state = track.state.lower().replace("_", " ")
    return _row(key, track.copy_time_ms, state, f"group {track.group}", detail)


def _trace_id(message: "TrackedMessage") -> str:
    found = context_of(message.traceparent)
    return "" if found is None else f"{found.trace_id:032x}"
