"""The thread that exports spans, with exporters that misbehave."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from node.traces import exporting
from node.traces.exporting import SpanExport
from node.traces.spanmaker import SpanMaker
from tests.node.traces.test_recorder import put, recorder, text


class Exporter(SpanExporter):
    """Fails, hangs or takes the spans, as it is told."""

    def __init__(self, answers: Sequence[SpanExportResult | Exception]) -> None:
        self._answers = list(answers)
        self.taken: list[ReadableSpan] = []
        self.ended = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._answers:
            self.ended.wait()
            return SpanExportResult.FAILURE
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.taken += spans if answer is SpanExportResult.SUCCESS else []
        return answer

    def shutdown(self) -> None:
        self.ended.set()


async def test_spans_that_are_not_taken_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "SPANS_PER_EXPORT", 1)
    answers: list[SpanExportResult | Exception] = [
        SpanExportResult.FAILURE,
        ConnectionError("gone"),
        SpanExportResult.SUCCESS,
    ]
    notes, exporter = recorder(), Exporter(answers)
    put(notes, [text(1), text(2), text(3)])
    export = SpanExport(notes, SpanMaker({}, "1", 10), exporter, 0.01)
    export.start()
    await export.stop()
    assert export.counts() == {
        "spans_exported": 1,
        "spans_refused": 2,
        "span_batches_lost": 0,
        "spans_left_out": 0,
    }
    assert len(exporter.taken) == 1


async def test_the_end_waits_for_an_export_that_hangs_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "END_SECONDS", 0.05)
    notes, exporter = recorder(), Exporter([])
    put(notes, [text(1)])
    export = SpanExport(notes, SpanMaker({}, "1", 10), exporter, 3600.0)
    export.start()
    began = time.monotonic()
    async with asyncio.timeout(10):
        await export.stop()
    assert time.monotonic() - began < 5
    assert exporter.ended.is_set()
