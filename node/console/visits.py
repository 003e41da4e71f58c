"""What a page is given, and what it gives back."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from duolog import Client

from node.console.rates import Rates


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody looks at a page.

    client: calls nodes as whoever looks. endpoints: at which nodes should answer. path: what the
    page's own pattern names. query: what a form or a link asks for. now: seconds of a clock that
    does not go back. rates: of what this viewer has seen before.
    """

    client: Client
    endpoints: Sequence[str]
    path: Mapping[str, str]
    query: Mapping[str, str]
    now: float
    rates: Rates


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: its template and what that shows. title: of the window. command: the same from the
    command line.
    """

    template: str
    title: str
    facts: Mapping[str, object] = field(default_factory=dict)
    command: str = ""


Page = Callable[[Visit], Awaitable[Shown]]  # raises duolog's errors

__all__ = ["Page", "Shown", "Visit"]
