"""Links to pages, of which nobody gets one that the nodes would refuse.

Rules: which calls the page or the action behind an address makes is written here alone. The nodes
are asked what the viewer may call, once for all links of a page, and again after KNOWN_SECONDS.
While the nodes do not answer, the last answer holds; links without one are shown.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf

from duolog import Client, DuologError, NoPermission
from duolog._access import denials_of
from duolog._requests import checked_request
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import Message
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.addresses import Address, address
from duolog_server.ops.inspection.deadletters.redelivery import group_of
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.metadata import AUDIT_TOPIC

KNOWN_SECONDS = 10.0
ASKED_MAX = 1000  # calls; further links are shown
KEPT_MAX = 4096  # links whose calls are remembered
TOLD = ("topic", "group", "producers", "selected")  # names in an address that calls depend on
ROUNDS = 3  # in which a page is made: an answer may show links that it had not before
NAME_CHARACTERS, END_CHARACTERS = 24, 16  # of a link whose end stays where it is cut
Call = tuple[str, bytes]
Names = Mapping[str, object]


def _call(method: str, request: Message) -> Call:
    return method, request.SerializeToString(deterministic=True)


def _text(names: Names, name: str) -> str:
    return str(names.get(name, ""))


def sees_topic(topic: str) -> Call:
    """Look at a topic."""
    return _call("Admin/ListTopics", checked_request(wire.ListTopicsRequest, topics=[topic]))


def reads(topic: str) -> Call:
    """Read messages of a topic."""
    return _call("Messages/Pull", checked_request(wire.PullRequest, topic=topic))


def commits(group: str, topics: Sequence[str]) -> Call:
    """Commit offsets of a group."""
    offsets = [checked_request(wire.QueueOffset, topic=topic) for topic in topics]
    return _call("Groups/Commit", checked_request(wire.CommitRequest, group=group, offsets=offsets))


def _sends(topic: str) -> Call:
    return _call("Messages/Append", checked_request(wire.AppendRequest, topic=topic))


def _of_topic(*calls: Callable[[str], Call]) -> Callable[[Names], Iterator[Call]]:
    return lambda names: (call(_text(names, "topic")) for call in calls)


def _topic_change(method: str, kind: type[Message]) -> Callable[[str], Call]:
    return lambda topic: _call(method, checked_request(kind, topic=topic))


def _of_group(*kinds: tuple[str, type[Message]]) -> Callable[[Names], Iterator[Call]]:
    return lambda names: (
        _call(method, checked_request(kind, group=_text(names, "group"))) for method, kind in kinds
    )


def _letters(names: Names) -> Iterator[Call]:
    yield reads(dead_letter_topic(_text(names, "group")))


def _redelivery(names: Names) -> Iterator[Call]:
    yield from _letters(names)
    yield _sends("")
    if "selected" not in names:  # a group of its own remembers what was sent
        group = _text(names, "group")
        topics = [dead_letter_topic(group)]
        request = checked_request(wire.HeartbeatRequest, group=group_of(group), topics=topics)
        yield _call("Groups/Heartbeat", request)


def _way(names: Names) -> Iterator[Call]:
    request = checked_request(wire.TrackRequest, topic=_text(names, "topic"), key="any")
    yield _call("Admin/Track", request)


def _decision(names: Names) -> Iterator[Call]:
    group = _text(names, "producers")
    yield _call("Admin/DecideHalf", checked_request(wire.DecideHalfRequest, group=group))


def _of_cluster(*calls: tuple[str, type[Message]]) -> Callable[[Names], Iterator[Call]]:
    return lambda names: (_call(method, kind()) for method, kind in calls)


_STATUS = ("Admin/ClusterStatus", wire.ClusterStatusRequest)
_DESCRIBE = ("Admin/DescribeGroup", wire.DescribeGroupRequest)
CALLS: Mapping[str, Callable[[Names], Iterator[Call]]] = {
    at.DOCTOR: _of_cluster(_STATUS),
    at.TOPIC: _of_topic(sees_topic),
    at.TAIL: _of_topic(reads),
    at.MESSAGE: _of_topic(reads),
    at.GROUP: _of_group(_DESCRIBE),
    at.DEAD: _letters,
    at.DEAD_EXPORT: _letters,
    at.MESSAGES: _of_topic(reads),
    at.WAY: _way,
    at.RIGHTS: _of_cluster(("Access/ListUsers", wire.ListUsersRequest)),
    at.AUDIT: lambda names: iter((reads(AUDIT_TOPIC),)),
    at.TOPIC_CREATE: _of_topic(_topic_change("Admin/CreateTopic", wire.TopicRequest)),
    at.TOPIC_ALTER: _of_topic(sees_topic, _topic_change("Admin/AlterTopic", wire.TopicRequest)),
    at.TOPIC_DELETE: _of_topic(
        sees_topic, _topic_change("Admin/DeleteTopic", wire.DeleteTopicRequest)
    ),
    at.MESSAGE_SEND: _of_topic(_sends),
    at.MESSAGE_AGAIN: _of_topic(reads, _sends),
    at.GROUP_RESET: _of_group(_DESCRIBE, ("Admin/ResetGroup", wire.ResetGroupRequest)),
    at.GROUP_DELETE: _of_group(_DESCRIBE, ("Admin/DeleteGroup", wire.DeleteGroupRequest)),
    at.GROUP_REDELIVER: _redelivery,
    at.DELAYED_RECALL: _of_topic(_topic_change("Admin/RecallDelayed", wire.RecallDelayedRequest)),
    at.HALF_DECIDE: _decision,
    at.NODE_SWITCH: _of_cluster(_STATUS, ("Admin/Failover", wire.FailoverRequest)),
    at.NODE_DRAIN: _of_cluster(_STATUS, ("Admin/Drain", wire.DrainRequest)),
    at.NODE_FORGET: _of_cluster(_STATUS, ("Admin/Forget", wire.ForgetRequest)),
    at.NODE_UNDRAIN: _of_cluster(_STATUS, ("Admin/Drain", wire.DrainRequest)),
}
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
        calls = tuple(CALLS[pattern](names)) if self.user and pattern in CALLS else ()
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
    told = tuple((name, str(names[name])) for name in TOLD if name in names)
    return _calls_of(pattern, told) if pattern in CALLS else ()


@lru_cache(KEPT_MAX)
def _calls_of(pattern: str, names: tuple[tuple[str, str], ...]) -> Sequence[Call]:
    """A page has hundreds of links to queues of one topic, and is made each second."""
    return tuple(CALLS[pattern](dict(names)))


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
