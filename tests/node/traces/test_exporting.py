"""The thread that exports spans, with exporters that misbehave."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from duolog_server.node.traces import exporting
from duolog_server.node.traces.exporting import SpanExport
from duolog_server.node.traces.spanmaker import SpanMaker
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


def test_lost_spans_are_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("duolog_server.node.traces.exporting.time.monotonic", lambda: now[0])
    answers = [SpanExportResult.FAILURE] * 3 + [SpanExportResult.SUCCESS, SpanExportResult.FAILURE]
    notes = recorder()
    export = SpanExport(notes, SpanMaker({}, "1", 10), Exporter(answers), 1.0)
    put(notes, [text(1)])
    spans = SpanMaker({}, "1", 10).spans(notes.take())
    with structlog.testing.capture_logs() as lines:
        for seconds in (0.0, 30.0, 31.0, 1.0, 60.0):
            now[0] += seconds
            export._export(spans)
    assert [line["count"] for line in lines] == [1, 3, 1]


async def test_the_end_waits_for_an_export_that_hangs_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "END_SECONDS", 0.05)
    notes, exporter = recorder(), Exporter([])
    put(notes, [text(1)])
    export = SpanExport(notes, SpanMaker({}, "1", 10), exporter, 3600.0)
    export.start()
    async with asyncio.timeout(60):  # the exporter would never end
        await export.stop()
    assert exporter.ended.is_set()
