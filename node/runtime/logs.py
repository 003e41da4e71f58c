"""A node's log: structured lines on stderr, for people or as JSON.

structlog imports rich wherever that is installed, to draw tracebacks that a node does not have
drawn. A node imports this module before any other, so that structlog does without: a start takes
30 ms less.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO, cast

# gRPC's core writes a line for each invalid header of a peer, who decides how many there are. It
# reads this once, when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_imported_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
try:
    import structlog
finally:
    if _imported_rich is None:
        del sys.modules["rich"]  # a later import gets it


# What moves a terminal's cursor or turns its text round; lines of a traceback stay lines.
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e]")


class _Quoted:
    """A text that is written as Python would: its unprintable characters are escaped."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _printed(
    logger: "structlog.typing.WrappedLogger", method: str, line: "structlog.typing.EventDict"
) -> "structlog.typing.EventDict":
    """A structlog processor: what peers say writes nothing into a terminal but text."""
    for key, value in line.items():
        if not isinstance(value, str) or value.isprintable():
            continue
        line[key] = _escaped(value) if key == "exception" else _Quoted(value)
    return line


def _escaped(text: str) -> str:
    def escape(found: "re.Match[str]") -> str:
        character = found.group()
        return character if character.isprintable() else repr(character)[1:-1]

    return _UNPRINTABLE.sub(escape, text)


class _OfLibraries(logging.Handler):
    """Logs of libraries, in the node's own lines: asyncio has one for each connection that breaks
    in the middle of a write, and its peer decides how many there are.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless there are too many of them."""
        log = structlog.get_logger("duolog.node")
        log.warning(
            "a library reports",
            reason=f"{record.name}: {_message_of(record)[:500]}",
            exc_info=record.exc_info,
        )


def _message_of(record: logging.LogRecord) -> str:
    """A library's message; unformatted if its arguments do not fit."""
    try:
        return record.getMessage()
    except Exception:  # of any argument's own text
        return str(record.msg)


class _Lines:
    """A file for lines of the log, written without a buffer. No call fails: lines that its full
    disk does not take are lost, and the next one that it takes has their number.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lost = self._told = 0
        self._torn = False  # the file ends within a line
        try:
            self._descriptor = file.fileno()
        except (OSError, ValueError):  # it is in memory
            self._descriptor = -1

    def tell_lost(
        self,
        logger: "structlog.typing.WrappedLogger",
        method: str,
        line: "structlog.typing.EventDict",
    ) -> "structlog.typing.EventDict":
        """A structlog processor: `lost_lines` of a line is the number of those lost before it."""
        self._told = self._lost
        return {**line, "lost_lines": self._lost} if self._lost else line

    def write(self, text: str) -> None:
        """Write a line. See TextIO."""
        if self._descriptor < 0:
            self._file.write(text)
            return
        left = memoryview(("\n" * self._torn + text).encode(errors="backslashreplace"))
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
                self._torn = bool(left)
        except OSError:
            self._lost += 1
        else:
            self._lost, self._told = self._lost - self._told, 0

    def flush(self) -> None:
        """See TextIO."""


def _named(node: str) -> "structlog.typing.Processor":
    """A structlog processor: lines of several nodes in one log name theirs."""

    def name(
        logger: "structlog.typing.WrappedLogger", method: str, line: "structlog.typing.EventDict"
    ) -> "structlog.typing.EventDict":
        return {"node": node, **line}

    return name


# The rate limit of the log, so that no client and no broken disk fills it.
LINES_MAX = 20  # of one event
SPAN_SECONDS = 10.0
EVENTS_MAX = 1000  # remembered; the code has fewer
MORE = f"further lines of this event are left out for up to {SPAN_SECONDS:.0f} s"


@dataclass(slots=True)
class _Span:
    began: float
    lines: int = 0
    left_out: int = 0


class RateLimiter:
    """A structlog processor that writes at most `LINES_MAX` lines of one event in `SPAN_SECONDS`.

    The last line of such a span has `more`: further lines are dropped. The first line of the next
    one has `left_out`, the number dropped. Debug lines are not limited: who enables them wants
    all of them. There is no lock: threads that log at once may write a line too many or too few.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._clock = clock
        self._spans: dict[str, _Span] = {}

    def __call__(
        self, _logger: object, method: str, line: "structlog.typing.EventDict"
    ) -> "structlog.typing.EventDict":
        """Raises DropEvent for a line too many."""
        if method == "debug":
            return line
        now, event = self._clock(), str(line.get("event"))
        span = self._spans.get(event)
        if span is None or now - span.began >= SPAN_SECONDS:
            if span is None and len(self._spans) >= EVENTS_MAX:
                self._spans.clear()
            left_out = 0 if span is None else span.left_out
            span = self._spans[event] = _Span(now)
            if left_out:
                line["left_out"] = left_out
        if span.lines >= LINES_MAX:
            span.left_out += 1
            raise structlog.DropEvent
        span.lines += 1
        if span.lines == LINES_MAX:
            line["more"] = MORE
        return line


def configure_logging(level: str, as_json: bool, node: str = "") -> None:
    """Structured lines on stderr. level: lowest that is written. node: the name that each line
    has as `node`; empty: none has one.
    """
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # as above, of its Python part
    root = logging.getLogger()
    if not any(isinstance(handler, _OfLibraries) for handler in root.handlers):
        root.addHandler(_OfLibraries(logging.WARNING))
    lines = _Lines(sys.stderr)
    renderers: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if not as_json:
        renderers = [_printed, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[
            RateLimiter(),
            lines.tell_lost,
            *([_named(node)] if node else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, lines)),
    )
