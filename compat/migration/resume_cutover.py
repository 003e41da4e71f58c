"""The end of a cut-over whose process was killed, by the node that waits for it.

The broker refuses messages from the freeze on until the cut-over comes to its end, and nobody but
an operator would try again. The node has the program loaded, so it is the first that can.
"""

import asyncio

import structlog

from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.cutover import CutoverFailed, Patience
from duolog_server.compat.migration.program import CutoverStopped, Source, WrongSource, cut_over
from duolog_server.compat.migration.state import Following
from duolog_server.compat.remoting.calling import Access, CallRefused
from duolog_server.node.runtime.config import Config
from duolog_server.store.errors import StoreError

log = structlog.get_logger("duolog.following")

_FAILURES = (
    CutoverFailed,
    CannotFollow,
    WrongSource,
    StoreError,
    CallRefused,
    OSError,
    TimeoutError,
)


def finish(config: Config, access: Access, left: Following) -> None:
    """Cut over again, unless the directory says something else by now than what was left.

    What keeps it from that is logged; raises CutoverStopped or PromotedAndStopped after a signal.
    """
    log.warning("a cut-over did not end: it is tried again here")
    source, patience = Source(access=access, left=left), Patience()
    try:
        asyncio.run(
            cut_over(
                config,
                source,
                lambda text: log.info("a step of a cut-over is done", step=text),
                patience,
            )
        )
    except CutoverStopped:
        raise
    except _FAILURES as error:
        log.error("a cut-over was not ended", reason=str(error) or type(error).__name__)
