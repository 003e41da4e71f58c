"""The work of a page or an action, within bounds: of time, and of what it may raise.

Rules: it ends within PAGE_SECONDS, so that nodes that hang do not pile up pages, and raises errors
of duolog alone. A user whom the nodes no longer know has no session afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from duolog import DuologError, Unauthenticated
from starlette.requests import Request

from duolog_server.ops.console.requests.errors import Defect, TookTooLong
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers

PAGE_SECONDS = 30.0  # in which nodes answer all that a page asks
log = structlog.get_logger("duolog.console")

T = TypeVar("T")


async def guarded(
    work: Callable[[], Awaitable[T]], session: Session, request: Request, viewers: Viewers
) -> T:
    """Run work to its result; raises duolog's errors alone."""
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            await session.check_current()
            return await work()
    except Unauthenticated:
        await viewers.end(request)
        raise
    except DuologError:
        raise
    except TimeoutError:
        raise TookTooLong(f"the nodes did not answer within {PAGE_SECONDS:.0f} s") from None
    except Exception as error:
        if viewers.lasts(session):  # or else its client is closed
            log.error("a page of the console failed", path=raw_path(request), exc_info=error)
        raise Defect("This page failed: the log of the console says why") from None


def raw_path(request: Request) -> str:
    """The path as it was asked for: a name in it may have characters that only escapes carry."""
    path: bytes = request.scope["raw_path"]
    return path.decode("ascii", "replace")
