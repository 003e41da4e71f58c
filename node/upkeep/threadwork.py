"""A job in a thread that ends before its owner does.

A cancelled task would leave its job running in the thread: the job would write to files that a stop
writes or closes, and a failed sync would go unnoticed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor


async def done_in_thread(
    threads: Executor, job: Callable[[], None], on_failure: Callable[[OSError], None]
) -> bool:
    """Run a job in a thread; False if it failed, after calling on_failure.

    A cancellation takes effect when the job has ended, also one that is repeated, as by a stop.
    """
    work = asyncio.get_running_loop().run_in_executor(threads, job)
    try:
        await asyncio.shield(work)
    except OSError as error:
        on_failure(error)
        return False
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        failure = work.exception()
        if isinstance(failure, OSError):
            on_failure(failure)
        raise
    return True
