"""Makes spans of what the recorder noted. Pure but for the ids that OpenTelemetry draws.

A batch gives one span for each context that its messages carry, up to a maximum: messages that were
sent as a batch have the same one. Spans are made only of messages whose sender is sampled.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from duolog_server.node.traces.recorder import Confirmed, Sighting
from duolog_server.store.status import PutMessageStatus

# The texts of a batch follow one another without anything in between.
_SAMPLED = re.compile(
    rb"traceparent\x01((?!ff)[0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})"
    rb"-([0-9a-f][13579bdf])"
)
_STATE = re.compile(rb"(?:\A|(?<=\x02))tracestate\x01([^\x02]{1,512})(?=\x02|\Z)")
_REAL_TOPIC = re.compile(rb"(?:\A|(?<=\x02))REAL_TOPIC\x01([^\x02]{1,255})")


_BETWEEN = b"\x02"  # between two properties
_MORE = b"-"  # a later version of the context may say more


@dataclass(frozen=True, slots=True)
class _Carried:
    """A context that a message carries. place: of the message in its batch; ids: trace, parent."""

    place: int
    text: bytes
    ids: tuple[bytes, bytes]
    flags: int


class _Kept(SpanProcessor):
    """Keeps the spans that ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.spans.append(span)


class SpanMaker:
    """Makes spans of notes."""

    def __init__(self, facts: dict[str, str], version: str, spans_per_batch: int) -> None:
        """facts: attributes of the resource."""
        self._kept = _Kept()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(facts), shutdown_on_exit=False
        )
        provider.add_span_processor(self._kept)
        self._tracer = provider.get_tracer("duolog.node", version)
        self._most = spans_per_batch
        self.left_out = 0  # contexts beyond the most of a batch

    def spans(self, notes: Sequence[Sighting | Confirmed]) -> list[ReadableSpan]:
        """The spans of some notes, in their order."""
        for note in notes:
            if isinstance(note, Sighting):
                self._of(note)
            else:
                self._after(note)
        made, self._kept.spans = self._kept.spans, []
        return made

    def _of(self, sighting: Sighting) -> None:
        found = list(_carried(sighting))
        counts = Counter(one.ids for one in found)
        self.left_out += max(0, len(counts) - self._most)
        for one in found:
            count = counts.pop(one.ids, 0)
            if count and len(sighting.made) < self._most:
                self._span(sighting, one, count)

    def _span(self, sighting: Sighting, first: _Carried, count: int) -> None:
        attributes = _attributes(sighting.what, sighting)
        attributes["duolog.queue.offset"] = int(sighting.queue_offsets[first.place])
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        real = _REAL_TOPIC.search(first.text)
        if real is not None and real[1].decode(errors="replace") != sighting.topic:
            attributes["duolog.real_topic"] = real[1].decode(errors="replace")
        span = self._tracer.start_span(
            f"{sighting.what} {sighting.topic}",
            _remote(first),
            SpanKind.INTERNAL,
            attributes,
            start_time=sighting.began_ns,
        )
        span.end(sighting.ended_ns)
        sighting.made[first.ids] = span.get_span_context()

    def _after(self, confirmed: Confirmed) -> None:
        stored = confirmed.of
        for parent in stored.made.values():
            assert isinstance(parent, SpanContext), "the span of a stored batch"
            span = self._tracer.start_span(
                f"{confirmed.what} {stored.topic}",
                set_span_in_context(NonRecordingSpan(parent)),
                SpanKind.INTERNAL,
                _attributes(confirmed.what, stored),
                start_time=stored.ended_ns,
            )
            assert isinstance(span, Span), "every span is sampled here"
            if confirmed.status is not PutMessageStatus.PUT_OK:
                span.set_attribute("error.type", confirmed.status.value)
                span.set_status(Status(StatusCode.ERROR, confirmed.status.value))
            span.end(max(stored.ended_ns, confirmed.ended_ns))


def _attributes(what: str, sighting: Sighting) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": what,
        "messaging.destination.name": sighting.topic,
        "messaging.destination.partition.id": str(sighting.queue_id),
        "duolog.role": sighting.standing.role,
    }
    if sighting.standing.epoch:
        found["duolog.epoch"] = sighting.standing.epoch
    if sighting.log_offset >= 0:
        found["duolog.log.offset"] = sighting.log_offset
    if sighting.group:
        found["messaging.consumer.group.name"] = sighting.group
    return found


def _carried(sighting: Sighting) -> Iterator[_Carried]:
    """The sampled contexts of messages, in the order of these; of each message one at most."""
    text, ends = sighting.text, sighting.ends
    found = list(_SAMPLED.finditer(text))
    places = ends.searchsorted([match.start() for match in found], "right")
    last = -1
    for match, place in zip(found, places.tolist(), strict=True):
        begin, end = (int(ends[place - 1]) if place else 0), int(ends[place])
        begins = match.start() == begin or text[match.start() - 1 : match.start()] == _BETWEEN
        if place != last and begins and _is_whole(match, end):
            last = place
            yield _Carried(place, text[begin:end], (match[2], match[3]), int(match[4], 16))


def _is_whole(match: re.Match[bytes], end: int) -> bool:
    """Whether a context ends where its property does. end: of the message's text."""
    if match.end() >= end:
        return match.end() == end  # otherwise a part of it is the next message's
    behind = match.string[match.end() : match.end() + 1]
    return behind == _BETWEEN or (behind == _MORE and match[1] != b"00")


def _remote(carried: _Carried) -> Context:
    state = _STATE.search(carried.text)
    sender = SpanContext(
        int(carried.ids[0], 16),
        int(carried.ids[1], 16),
        True,
        TraceFlags(carried.flags),
        TraceState.from_header([state[1].decode("ascii", "replace")]) if state else None,
    )
    return set_span_in_context(NonRecordingSpan(sender))
