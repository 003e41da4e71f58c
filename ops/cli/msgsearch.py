"""`duolog msg search`: messages by a text or by SQL, over a range of time."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.msg import app
from duolog_server.ops.cli.msgprinter import Fields, Format, Printer, Proto
from duolog_server.ops.cli.output import say, wants_json, when
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import Client

    from duolog_server.ops.inspection.searching.search import Search

INTERRUPTED = 130  # the exit status after Ctrl-C


@calls(app)
def search(
    topic: str,
    text: Annotated[
        str, typer.Option(help="Part of a body, a key, a tag or a user property.")
    ] = "",
    sql: Annotated[
        str, typer.Option(help="SQL92 expression over properties, as \"age > 18 AND TAGS = 'a'\".")
    ] = "",
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Match --text in any case.")
    ] = False,
    since: Annotated[str, typer.Option(help="Start time: 10m, 2h, ISO or ms.")] = "1h",
    until: Annotated[str, typer.Option(help="End time: as --since; default: now.")] = "",
    max_: Annotated[
        int, typer.Option("--max", min=1, max=10_000, help="Stop after this many messages.")
    ] = 200,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="Begin with the oldest messages.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=1, max=86_400, help="Time limit of the search.")
    ] = 600.0,
    template: Annotated[str | None, Format] = None,
    proto: Annotated[str, Proto] = "",
) -> None:
    """Search all queues of a topic, the newest messages first.

    Messages are printed as they are found, in the order of time; Ctrl-C stops the search. It reads
    no faster than 32 MB a second, and rests between reads as long as they take.
    """
    from duolog_server.ops.inspection.searching.search import Search
    from duolog_server.ops.inspection.searching.terms import End, Terms

    begin = when(since) if since else 0
    end = when(until) if until else 0
    terms = Terms(
        topic,
        text,
        sql,
        any_case=ignore_case,
        begin_ms=begin,
        end_ms=end,
        newest_first=not oldest_first,
        results_max=max_,
        seconds=seconds,
    )
    printer = Printer(wants_json(), template, proto)
    printing = _Printing(printer)

    async def work(client: "Client") -> "Search[Fields]":
        found = Search(client, terms, printer.fields)
        try:
            await found.run(lambda: printing.told(found))
        except asyncio.CancelledError:
            pass  # Ctrl-C: its result is what was found
        finally:
            printing.rest(found)
        return found

    found = asked(work)
    printing.ended(found)
    if found.progress.end is End.STOPPED:
        raise typer.Exit(INTERRUPTED)


class _Printing:
    """Prints what is found on stdout, and how far the search is on stderr."""

    def __init__(self, printer: Printer) -> None:
        self._show = printer.show
        self._printed = 0
        self._follows = sys.stderr.isatty()

    def told(self, found: "Search[Fields]") -> None:
        """A step was made."""
        self._print(found, found.settled)
        if self._follows:
            print(f"\r{_progress(found)}\x1b[K", end="", file=sys.stderr, flush=True)

    def rest(self, found: "Search[Fields]") -> None:
        """The search is over: print what it still holds."""
        self._print(found, len(found.hits))

    def ended(self, found: "Search[Fields]") -> None:
        """Say how it ended."""
        self._wipe()
        why = {"whole": "", "enough": "; there may be more", "late": "; its time was up"}
        end = found.progress.end
        say(f"{_progress(found)}{why.get(end or '', '; stopped')}")

    def _print(self, found: "Search[Fields]", count: int) -> None:
        if count > self._printed:
            self._wipe()
        for hit in found.hits[self._printed : count]:
            self._show(hit.what)
        self._printed = max(self._printed, count)
        sys.stdout.flush()

    def _wipe(self) -> None:
        if self._follows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _progress(found: "Search[Fields]") -> str:
    progress = found.progress
    at = f", at {iso(progress.at_ms)}" if progress.at_ms and progress.end != "whole" else ""
    return f"{len(found.hits)} found in {progress.scanned:,} of {progress.total:,} messages{at}"
