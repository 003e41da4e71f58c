"""Output of commands: tables on a terminal, TSV in a pipe, JSON, and errors with a hint."""

import asyncio
import itertools
import json
import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from duolog_server.ops.inspection.times import BadTime, time_of

if TYPE_CHECKING:
    from duolog import Page

    from duolog_server.ops.inspection.doctor.findings import Finding

T = TypeVar("T")

Yes = typer.Option("--yes", "-y", help="Do not ask for confirmation.")
Contains = typer.Option("--contains", help="Only names with this text in them, in any case.")
After = typer.Option("--after", metavar="NAME", help="Only names after this one.")

EXIT_ERROR = 1
USAGE = 2  # the command cannot be carried out as it was given
INT_MAX = (1 << 31) - 1  # largest number that a queue id, a count or a number of minutes may be
Limit = typer.Option("--limit", min=1, max=INT_MAX, help="Maximum number of names; default: all.")
LONG_MAX = (1 << 63) - 1  # largest queue offset, epoch or time


WORD_MAX = 500
_SHOWN = 100  # characters of a longer word
_LONG = re.compile(rf"\S{{{WORD_MAX + 1},}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain(text: str, kept: str = "") -> str:
    """A text for a terminal or a table: what others wrote must not move the cursor, colour what
    follows or look like another line. Control characters are escaped. kept: those that are not.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in kept else repr(found[0])[1:-1], text)


def shortened(text: str) -> str:
    """A text whose very long words, as names that were pasted by mistake, are cut."""
    return _LONG.sub(lambda found: f"{found[0][:_SHOWN]}… ({len(found[0]):,} characters)", text)


def confirm(question: str, yes: bool) -> None:
    """Ask a question, unless the answer is known to be yes; end the command where it is no."""
    if yes:
        return
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        fail("aborted: not confirmed", "--yes in scripts")


def say(text: str) -> None:
    """Print a message to stderr. A node's error may quote what others wrote."""
    print(plain(text, kept="\n\t"), file=sys.stderr)


def fail(text: str, hint: str = "", status: int = EXIT_ERROR) -> NoReturn:
    """End with an error and the command to try next."""
    say(f"error: {shortened(text)}")
    if hint:
        say(f"  try: {hint}")
    raise typer.Exit(status)


def refuse(text: str, hint: str = "") -> NoReturn:
    """`fail` for a command that cannot be carried out as it was given."""
    fail(text, hint, USAGE)


def print_json(value: object) -> None:
    """A JSON document on stdout."""
    json.dump(value, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


# Whether the running command was asked for JSON (--json).
json_wanted: ContextVar[bool] = ContextVar("json", default=False)


def wants_json() -> bool:
    """Whether the running command prints JSON."""
    return json_wanted.get()


def print_rows(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], as_json: bool | None = None
) -> None:
    """Rows: JSON list, table on a terminal, TSV in a pipe. None is shown as `unknown`.

    as_json: as the command was asked, where not given.
    """
    rows = list(rows)
    if wants_json() if as_json is None else as_json:
        print_json(rows)
        return

    def text(value: object) -> str:
        return "unknown" if value is None else plain(str(value))

    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(text(row.get(column)) for column in columns))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "))
    for row in rows:
        # As Text: brackets in it are no markup.
        table.add_row(*(Text(text(row.get(column))) for column in columns))
    Console().print(table)


def say_next(page: "Page[object]") -> None:
    """Tell how the rest of a list is had, if there is more than this page."""
    if page.next:
        say(f"there are more, {page.total} in all; the next ones: --after {shlex.quote(page.next)}")


def print_facts(facts: Mapping[str, object], as_json: bool | None = None) -> None:
    """Print the facts of one object. as_json: see `print_rows`."""
    if wants_json() if as_json is None else as_json:
        print_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        if isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        shown = "unknown" if value is None else plain(str(value))
        print(f"{name.replace('_', ' '):<{width}}  {shown}")


def told(facts: Mapping[str, object], text: str) -> None:
    """Say what was done: to people in a sentence, to programs as facts."""
    if wants_json():
        print_json(facts)
    else:
        say(text)


def show_findings(findings: "Iterable[Finding]") -> None:
    """For people: what is wrong, and below it what to do."""
    found = list(findings)
    for finding in found:
        print(f"{finding.severity:<8} {plain(finding.where)}: {plain(finding.what)}")
        page = f" (docs/runbooks/{finding.runbook}.md)" if finding.runbook else ""
        print(f"         {plain(finding.do)}{page}")
    if not found:
        print("no problems found")


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal: it is called with what is done, and with the total where that
    was not known.
    """
    if not sys.stderr.isatty():
        yield lambda done, of=0: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda done, of=total: bars.update(bar, completed=done, total=of)


_HINTS = {
    "UnknownTopic": "duolog topic create TOPIC   (or: duolog topic list)",
    "UnknownGroup": "duolog group list",
    "Unavailable": "duolog node check --endpoints HOST:PORT   (or: duolog node start --data DIR)",
    "Timeout": "duolog node check --endpoints HOST:PORT",
    "NotMaster": "duolog node check",
    "Busy": "duolog node check",
    "Throttled": "duolog quota list",
    "TopicExists": "duolog topic alter TOPIC --queues N",
    "NoSuchMessage": "duolog msg find TOPIC --key KEY",
    "MessageTooLarge": "sending a smaller body, or store.max_message_size in duolog.toml",
    "Unauthenticated": "--user NAME --password-file FILE   (or: duolog context add NAME --help)",
}
# Errors that a context's connection settings may cause; they name it.
context_in_use: ContextVar[str] = ContextVar("context", default="")
_OF_THE_WAY = ("Unavailable", "Timeout", "Unauthenticated", "NoPermission")


def help_of() -> str:
    """The command that prints the help of the one that runs."""
    words = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:3])
    return " ".join(["duolog", *words, "--help"])


def run(work: Coroutine[object, None, T], hints: Mapping[str, str] | None = None) -> T:
    """Run a client's work; its errors become messages with a hint, and so do words that cannot be
    sent.

    hints: by the name of the error, in the place of the usual ones.
    """
    from duolog import DuologError

    try:
        return asyncio.run(work)
    except DuologError as error:
        name = type(error).__name__
        context = context_in_use.get() if name in _OF_THE_WAY else ""
        where = f" (context {context!r})" if context else ""
        usual = help_of() if name == "BadRequest" else _HINTS.get(name, "")
        fail(f"{name}: {error}{where}", (hints or {}).get(name, usual))
    except UnicodeEncodeError:
        fail("an argument is not valid UTF-8", help_of())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def when(text: str) -> int:
    """A time as ms since 1970; see `time_of`."""
    try:
        return time_of(text)
    except BadTime as error:
        fail(str(error))
