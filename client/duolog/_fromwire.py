"""Converts nodes' answers into the SDK's descriptions: fields of one name have one meaning."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from duolog import _descriptions as descriptions
from duolog.wire import duolog_pb2 as wire

D = TypeVar("D")


def described(kind: type[D], reply: Message, /, **own: object) -> D:
    """A description, with the fields of a message that have its fields' names.

    own: fields that are another matter. Times lose the end `_ms` on the wire. What is repeated
    becomes a tuple, a map a dictionary.
    """
    found = {
        name: made(getattr(reply, at)) if made is not None else getattr(reply, at)
        for name, at, made in _read(cast(Any, kind), cast(Any, type(reply)), tuple(own))
    }
    return kind(**found, **own)


@cache
def _read(
    kind: type, message: type[Message], own: tuple[str, ...]
) -> list[tuple[str, str, Callable[[Any], object] | None]]:
    """How each field of a description is read: its name, the message's field, a conversion."""
    found: list[tuple[str, str, Callable[[Any], object] | None]] = []
    known = message.DESCRIPTOR.fields_by_name
    for field in fields(cast(Any, kind)):
        if field.name not in own:
            at = field.name if field.name in known else field.name.removesuffix("_ms")
            of = known[at]
            is_map = of.message_type is not None and of.message_type.GetOptions().map_entry
            found.append((field.name, at, dict if is_map else tuple if of.is_repeated else None))
    return found


def topic_of(reply: wire.TopicReply) -> descriptions.TopicDescription:
    """A topic."""
    return described(descriptions.TopicDescription, reply, stats=tuple(map(_stats, reply.stats)))


def trimmed_of(topic: str, reply: wire.TrimTopicReply) -> list[descriptions.TrimmedQueue]:
    """The queues of a topic that were trimmed in a replica group."""
    return [
        described(descriptions.TrimmedQueue, row, topic=topic, group=reply.group)
        for row in reply.queues
    ]


def _stats(row: wire.QueueStats) -> descriptions.QueueStats:
    return described(
        descriptions.QueueStats,
        row,
        last_store_time_ms=row.last_store_time or None,
        log_bytes=row.log_bytes if row.HasField("log_bytes") else None,
    )


def group_of(reply: wire.GroupDescription) -> descriptions.GroupDescription:
    """A consumer group, as one replica group knows it."""
    return described(
        descriptions.GroupDescription,
        reply,
        queues=tuple(map(_group_queue, reply.queues)),
        subscriptions=tuple(
            described(descriptions.GroupSubscription, row) for row in reply.subscriptions
        ),
        holds=tuple(described(descriptions.GroupHold, row) for row in reply.holds),
    )


def _group_queue(row: wire.GroupQueue) -> descriptions.GroupQueue:
    return described(
        descriptions.GroupQueue, row, committed=row.committed if row.committed >= 0 else None
    )


def offsets_of(reply: wire.OffsetsReply) -> list[descriptions.QueueOffset]:
    """Offsets of a consumer group."""
    return [described(descriptions.QueueOffset, row) for row in reply.offsets]


def states_of(replies: Iterable[wire.TrackReply]) -> Mapping[str, descriptions.TrackState]:
    """States of a message, by consumer group."""
    return {row.group: _state(row) for reply in replies for row in reply.groups}


def _state(row: wire.MessageTrack) -> descriptions.TrackState:
    return descriptions.TrackState(wire.TrackState.Name(row.state))


def way_of(message: wire.TrackedMessage) -> descriptions.TrackedMessage:
    """The trace of a message."""
    steps, groups = map(_step, message.steps), map(_group_track, message.groups)
    return described(descriptions.TrackedMessage, message, steps=tuple(steps), groups=tuple(groups))


def _step(step: wire.TrackStep) -> descriptions.TrackStep:
    kind = wire.TrackStepKind.Name(step.kind)
    return described(
        descriptions.TrackStep, step, kind=kind, deliver_time_ms=step.deliver_time or None
    )


def _group_track(row: wire.MessageTrack) -> descriptions.GroupTrack:
    copy = (row.copy_topic, row.copy_queue_id, row.copy_queue_offset)
    if not row.copy_topic:
        return descriptions.GroupTrack(row.group, _state(row), row.attempts)
    return descriptions.GroupTrack(row.group, _state(row), row.attempts, copy, row.copy_store_time)


def move_of(row: wire.QueueMove) -> descriptions.QueueMove:
    """The move of a queue."""
    return described(
        descriptions.QueueMove,
        row,
        name=_place(row.name),
        source=_place(row.source),
        to=_place(row.to) if row.HasField("to") else None,
        end=row.end if row.end >= 0 else None,
    )


def span_of(row: wire.QueueSpan) -> descriptions.QueueSpan:
    """A stretch of a queue that moved."""
    return described(
        descriptions.QueueSpan,
        row,
        name=_place(row.name),
        place=_place(row.place),
        end=row.end if row.end >= 0 else None,
        came_from=_place(row.came_from) if row.HasField("came_from") else None,
        following=_place(row.following) if row.HasField("following") else None,
    )


def _place(row: wire.QueuePlace) -> descriptions.QueuePlace:
    return descriptions.QueuePlace(row.group, row.queue_id)


def quota_of(reply: wire.QuotaReply) -> descriptions.Quota:
    """The limits of a subject."""
    return described(descriptions.Quota, reply)


def message_of(found: wire.FoundMessage, group: str) -> descriptions.FoundMessage:
    """A message that was looked up in a replica group."""
    return described(descriptions.FoundMessage, found, group=group)


def node_of(reply: wire.NodeStatusReply) -> descriptions.NodeStatus:
    """A node's status."""
    store = described(descriptions.LocalStore, reply.store)
    return described(
        descriptions.NodeStatus,
        reply,
        replication=_replication(reply.replication),
        store=store,
        durations=tuple(described(descriptions.Durations, row) for row in reply.durations),
    )


def _replication(status: wire.ReplicationStatus) -> descriptions.ReplicationStatus:
    return described(
        descriptions.ReplicationStatus,
        status,
        slaves=tuple(described(descriptions.SlaveStatus, row) for row in status.slaves),
        log_epochs=tuple(described(descriptions.LogEpoch, row) for row in status.log_epochs),
        masterships=tuple(map(_mastership, status.masterships)),
        rocketmq_slaves=tuple(
            described(descriptions.RocketmqSlaveStatus, row) for row in status.rocketmq_slaves
        ),
    )


def _mastership(row: wire.Mastership) -> descriptions.Mastership:
    return described(
        descriptions.Mastership, row, unled_ms=row.unled_ms if row.HasField("unled_ms") else None
    )


def cluster_of(reply: wire.ClusterStatusReply) -> descriptions.ClusterStatus:
    """A cluster's nodes."""
    return described(descriptions.ClusterStatus, reply, nodes=tuple(map(node_of, reply.nodes)))


def route_of(reply: wire.RouteReply) -> descriptions.Route:
    """The replica groups of a cluster."""
    return described(descriptions.Route, reply, groups=tuple(map(_group_route, reply.groups)))


def _group_route(group: wire.GroupRoute) -> descriptions.GroupRoute:
    replicas = tuple(described(descriptions.ReplicaRoute, replica) for replica in group.replicas)
    return described(descriptions.GroupRoute, group, replicas=replicas)
