"""What each method of the native API asks for: its rule. A method without one is not served."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.rules import (
    NO_SUCH_ID,
    Facts,
    May,
    Needs,
    Rule,
    group_pub,
    group_sub,
    need,
    of_owners,
    pub,
    reads,
    sees_group,
    sees_topic,
)
from duolog_server.node.identity.rights.resources import FOR_SUPERS, Action, Need, cluster, group
from duolog_server.node.service.groups import delete_needs, put_needs, reset_needs

ROWS_AT_ONCE = 200  # that are copied into a reply


def _consumes(group: str, topics: Iterable[str], facts: Facts) -> Iterator[Need]:
    """Read topics as a group. One by one: they may be very many."""
    yield group_sub(group)
    for name in topics:
        yield from reads(name, facts)


async def _keep(rows: Any, wanted: Callable[[Any], bool]) -> None:
    """Remove the other rows of a reply."""
    slices = Slices()
    kept = [row async for row in slices.each(rows) if wanted(row)]
    if len(kept) < len(rows):
        del rows[:]
        async for part in slices.parts(kept, ROWS_AT_ONCE):
            rows.extend(part)


def _of_cluster(*actions: Action) -> Callable[[Any, Facts], Needs]:
    return lambda request, facts: (need(cluster(facts.cluster), *actions),)


def _supers(request: Any, facts: Facts) -> Needs:
    return (FOR_SUPERS,)


def _anybody(request: Any, facts: Facts) -> Needs:
    return ()


# -- Messages ------------------------------------------------------------------------------------


def append_needs(request: wire.AppendRequest, facts: Facts) -> list[Need]:
    """What a batch asks for."""
    needs = pub(request.topic, facts)
    if request.transaction_group:
        needs.append(group_pub(request.transaction_group))
    if request.HasField("copied_from"):
        needs += reads(request.copied_from.topic, facts)
    return needs


def _stage(request: wire.StageRequest, facts: Facts) -> Needs:
    try:
        batch = wire.AppendRequest.FromString(request.batch)
    except DecodeError as error:
        raise sdk.BadRequest(f"the staged batch cannot be read: {error}") from None
    return (group_pub(request.sink), *append_needs(batch, facts))


def _subscribe(request: wire.SubscribeRequest, facts: Facts) -> Needs:
    for queue in request.add:
        yield from reads(queue.topic, facts)
    if request.group:
        yield group_sub(request.group)


def _find(request: wire.FindRequest, facts: Facts) -> Needs:
    return reads(request.topic, facts) if request.topic else ()


async def _trim_found(reply: wire.FindReply, may: May, facts: Facts) -> None:
    """Raises NoSuchMessage for the id of a message that the caller may not read."""
    found = len(reply.messages)
    await _keep(reply.messages, lambda row: may(*reads(row.topic, facts)))
    if found and not reply.messages:
        raise sdk.NoSuchMessage(NO_SUCH_ID)


# -- Groups --------------------------------------------------------------------------------------


def _heartbeat(request: wire.HeartbeatRequest, facts: Facts) -> Needs:
    return _consumes(request.group, request.topics, facts)


def _commit(request: wire.CommitRequest, facts: Facts) -> Needs:
    topics = dict.fromkeys(offset.topic for offset in request.offsets)
    return _consumes(request.group, topics, facts)


def _offsets(request: wire.OffsetsRequest, facts: Facts) -> Needs:
    if not request.begin:
        return (sees_group(request.group),)
    topics = dict.fromkeys(ref.topic for ref in request.queues)
    return _consumes(request.group, topics, facts)


# -- Admin ---------------------------------------------------------------------------------------


def _list_topics(request: wire.ListTopicsRequest, facts: Facts) -> Needs:
    for name in request.topics:  # one by one: they may be very many
        yield from sees_topic(name, facts)
        if request.create:
            yield from pub(name, facts)


async def _trim_topics(reply: wire.ListTopicsReply, may: May, facts: Facts) -> None:
    await _keep(reply.topics, lambda row: may(*sees_topic(row.topic, facts)))


async def _trim_groups(
    reply: wire.ListGroupsReply | wire.TrackReply | wire.TrackedMessage, may: May, facts: Facts
) -> None:
    await _keep(reply.groups, lambda row: may(sees_group(row.group)))


def _track(request: wire.TrackRequest, facts: Facts) -> Needs:
    """By a key, it tells who sent the messages."""
    return reads(request.topic, facts) if request.key else sees_topic(request.topic, facts)


async def _trim_track(reply: wire.TrackReply, may: May, facts: Facts) -> None:
    await _trim_groups(reply, may, facts)
    for message in reply.messages:
        await _trim_groups(message, may, facts)


def _topic_action(action: Action) -> Callable[[Any, Facts], Needs]:
    return lambda request, facts: of_owners(request.topic, facts, action)


def _list_of_topic(
    request: wire.ListDelayedRequest | wire.ListHalvesRequest | wire.ListMovesRequest, facts: Facts
) -> Needs:
    return sees_topic(request.topic, facts) if request.topic else ()


async def _trim_waiting(rows: Any, may: May, facts: Facts) -> bool:
    """Keys are of messages: for those who read or write the topic. Returns whether the caller may
    be answered for all topics together.
    """
    await _keep(rows, lambda row: may(*sees_topic(row.topic, facts)))
    async for row in Slices().each(rows):
        if not (may(*reads(row.topic, facts)) or may(*pub(row.topic, facts))):
            for field in ("unique_key", "keys", "tags"):
                row.ClearField(field)
    return may(need(cluster(facts.cluster), Action.GET))


async def _trim_delayed(reply: wire.ListDelayedReply, may: May, facts: Facts) -> None:
    if not await _trim_waiting(reply.messages, may, facts):
        reply.ClearField("waiting")
        reply.ClearField("first_due_time")
        reply.ClearField("last_due_time")
        reply.ClearField("examined")


async def _trim_halves(reply: wire.ListHalvesReply, may: May, facts: Facts) -> None:
    if not await _trim_waiting(reply.messages, may, facts):
        reply.ClearField("waiting")


async def _trim_moves(reply: wire.ListMovesReply, may: May, facts: Facts) -> None:
    await _keep(reply.moves, lambda row: may(*sees_topic(row.topic, facts)))
    await _keep(reply.spans, lambda row: may(*sees_topic(row.topic, facts)))


SEES_CLUSTER = Rule(_of_cluster(Action.GET))
_RULES = {
    "Messages/Append": Rule(append_needs, each_answered=True),
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
        delivers=lambda check, facts: pub(check.topic, facts),
    ),
    "Groups/Heartbeat": Rule(_heartbeat),
    "Groups/Leave": Rule(lambda request, facts: (group_sub(request.group),)),
    "Groups/Commit": Rule(_commit),
    "Groups/Offsets": Rule(_offsets),
    "Groups/OffsetAtTime": Rule(lambda request, facts: sees_topic(request.topic, facts)),
    "Groups/OffsetAtSize": Rule(lambda request, facts: sees_topic(request.topic, facts)),
    "Groups/SendBack": Rule(
        lambda request, facts: [group_sub(request.group), *reads(request.topic, facts)]
    ),
    "Admin/CreateTopic": Rule(_topic_action(Action.CREATE)),
    "Admin/AlterTopic": Rule(_topic_action(Action.UPDATE)),
    "Admin/DeleteTopic": Rule(_topic_action(Action.DELETE)),
    "Admin/TrimTopic": Rule(_topic_action(Action.DELETE)),
    "Admin/ListTopics": Rule(_list_topics, trim=_trim_topics),
    "Admin/ListGroups": Rule(_anybody, trim=_trim_groups),
    "Admin/DescribeGroup": Rule(lambda request, facts: (sees_group(request.group),)),
    "Admin/ResetGroup": Rule(lambda asked, facts: reset_needs(asked.group, asked.topic, facts)),
    "Admin/PutGroup": Rule(lambda asked, facts: put_needs(asked.group, asked.lite_topic, facts)),
    "Admin/DeleteGroup": Rule(lambda asked, facts: delete_needs(asked.group)),
    "Admin/Track": Rule(_track, trim=_trim_track),
    "Admin/NodeStatus": SEES_CLUSTER,
    "Admin/ClusterStatus": SEES_CLUSTER,
    "Admin/Route": Rule(_anybody),
    "Admin/Failover": Rule(_of_cluster(Action.UPDATE)),
    "Admin/Drain": Rule(_of_cluster(Action.UPDATE)),
    "Admin/Forget": Rule(_of_cluster(Action.UPDATE)),
    "Admin/Freeze": Rule(_of_cluster(Action.UPDATE)),
    "Admin/SetGuarantee": Rule(_of_cluster(Action.UPDATE)),
    "Admin/ElectUnclean": Rule(_of_cluster(Action.UPDATE)),
    "Admin/PutQuota": Rule(_supers),
    "Admin/DeleteQuota": Rule(_supers),
    "Admin/ListQuotas": SEES_CLUSTER,
    "Admin/ListDelayed": Rule(_list_of_topic, trim=_trim_delayed),
    "Admin/RecallDelayed": Rule(lambda request, facts: pub(request.topic, facts)),
    "Admin/ListHalves": Rule(_list_of_topic, trim=_trim_halves),
    "Admin/DecideHalf": Rule(lambda request, facts: (group_pub(request.group),)),
    "Admin/MoveQueue": Rule(_of_cluster(Action.UPDATE)),
    "Admin/AbortMove": Rule(_of_cluster(Action.UPDATE)),
    "Admin/RetireGroup": Rule(_of_cluster(Action.UPDATE)),
    "Admin/ForgetGroup": Rule(_of_cluster(Action.UPDATE)),
    "Admin/ListMoves": Rule(_list_of_topic, trim=_trim_moves),
    "Access/WhoAmI": Rule(_anybody),
    "Access/PutUser": Rule(_supers),
    "Access/DeleteUser": Rule(_supers),
    "Access/ListUsers": Rule(_supers),
    "Access/PutRights": Rule(_supers),
    "Access/GetRights": Rule(_supers),
    "Access/TestAccess": Rule(_anybody),  # of oneself; of others it is for super users
    "Access/IssueToken": Rule(_anybody),  # the same
}
RULES = {f"/duolog.v1.{method}": rule for method, rule in _RULES.items()}


def needs_of(call: wire.PlannedCall, facts: Facts) -> Needs:
    """What a call asks for that somebody thinks of making. Raises BadRequest."""
    rule = _RULES.get(call.method)
    if rule is None:
        raise sdk.BadRequest(f"there is no method {call.method!r}")
    service, _, method = call.method.partition("/")
    described = wire.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    try:
        request = GetMessageClass(described.input_type).FromString(call.request)
    except DecodeError as error:
        raise sdk.BadRequest(f"the request of {call.method} cannot be read: {error}") from None
    return rule.needs(request, facts)
