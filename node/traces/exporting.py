"""The thread that makes spans of a node's notes and gives them to a collector (OTLP).

A collector that does not answer costs spans and nothing else: the notes wait in a bounded queue,
and what does not fit is counted. The end is bounded, too. The event loop can do nothing while
Python runs here: so the thread pauses after every few notes, and exports few spans at a time.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from duolog_server.node.traces.recorder import Confirmed, Recorder, Sighting
from duolog_server.node.traces.spanmaker import SpanMaker

log = structlog.get_logger("duolog.node")

EXPORT_SECONDS = 5.0  # that one request may take, attempts included
SPANS_PER_EXPORT = 250
PAUSE_SECONDS = 0.0002
NOTES_AT_ONCE = 10  # made into spans between two pauses: about half a millisecond
END_SECONDS = 2.0  # for the last export
TELL_SECONDS = 60.0  # between two lines of the log about a collector that takes nothing


def load(protocol: str) -> Callable[[str], SpanExporter]:
    """A factory of exporters to the collector at an endpoint. Raises ImportError.

    protocol: `grpc` or `http`.
    """
    # Whatever it says about a failed attempt, the node's own log says once.
    quiet = logging.getLogger("opentelemetry")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    if protocol == "http":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        def by_http(endpoint: str) -> SpanExporter:
            root = endpoint.rstrip("/").removesuffix("/v1/traces")
            return http.OTLPSpanExporter(f"{root}/v1/traces", timeout=EXPORT_SECONDS)

        return by_http
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

    def by_grpc(endpoint: str) -> SpanExporter:
        insecure = not endpoint.startswith("https://")
        return grpc.OTLPSpanExporter(endpoint, insecure=insecure, timeout=EXPORT_SECONDS)

    return by_grpc


class SpanExport:
    """Exports a node's spans until it is stopped."""

    def __init__(
        self, recorder: Recorder, maker: SpanMaker, exporter: SpanExporter, interval: float
    ) -> None:
        """interval: seconds between two exports."""
        self._recorder = recorder
        self._maker = maker
        self._exporter = exporter
        self._interval = interval
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duolog-spans", daemon=True)
        self._told = -TELL_SECONDS
        self._failing = 0
        self.exported = 0
        self.refused = 0  # that the collector did not take

    def counts(self) -> dict[str, int]:
        """Spans since the start, and what was lost of them, by names for an operator."""
        return {
            "spans_exported": self.exported,
            "spans_refused": self.refused,
            "span_batches_lost": self._recorder.lost,
            "spans_left_out": self._maker.left_out,
        }

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """Export what is left, if that is quickly done."""
        self._ending.set()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join, END_SECONDS)
        # It ends an attempt that still waits; the thread keeps no process alive.
        await loop.run_in_executor(None, self._exporter.shutdown)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(self._interval)
            try:
                if self._recorder.fault:
                    self._tell(self._recorder.fault)
                    self._recorder.fault = ""
                self._export_all(self._recorder.take())
            except Exception as error:  # a bug ends no thread: later spans are wanted
                self._tell(f"{type(error).__name__}: {error}")

    def _export_all(self, notes: Sequence[Sighting | Confirmed]) -> None:
        spans: list[ReadableSpan] = []
        for first in range(0, len(notes), NOTES_AT_ONCE):
            spans += self._maker.spans(notes[first : first + NOTES_AT_ONCE])
            while len(spans) >= SPANS_PER_EXPORT:
                self._export(spans[:SPANS_PER_EXPORT])
                del spans[:SPANS_PER_EXPORT]
            time.sleep(PAUSE_SECONDS)
        if spans:
            self._export(spans)

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        reason = "the collector did not answer, or refused them"
        try:
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self.exported += len(spans)
                self._failing = 0
                return
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self.refused += len(spans)
        self._failing += len(spans)
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            log.warning("spans could not be exported", count=self._failing, reason=reason)
