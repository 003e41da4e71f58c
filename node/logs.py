"""A node's log: structured lines on stderr, for people or as JSON.

structlog imports rich wherever that is installed, to draw tracebacks that a node does not have
drawn. A node imports this module before any other, so that structlog does without: a start takes
30 ms less.
"""

import logging
import os
import sys

# gRPC's core writes a line for each invalid header of a peer, who decides how many there are. It
# reads this once, when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_imported_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
try:
    import structlog
finally:
    if _imported_rich is None:
        del sys.modules["rich"]  # whoever imports it later gets it


def configure_logging(level: str, as_json: bool) -> None:
    """Structured lines on stderr. level: lowest that is written."""
    from node.lograte import RateLimiter  # imports structlog, so only after the precautions above

    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # as above, of its Python part
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            RateLimiter(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
