"""A search that is interrupted tells what it found."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
import typer

from duolog_server.ops.cli import msgsearch
from duolog_server.ops.inspection.searching import search as module
from duolog_server.ops.inspection.searching.search import Hit
from duolog_server.ops.inspection.searching.terms import End, Progress


class Interrupted(module.Search[Any]):
    """A search whose user presses Ctrl-C."""

    settled = 1

    async def run(self, told: Any = None) -> None:
        self.hits = [Hit((n, n, "a", 0), fields(f"body {n}")) for n in range(2)]
        self.progress = Progress(5, 9, 1_700_000_000_000)
        told()
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.progress = Progress(5, 9, 0, End.STOPPED)
            raise


def fields(body: str) -> dict[str, object]:
    return {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 1,
        "store_time": 1,
        "tags": "",
        "body": body,
    }


@pytest.mark.parametrize("terminal", [False, True])
def test_an_interrupted_search_prints_what_it_found(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
) -> None:
    # A shell's background job is started with the signal ignored, and asyncio leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(module, "Search", Interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with pytest.raises(typer.Exit) as ended:
        msgsearch.search("T", text="body", template="{body}")
    assert ended.value.exit_code == 130
    out, err = capsys.readouterr()
    assert out == "body 0\nbody 1\n"
    assert err.endswith("2 found in 5 of 9 messages; stopped\n")
    assert ("\r" in err) is terminal
    assert ("5 of 9 messages, at 2023-" in err) is terminal
