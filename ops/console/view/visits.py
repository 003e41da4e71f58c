"""Input and output of pages and actions."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duolog import Client

from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.searches import Searches
from duolog_server.ops.console.view.charts import Axes
from duolog_server.ops.console.view.links import Rights
from duolog_server.ops.console.view.rates import Rates

FORM_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody looks at a page.

    client: calls nodes as the viewer. endpoints: of nodes that should answer. path: what the
    page's own pattern names. query: what a form or a link asks for. now: seconds of a clock that
    does not go back. rates: of what this viewer has seen before. memory: what a page that follows
    something keeps from one look to the next. searches: of this viewer. form: proves that a
    form comes from a page of this session. seeing: how messages are shown; nothing else shows them.
    rights: what the viewer may call.
    """

    client: Client
    endpoints: Sequence[str]
    path: Mapping[str, str]
    query: Mapping[str, str]
    now: float
    rates: Rates
    memory: dict[str, Any] = field(default_factory=dict)
    searches: Searches = field(default_factory=Searches)
    form: str = ""
    seeing: Seeing = field(default_factory=Seeing)
    rights: Rights = field(default_factory=Rights)

    @property
    def axes(self) -> Axes:
        """Axes of this page's charts."""
        return Axes(self.now, time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: its template and what that shows. title: of the window. command: the same from the
    command line. pause_seconds: until the next look at it, where it is live; None: as usual. over:
    what the page follows is over, it changes no more. status: of HTTP.
    """

    template: str
    title: str
    facts: Mapping[str, object] = field(default_factory=dict)
    command: str = ""
    pause_seconds: float | None = None
    over: bool = False
    status: int = 200


Page = Callable[[Visit], Awaitable[Shown]]  # raises duolog's errors


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that a browser keeps. name: of the file, as far as names of files allow it. lines:
    its text; the first one raises duolog's errors. cut: the last one where the session ends before.
    """

    name: str
    lines: AsyncGenerator[str, None]
    cut: str = ""


Download = Callable[[Visit], Awaitable[Exported]]  # raises duolog's errors


@dataclass(frozen=True, slots=True)
class Undo:
    """How an action is undone. label: of the button. run: does it, and returns what was done."""

    label: str
    run: Callable[[Client], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Done:
    """An action was done. told: what was done, as a sentence. location: the page to show next.
    undo: None where it cannot be undone. command: the same from the command line.
    """

    told: str
    location: str
    undo: Undo | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """ask: a page that says what it would do, and has the form. do: does it, as the form says.

    Both raise duolog's errors; BadRequest for a form that is not filled in. form_bytes: of its form
    at most. repeatable: a form may come again, which does no more than once.
    """

    ask: Page
    do: Callable[[Visit, Mapping[str, str]], Awaitable[Done]]
    form_bytes: int = FORM_BYTES
    repeatable: bool = False
