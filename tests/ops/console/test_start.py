"""A console that cannot be started is tried again."""

import asyncio
from typing import Any

import pytest
import structlog

from duolog_server.node.runtime import restarts
from duolog_server.node.runtime.consoleprocess import ConsoleOptions, ConsoleProcess
from tests.node.replicas import WAIT_SECONDS


async def test_a_machine_without_processes_left_has_a_console_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: asyncio.Queue[None] = asyncio.Queue()

    async def refuse(*args: Any, **named: Any) -> None:
        tried.put_nowait(None)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(restarts, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    process = ConsoleProcess(ConsoleOptions(("localhost:1",), "localhost"), [])
    with structlog.testing.capture_logs() as lines:
        process.start()
        async with asyncio.timeout(WAIT_SECONDS):
            for _ in range(3):
                await tried.get()
        await process.stop()
    (reason,) = {line["reason"] for line in lines}
    assert reason == "cannot start it: [Errno 11] Resource temporarily unavailable"
    assert process.pid == process.starts == 0
