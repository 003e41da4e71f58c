"""The signals that end a process in order."""

import asyncio
import signal
from collections.abc import Callable


def on_stop(end: Callable[[], object]) -> None:
    """Call `end` on SIGTERM and SIGINT; on SIGHUP as well, unless nohup has it ignored.

    Raises RuntimeError outside an event loop.
    """
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
