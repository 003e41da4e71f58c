"""The SDK's spans, by OpenTelemetry's conventions for messaging. Loaded only where they are made.

A message is sent in a `send` span, whose context it carries; all copies of it that a node makes,
for another attempt, a delay or a transaction, keep that context. A consumer's `process` span
continues the message's trace unless the program has a span of its own there, and is linked to the
`send` span in any case.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import time_ns
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, create_key, get_current, get_value, set_value
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    TraceState,
)

from duolog._message import Batch, Message
from duolog._receipts import Receipt
from duolog._terms import PLAIN, Terms
from duolog._tracecontext import MARK, TraceContext, context_in

log = logging.getLogger("duolog")

# Topics, groups and messages are RocketMQ's, and its clients read and write the same ones: with
# another value, the two ends of a topic would look like two systems.
SYSTEM = "rocketmq"
SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
LINKS_MAX = 128  # as many as OpenTelemetry's SDK keeps of a span
CONSUMER_GROUP, PRODUCER_GROUP = "messaging.consumer.group.name", "duolog.producer.group"
_OFFSET = "duolog.queue.offset"  # the conventions have no name for it
# In a context that `Processing` made: by which one, with which span, and what was current before.
_MADE = create_key("duolog.processing")


def context_from(span: Span) -> TraceContext | None:
    """A span's context for a message; None if the span has no trace."""
    found = span.get_span_context()
    if not found.is_valid:
        return None
    state = found.trace_state.to_header() if found.trace_state else ""
    return TraceContext(found.trace_id, found.span_id, found.trace_flags, state)


def span_context(carried: TraceContext) -> SpanContext:
    """The span that a message was sent in, as OpenTelemetry writes it."""
    state = TraceState.from_header([carried.state]) if carried.state else None
    flags = TraceFlags(carried.flags)
    return SpanContext(carried.trace_id, carried.span_id, True, flags, state)


# The parent of a span (None: what is current), and its links.
Origins = tuple[Context | None, list[Link]]


class Sending:
    """The `send` span of messages on their way.

    It ends with a `with` block, or with their results.
    """

    __slots__ = ("_carried", "_own", "_span", "traceparent")

    def __init__(self, span: Span, own: TraceContext | None) -> None:
        """own: the context that the program has given the message, which is not changed."""
        self._span = span
        self._carried = context_from(span) if own is None else own
        # For those who refer to the message later.
        self.traceparent = "" if self._carried is None else self._carried.traceparent

    @property
    def records(self) -> bool:
        """Whether its span takes memory until it ends."""
        return self._span.is_recording()

    def text(self, text: bytes) -> bytes:
        """A message's properties, with its context."""
        if self._carried is None or MARK in text:  # what the program wrote, valid or not
            return text
        return self._carried.added_to(text)

    def stored(self, receipt: Receipt) -> Receipt:
        """It is over: where the message is."""
        found: dict[str, Any] = {}
        if self._span.is_recording():
            found = {
                "messaging.message.id": receipt.unique_key,
                "messaging.destination.partition.id": str(receipt.queue_id),
                _OFFSET: receipt.queue_offset,
            }
        _end(self._span, found)
        return receipt

    def failed(self, error: BaseException) -> None:
        """It is over: why the messages may not be stored."""
        _end(self._span, error=error)

    def __enter__(self) -> "Sending":
        """The messages are on their way."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """It is over."""
        if self._span.is_recording():  # it was not told yet
            _end(self._span, error=error)


class Processing:
    """The span in which a consumer's program handles what it was given last.

    It begins when a message (or batch) is given and ends when the next one is asked for, which is
    when the message counts as consumed. It is the current span of the code in between.
    """

    def __init__(self, spans: "Spans", group: str) -> None:
        self._spans = spans
        self._group = group
        self._span: Span | None = None

    def end(self, error: BaseException | None = None) -> int:
        """The program is done with what it has; the time, from which it waits for more."""
        span, self._span = self._span, None
        if span is not None:
            _end(span, error=error)
        # A span that another task or thread ended may still be current here.
        made = get_value(_MADE)
        if isinstance(made, _Made) and made.by is self and trace.get_current_span() is made.span:
            attach(made.before)
        return time_ns()

    def begin_first(self, message: Message, asked_ns: int) -> None:
        """The program was given the first message of a batch that came for it."""
        self.received(message.batch, asked_ns)
        self.begin(message)

    def begin(self, message: Message) -> None:
        """The program was given a message."""
        self._begin(message.topic, [message], {"messaging.message.id": message.unique_key})

    def begin_batch(self, batch: Batch, asked_ns: int) -> None:
        """The program was given a whole batch."""
        self.received(batch, asked_ns)
        if batch.count:
            count = {"messaging.batch.message_count": batch.count}
            self._begin(batch[0].topic, batch, count)

    def received(self, batch: Batch, asked_ns: int) -> None:
        """A batch came for a program that asked for one. Messages without a context have none."""
        if MARK not in batch.properties:
            return
        origins = self._spans.origins(batch)
        attributes = self._attributes("receive", batch[0].topic, batch[0].queue_id)
        attributes["messaging.batch.message_count"] = batch.count
        name = f"receive {batch[0].topic}"
        _end(self._spans.start(name, SpanKind.CLIENT, attributes, origins, asked_ns))

    def over(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Each of the messages, in its own span."""
        for message in messages:
            self.end()
            self.begin(message)
            yield message

    def _attributes(self, operation: str, topic: str, queue_id: int) -> dict[str, Any]:
        return {
            **_attributes(operation, operation, topic),
            CONSUMER_GROUP: self._group,
            "messaging.destination.partition.id": str(queue_id),
        }

    def _begin(self, topic: str, messages: Batch | Sequence[Message], more: dict[str, Any]) -> None:
        self.end()  # another task may have been given a message while this one waited
        origins = self._spans.origins(messages)
        first = messages[0]
        attributes = {**self._attributes("process", topic, first.queue_id), **more}
        if len(messages) == 1:
            attributes[_OFFSET] = first.queue_offset
            attributes["duolog.reconsume_times"] = first.reconsume_times
        name, before = f"process {topic}", get_current()
        span = self._spans.start(name, SpanKind.CONSUMER, attributes, origins)
        if span is INVALID_SPAN:  # the program's own one stays current
            return
        self._span = span
        made = set_value(_MADE, _Made(self, span, before), before)
        attach(trace.set_span_in_context(span, made))


class _Made(NamedTuple):
    """A context with a `process` span: by which consumer's, and what was current before."""

    by: Processing
    span: Span
    before: Context


class Spans:
    """Makes the spans of a client."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer: Tracer = provider.get_tracer("duolog", version, schema_url=SCHEMA)

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        origins: Origins = (None, []),
        began_ns: int | None = None,
    ) -> Span:
        """A span that has begun; one that records nothing where the program's provider fails."""
        parent, links = origins
        try:
            return self._tracer.start_span(name, parent, kind, attributes, links, began_ns)
        except Exception as error:
            _tell(error)
            return INVALID_SPAN

    # -- sending -------------------------------------------------------------------------------

    def send(self, topic: str, text: bytes = b"", terms: Terms = PLAIN, count: int = 1) -> Sending:
        """Messages go out. text: a message's properties; it may have a context of its own."""
        attributes = _attributes("send", "send", topic)
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        if terms is not PLAIN:
            attributes.update(_terms(terms))
        own = context_in(text)
        links = [Link(span_context(own))] if own is not None else []
        span = self.start(f"send {topic}", SpanKind.PRODUCER, attributes, (None, links))
        return Sending(span, own)

    # -- deciding ------------------------------------------------------------------------------

    def decide(
        self, operation: str, topic: str, origins: Iterable[TraceContext | None], group: str
    ) -> AbstractContextManager[None]:
        """A group of producers commits half messages, or rolls them back."""
        return self._settle(operation, topic, origins, (PRODUCER_GROUP, group))

    def send_back(
        self, topic: str, origin: TraceContext | None, group: str
    ) -> AbstractContextManager[None]:
        """A consumer of a group sends a message back."""
        return self._settle("send_back", topic, (origin,), (CONSUMER_GROUP, group))

    @contextmanager
    def _settle(
        self,
        operation: str,
        topic: str,
        origins: Iterable[TraceContext | None],
        group: tuple[str, str],
    ) -> Iterator[None]:
        """Settles messages: reports their outcome to a node. origins: what they carry. group: which
        kind of group tells it, and its name.
        """
        found = [one for one in origins if one is not None][:LINKS_MAX]
        attributes = {**_attributes(operation, "settle", topic), group[0]: group[1]}
        name, found_origins = f"{operation} {topic}", (_parent(found), _links(found))
        span = self.start(name, SpanKind.CLIENT, attributes, found_origins)
        try:
            yield
        except BaseException as error:
            _end(span, error=error)
            raise
        _end(span)

    # -- consuming -----------------------------------------------------------------------------

    def processing(self, group: str) -> Processing:
        """For one consumer."""
        return Processing(self, group)

    @contextmanager
    def process(self, message: Message, group: str) -> Iterator[None]:
        """A worker of a consumer group handles a message."""
        processing = Processing(self, group)
        processing.begin(message)
        try:
            yield
        except BaseException as error:
            processing.end(error)
            raise
        processing.end()

    @staticmethod
    def origins(messages: Batch | Sequence[Message]) -> Origins:
        """The parent of a span that has to do with messages, and its links to their senders."""
        if isinstance(messages, Batch) and MARK not in messages.properties:
            return None, []
        found: list[TraceContext] = []
        for message in messages:
            carried = context_in(message.property_text)
            if carried is not None:
                found.append(carried)
                if len(found) == LINKS_MAX:
                    break
        return (_parent(found) if len(messages) == 1 else None), _links(found)


def _attributes(operation: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _terms(terms: Terms) -> dict[str, Any]:
    if terms.transaction_group:
        return {
            "messaging.rocketmq.message.type": "transaction",
            PRODUCER_GROUP: terms.transaction_group,
        }
    found: dict[str, Any] = {"messaging.rocketmq.message.type": "delay"}
    if terms.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = terms.delay_level
    else:
        found["messaging.rocketmq.message.delivery_timestamp"] = terms.deliver_time
    return found


def _links(found: Iterable[TraceContext]) -> list[Link]:
    return [Link(span_context(one)) for one in found]


def _parent(found: Sequence[TraceContext]) -> Context | None:
    """One message's trace, where the program has no span of its own; None: what is current."""
    if len(found) != 1 or trace.get_current_span().get_span_context().is_valid:
        return None
    return trace.set_span_in_context(NonRecordingSpan(span_context(found[0])))


def _end(
    span: Span, found: Mapping[str, Any] | None = None, error: BaseException | None = None
) -> None:
    """End a span. A fault of the program's provider must not look like one of the messages."""
    try:
        if found:
            span.set_attributes(found)
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
    except Exception as fault:
        _tell(fault)


_told: set[str] = set()


def _tell(fault: Exception) -> None:
    """Log a kind of fault when it comes first: it may come with each message."""
    kind = type(fault).__qualname__
    level = logging.DEBUG if kind in _told else logging.WARNING
    _told.add(kind)
    log.log(level, "the tracer provider failed; spans are missing", exc_info=fault)
