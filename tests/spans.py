"""Spans as tests look at them: taken in memory, by name."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler


class Taken:
    """A tracer provider, and the spans that it was given."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def all(self) -> Sequence[ReadableSpan]:
        """All that ended."""
        return self._exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        """Their names, in the order in which they ended."""
        return [span.name for span in self.all]

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of a name."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one of a name."""
        (span,) = self.named(name)
        return span


def attributes(span: ReadableSpan) -> dict[str, object]:
    """What a span says."""
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> int:
    """The trace that it is in."""
    assert span.context is not None
    return int(span.context.trace_id)


def id_of(span: ReadableSpan) -> int:
    """The span itself."""
    assert span.context is not None
    return int(span.context.span_id)


def parent_of(span: ReadableSpan) -> int:
    """The span that it is in; 0 for none."""
    return 0 if span.parent is None else span.parent.span_id


def links_of(span: ReadableSpan) -> list[int]:
    """The spans that it is linked to."""
    return [link.context.span_id for link in span.links]
