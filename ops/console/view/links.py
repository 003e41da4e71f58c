"""Links to pages, of which nobody gets one that the nodes would refuse.

Rules: the nodes are asked what the viewer may call, once for all links of a page, and again after
KNOWN_SECONDS. While the nodes do not answer, the last answer holds; links without one are shown.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf

from duolog import Client, DuologError, NoPermission
from duolog._access import denials_of
from duolog.wire import duolog_pb2 as wire
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.addresses import Address, address
from duolog_server.ops.console.view.calls import TOLD, Call, Names, calls_of, sees_topic

KNOWN_SECONDS = 10.0
ASKED_MAX = 1000  # calls; further links are shown
KEPT_MAX = 4096  # links whose calls are remembered
ROUNDS = 3  # in which a page is made: an answer may show links that it had not before
NAME_CHARACTERS, END_CHARACTERS = 24, 16  # of a link whose end stays where it is cut
# Pages by part of the menu, with their keys. All see the first one; without the cluster, it is a
# list of what they may see.
MENU = (
    (
        "Observe",
        (
            (at.CLUSTER, "Cluster", "c"),
            (at.TOPICS, "Topics", "t"),
            (at.GROUPS, "Groups", "g"),
            (at.MESSAGES, "Messages", "m"),
        ),
    ),
    ("Deferred", ((at.DELAYED, "Delayed", "w"), (at.HALVES, "Transactions", "x"))),
    ("Check", ((at.DOCTOR, "Doctor", "d"),)),
    ("Admin", ((at.RIGHTS, "Rights", "r"), (at.AUDIT, "Audit", "a"))),
)
FOR_USERS = (at.RIGHTS, at.AUDIT)  # pages that are of use where there are users
HOME = "Home"


class Rights:
    """What a viewer may call, as far as the nodes have said. user: empty where there are none."""

    def __init__(
        self,
        user: str = "",
        client: Client | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.user = user
        self._client = client
        self._seconds = seconds
        self._since = -inf
        self._known: dict[Call, str] = {}  # why it is denied; empty: it is not
        self._before: dict[Call, str] = {}  # the same, of an older answer
        self._sought: dict[Call, None] = {}

    async def denials(self, calls: Sequence[Call]) -> list[str]:
        """Why each of some calls is denied, in words for the first; empty for one that is not.

        It never fails: some callers have done something that they must tell.
        """
        await self._learn(calls)
        return [self._why(call) for call in calls]

    async def _learn(self, calls: Iterable[Call]) -> bool:
        """Ask the nodes about the calls that are not known; whether they answered."""
        self._fresh()
        unknown = [call for call in dict.fromkeys(calls) if call not in self._known]
        if unknown and self.user:
            try:
                answers = await self._asked(unknown)
            except DuologError:
                return False
            self._known.update(zip(unknown, answers, strict=False))
        return True

    def _why(self, call: Call) -> str:
        return self._known.get(call, self._before.get(call, ""))

    def _fresh(self) -> None:
        now = self._seconds()
        if now - self._since > KNOWN_SECONDS or len(self._known) > 10 * ASKED_MAX:
            self._before, self._known, self._since = self._known or self._before, {}, now

    async def check(self, pattern: str, names: Names) -> None:
        """Raise NoPermission where a page or an action is denied."""
        calls = calls_of(pattern, names) if self.user else ()
        why = next(filter(None, await self._asked(calls)), "") if calls else ""
        if why:
            raise NoPermission(f"user {self.user}: {why}")

    async def _asked(self, calls: Sequence[Call]) -> list[str]:
        """Ask the nodes."""
        assert self._client is not None, "there are users"
        planned = [wire.PlannedCall(method=name, request=one) for name, one in calls[:ASKED_MAX]]
        return await denials_of(self._client.access, planned)

    async def may(self, link: Address) -> bool:
        """Whether what is behind a link is not denied."""
        return not any(await self.denials(_calls(link.pattern, link.names)))

    async def allowed(self, topics: Sequence[str]) -> list[str]:
        """The topics that the viewer may look at, of some."""
        denials = await self.denials([sees_topic(topic) for topic in topics])
        return [topic for topic, why in zip(topics, denials, strict=True) if not why]

    async def drawn(self, draw: Callable[[], str], *, asks: bool = True) -> str:
        """A page with the links that its viewer may follow. asks: the nodes can be asked."""
        self._fresh()
        for _ in range(ROUNDS):
            self._sought = {}
            text = draw()
            if not (self._sought and asks and await self._learn(self._sought)):
                break
        return text

    def shows(self, link: str) -> bool:
        """Whether a link is shown, as far as it is known. What is not is noted, for `drawn`."""
        if not isinstance(link, Address):
            return True
        if not self.user:
            return link.pattern not in FOR_USERS
        calls = _calls(link.pattern, link.names)
        self._sought |= dict.fromkeys(call for call in calls if call not in self._known)
        return not any(map(self._why, calls))


def _calls(pattern: str, names: Names) -> Sequence[Call]:
    return _known_calls(pattern, tuple((name, str(names[name])) for name in TOLD if name in names))


@lru_cache(KEPT_MAX)
def _known_calls(pattern: str, names: tuple[tuple[str, str], ...]) -> Sequence[Call]:
    """A page has hundreds of links to queues of one topic, and is made each second."""
    return calls_of(pattern, dict(names))


@pass_context
def may(context: Context, link: str) -> bool:
    """Whether a link is shown to the viewer."""
    rights: Rights | None = context.get("rights")
    return rights is None or rights.shows(link)


@pass_context
def link(context: Context, text: object, to: str, **attributes: object) -> Markup | str:
    """A link; nothing where the viewer may not follow it."""
    if not to or not may(context, to):
        return ""
    words = {"href": to, **attributes}
    shown = (
        f' {name.replace("_", "-")}="{escape(value)}"' for name, value in words.items() if value
    )
    return Markup(f"<a{''.join(shown)}>{escape(text)}</a>")


@pass_context
def named(context: Context, text: str, to: str) -> Markup | str:
    """A link whose name keeps its end where it is cut; the name alone where it is no link."""
    inner: Markup | str = text
    title = ""
    if len(text) > NAME_CHARACTERS:
        inner = Markup("<span>{}</span>{}").format(text[:-END_CHARACTERS], text[-END_CHARACTERS:])
        title = text
    return link(context, inner, to, **{"class": "name", "title": title}) or escape(inner)


@pass_context
def menu(context: Context) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """The parts of the menu, with the pages that the viewer may see: address, name, key."""
    found = []
    for part, entries in MENU:
        shown = [
            (href, name if href != at.CLUSTER or may(context, address(at.DOCTOR)) else HOME, key)
            for href, name, key in entries
            if may(context, address(href))
        ]
        if shown:
            found.append((part, shown))
    return found
