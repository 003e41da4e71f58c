"""Formats the trace of a message for `duolog msg track`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from duolog._tracecontext import context_of

from duolog_server.ops.inspection.messages.tracerecords import TraceRecord
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import GroupTrack, TrackedMessage, TrackStep

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
