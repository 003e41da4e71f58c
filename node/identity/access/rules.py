"""Rules: what the methods of an API ask for, in the words that all APIs share.

A topic's messages are read with Sub and written with Pub. A sink, and a group of producers, is a
Group. What concerns the whole cluster asks for the Cluster.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from duolog._message import RETRY_PREFIX

from duolog_server.node.identity.rights.resources import (
    FOR_SUPERS,
    Action,
    Need,
    Resource,
    group,
    topic,
)
from duolog_server.store.grouptopics import whole_name
from duolog_server.store.metadata import TRACE_TOPIC, is_reserved_topic
from duolog_server.store.names import TOPIC_BYTES_MAX

# What is answered for every id that names nothing, and nothing that the caller may read: otherwise
# ids would tell where the messages of others begin, and how many there are.
NO_SUCH_ID = "no message has this id"
Needs = Iterable[Need]


class Facts(Protocol):
    """What rules know of the node."""

    @property
    def cluster(self) -> str:
        """The name of its cluster."""

    def has_group(self, name: str) -> bool:
        """Whether a consumer group exists."""

    @property
    def groups(self) -> Collection[str]:
        """The consumer groups."""

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists."""

    def check_knows(self) -> None:
        """Raise NotMaster if the node may lack the newest changes of users."""


class May(Protocol):
    """Whether the caller may do all of it."""

    def __call__(self, *needs: Need) -> bool:
        """Look at each of them."""


async def _nothing(reply: Any, may: May, facts: Facts) -> None:
    """The reply tells nothing that its request did not ask for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a method.

    Attributes:
        needs: of a request.
        trim: takes from a reply what the caller may not see.
        each_answered: whether the method looks at each request of a stream by itself, and answers
            one that is refused; otherwise the stream ends with the first of them.
        again: whether the needs are looked at again before the reply, as the call may take long.
        delivers: of a streamed reply, which is only sent to a caller who has this right then.
    """

    needs: Callable[[Any, Facts], Needs]
    trim: Callable[[Any, May, Facts], Awaitable[None]] = _nothing
    each_answered: bool = False
    again: bool = False
    delivers: Callable[[Any, Facts], Needs] | None = None


def need(resource: Resource, *actions: Action) -> Need:
    """One of these actions on a resource."""
    return Need(resource, frozenset(actions))


def of_topic(name: str, *actions: Action) -> Need:
    """One of these actions on a topic.

    Topics of the system hold what belongs to many users, and the users themselves. To one of them
    clients send what they did; they need a right to do so, and do not read it.
    """
    if name == TRACE_TOPIC and Action.PUB in actions:
        return need(topic(name), Action.PUB)
    return FOR_SUPERS if is_reserved_topic(name) else need(topic(name), *actions)


def of_owners(name: str, facts: Facts, *actions: Action) -> list[Need]:
    """One of these actions on a topic of any owner.

    %RETRY%a_b is that of a group a_b, or the one of a group a for a topic b: then it asks for both.
    Of a name that is too long for a topic, neither exists, and it has too many parts to look at.
    """
    needs = [of_topic(whole_name(name, facts.groups), *actions)]
    if name.startswith(RETRY_PREFIX) and len(name) <= TOPIC_BYTES_MAX:
        words = name.removeprefix(RETRY_PREFIX).split("_")
        for at in range(1, len(words)):
            owner, of = "_".join(words[:at]), "_".join(words[at:])
            if facts.has_group(owner) and facts.has_topic(of):
                needs.append(need(group(owner), *actions))
    return needs


def pub(name: str, facts: Facts) -> list[Need]:
    """Send to a topic."""
    return of_owners(name, facts, Action.PUB)


def reads(name: str, facts: Facts) -> list[Need]:
    """Read a topic."""
    return of_owners(name, facts, Action.SUB)


def group_pub(name: str) -> Need:
    """Act as a group of producers, or as a sink."""
    return need(group(name), Action.PUB)


def group_sub(name: str) -> Need:
    """Act as a group of consumers."""
    return need(group(name), Action.SUB)


def sees_topic(name: str, facts: Facts) -> list[Need]:
    """Know of a topic, and how much is in it."""
    return of_owners(name, facts, Action.PUB, Action.SUB, Action.GET, Action.LIST)


def sees_group(name: str) -> Need:
    """Know of a group, and how far it is."""
    return need(group(name), Action.SUB, Action.GET, Action.LIST)
