"""What each method of the native API asks for: its rule. A method without one is not served.

A topic's messages are read with Sub and written with Pub. A sink, and a group of producers, is a
Group. What concerns the whole cluster asks for the Cluster.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import DecodeError

from node.access.gate import FOR_SUPERS
from node.access.resources import Action, Need, Resource, cluster, group, topic
from store.metadata import is_reserved_topic

Needs = Iterable[Need]


class Facts(Protocol):
    """What rules know of the node."""

    @property
    def cluster(self) -> str:
        """The name of its cluster."""

    def has_group(self, name: str) -> bool:
        """Whether a consumer group exists."""

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists."""

    def check_knows(self) -> None:
        """Raise NotMaster if the node may lack the newest changes of users."""


class May(Protocol):
    """Whether the caller may do all of it."""

    def __call__(self, *needs: Need) -> bool:
        """Look at each of them."""


def _nothing(reply: Any, may: May, facts: Facts) -> None:
    """The reply tells nothing that its request did not ask for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a method.

    Attributes:
        needs: of a request.
            trim: takes from a reply what the caller may not see.
        again: whether the needs are looked at again before the reply, as the call may take long.
        delivers: of a streamed reply, which is only sent to a caller who has this right then.
    """

    needs: Callable[[Any, Facts], Needs]
    trim: Callable[[Any, May, Facts], None] = _nothing
    again: bool = False
    delivers: Callable[[Any, Facts], Needs] | None = None


def need(resource: Resource, *actions: Action) -> Need:
    """One of these actions on a resource."""
    return Need(resource, frozenset(actions))


def _of_topic(name: str, *actions: Action) -> Need:
    """Topics of the system hold what belongs to many users, and the users themselves."""
    return FOR_SUPERS if is_reserved_topic(name) else need(topic(name), *actions)


def pub(name: str) -> Need:
    """Send to a topic."""
    return _of_topic(name, Action.PUB)


def reads(name: str, facts: Facts) -> list[Need]:
    """Read a topic.

    %RETRY%a_b is that of a group a_b, or the one of a group a for a topic b: then it asks for both.
    """
    needs = [_of_topic(name, Action.SUB)]
    if name.startswith(RETRY_PREFIX):
        words = name.removeprefix(RETRY_PREFIX).split("_")
        for at in range(1, len(words)):
            owner, of = "_".join(words[:at]), "_".join(words[at:])
            if facts.has_group(owner) and facts.has_topic(of):
                needs.append(group_sub(owner))
    return needs


def group_pub(name: str) -> Need:
    """Act as a group of producers, or as a sink."""
    return need(group(name), Action.PUB)


def group_sub(name: str) -> Need:
    """Act as a group of consumers."""
    return need(group(name), Action.SUB)


def sees_topic(name: str) -> Need:
    """Know of a topic, and how much is in it."""
    return _of_topic(name, Action.PUB, Action.SUB, Action.GET, Action.LIST)


def sees_group(name: str) -> Need:
    """Know of a group, and how far it is."""
    return need(group(name), Action.SUB, Action.GET, Action.LIST)


def _all_read(topics: Iterable[str], facts: Facts) -> list[Need]:
    return [need for name in topics for need in reads(name, facts)]


def _of_cluster(*actions: Action) -> Callable[[Any, Facts], Needs]:
    return lambda request, facts: (need(cluster(facts.cluster), *actions),)


def _supers(request: Any, facts: Facts) -> Needs:
    return (FOR_SUPERS,)


def _anybody(request: Any, facts: Facts) -> Needs:
    return ()


# -- Messages ------------------------------------------------------------------------------------


def append_needs(request: wire.AppendRequest) -> Needs:
    """What a batch asks for."""
    if request.transaction_group:
        return pub(request.topic), group_pub(request.transaction_group)
    return (pub(request.topic),)


def _stage(request: wire.StageRequest, facts: Facts) -> Needs:
    try:
        batch = wire.AppendRequest.FromString(request.batch)
    except DecodeError as error:
        raise sdk.BadRequest(f"the staged batch cannot be read: {error}") from None
    return (group_pub(request.sink), *append_needs(batch))


def _subscribe(request: wire.SubscribeRequest, facts: Facts) -> Needs:
    needs = _all_read((queue.topic for queue in request.add), facts)
    return [*needs, group_sub(request.group)] if request.group else needs


def _find(request: wire.FindRequest, facts: Facts) -> Needs:
    return reads(request.topic, facts) if request.topic else ()


def _trim_found(reply: wire.FindReply, may: May, facts: Facts) -> None:
    kept = [found for found in reply.messages if may(*reads(found.topic, facts))]
    if len(kept) < len(reply.messages):
        del reply.messages[:]
        reply.messages.extend(kept)


# -- Groups --------------------------------------------------------------------------------------


def _heartbeat(request: wire.HeartbeatRequest, facts: Facts) -> Needs:
    return [group_sub(request.group), *_all_read(request.topics, facts)]


def _commit(request: wire.CommitRequest, facts: Facts) -> Needs:
    topics = dict.fromkeys(offset.topic for offset in request.offsets)
    return [group_sub(request.group), *_all_read(topics, facts)]


# -- Admin ---------------------------------------------------------------------------------------


def _list_topics(request: wire.ListTopicsRequest, facts: Facts) -> Needs:
    known = [sees_topic(name) for name in request.topics]
    return [*known, *map(pub, request.topics)] if request.create else known


def _trim_topics(reply: wire.ListTopicsReply, may: May, facts: Facts) -> None:
    kept = [row for row in reply.topics if may(sees_topic(row.topic))]
    if len(kept) < len(reply.topics):
        del reply.topics[:]
        reply.topics.extend(kept)


def _trim_groups(reply: wire.ListGroupsReply, may: May, facts: Facts) -> None:
    kept = [row for row in reply.groups if may(sees_group(row.group))]
    if len(kept) < len(reply.groups):
        del reply.groups[:]
        reply.groups.extend(kept)


def _put_group(request: wire.PutGroupRequest, facts: Facts) -> Needs:
    action = Action.UPDATE if facts.has_group(request.group) else Action.CREATE
    needs = [need(group(request.group), action)]
    return [*needs, *reads(request.lite_topic, facts)] if request.lite_topic else needs


def _trim_track(reply: wire.TrackReply, may: May, facts: Facts) -> None:
    kept = [row for row in reply.groups if may(sees_group(row.group))]
    if len(kept) < len(reply.groups):
        del reply.groups[:]
        reply.groups.extend(kept)


def _topic_action(action: Action) -> Callable[[Any, Facts], Needs]:
    return lambda request, facts: (need(topic(request.topic), action),)


_LOOKS = _of_cluster(Action.GET)
_RULES = {
    "Messages/Append": Rule(lambda request, facts: append_needs(request)),
    "Messages/Pull": Rule(lambda request, facts: reads(request.topic, facts), again=True),
    "Messages/Subscribe": Rule(_subscribe, delivers=lambda batch, facts: reads(batch.topic, facts)),
    "Messages/Find": Rule(_find, trim=_trim_found),
    "Messages/Stage": Rule(_stage),
    "Messages/Publish": Rule(lambda request, facts: (group_pub(request.sink),)),
    "Messages/SinkState": Rule(
        lambda request, facts: (need(group(request.sink), Action.PUB, Action.GET),)
    ),
    "Messages/EndTransactions": Rule(lambda request, facts: (group_pub(request.group),)),
    "Messages/TransactionChecks": Rule(
        lambda request, facts: (group_pub(request.group),),
        delivers=lambda check, facts: (pub(check.topic),),
    ),
    "Groups/Heartbeat": Rule(_heartbeat),
    "Groups/Leave": Rule(lambda request, facts: (group_sub(request.group),)),
    "Groups/Commit": Rule(_commit),
    "Groups/Offsets": Rule(lambda request, facts: (sees_group(request.group),)),
    "Groups/OffsetAtTime": Rule(lambda request, facts: (sees_topic(request.topic),)),
    "Groups/OffsetAtSize": Rule(lambda request, facts: (sees_topic(request.topic),)),
    "Groups/SendBack": Rule(
        lambda request, facts: [group_sub(request.group), *reads(request.topic, facts)]
    ),
    "Admin/CreateTopic": Rule(_topic_action(Action.CREATE)),
    "Admin/AlterTopic": Rule(_topic_action(Action.UPDATE)),
    "Admin/DeleteTopic": Rule(_topic_action(Action.DELETE)),
    "Admin/ListTopics": Rule(_list_topics, trim=_trim_topics),
    "Admin/ListGroups": Rule(_anybody, trim=_trim_groups),
    "Admin/DescribeGroup": Rule(lambda request, facts: (sees_group(request.group),)),
    "Admin/ResetGroup": Rule(
        lambda request, facts: (
            need(group(request.group), Action.UPDATE),
            sees_topic(request.topic),
        )
    ),
    "Admin/PutGroup": Rule(_put_group),
    "Admin/DeleteGroup": Rule(lambda request, facts: (need(group(request.group), Action.DELETE),)),
    "Admin/Track": Rule(lambda request, facts: (sees_topic(request.topic),), trim=_trim_track),
    "Admin/NodeStatus": Rule(_LOOKS),
    "Admin/ClusterStatus": Rule(_LOOKS),
    "Admin/Route": Rule(_anybody),
    "Admin/Failover": Rule(_of_cluster(Action.UPDATE)),
    "Admin/Drain": Rule(_of_cluster(Action.UPDATE)),
    "Admin/ElectUnclean": Rule(_of_cluster(Action.UPDATE)),
    "Access/WhoAmI": Rule(_anybody),
    "Access/PutUser": Rule(_supers),
    "Access/DeleteUser": Rule(_supers),
    "Access/ListUsers": Rule(_supers),
    "Access/PutRights": Rule(_supers),
    "Access/GetRights": Rule(_supers),
    "Access/TestAccess": Rule(_anybody),  # of oneself; of others it is for super users
}
RULES = {f"/duolog.v1.{method}": rule for method, rule in _RULES.items()}

__all__ = ["RULES", "Facts", "May", "Rule", "append_needs"]
