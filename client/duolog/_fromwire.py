"""Converts nodes' answers into the SDK's descriptions."""

from collections.abc import Iterable, Mapping

from duolog._descriptions import (
    ClusterStatus,
    FoundMessage,
    GroupDescription,
    GroupQueue,
    GroupRoute,
    GroupTrack,
    LocalStore,
    LogEpoch,
    Mastership,
    NodeStatus,
    QueueOffset,
    QueueStats,
    Quota,
    ReplicaRoute,
    ReplicationStatus,
    RocketmqSlaveStatus,
    Route,
    SlaveStatus,
    TopicDescription,
    TrackedMessage,
    TrackState,
    TrackStep,
)
from duolog.wire import duolog_pb2 as wire


def topic_of(reply: wire.TopicReply) -> TopicDescription:
    """A topic."""
    return TopicDescription(
        topic=reply.topic,
        group=reply.group,
        queues=reply.queues,
        perm=reply.perm,
        stats=tuple(
            QueueStats(
                queue_id=row.queue_id,
                min_offset=row.min_offset,
                max_offset=row.max_offset,
                last_store_time_ms=row.last_store_time or None,
                log_bytes=row.log_bytes if row.HasField("log_bytes") else None,
            )
            for row in reply.stats
        ),
        message_type=reply.message_type,
        lite_ttl_minutes=reply.lite_ttl_minutes,
        owner=reply.owner,
        retention_hours=reply.retention_hours,
    )


def group_of(reply: wire.GroupDescription) -> GroupDescription:
    """A consumer group, as one replica group knows it."""
    return GroupDescription(
        group=reply.group,
        members=reply.members,
        queues=tuple(map(_group_queue, reply.queues)),
        orderly=reply.orderly,
        retry_times=reply.retry_times,
        lite_topic=reply.lite_topic,
        lite_exclusive=reply.lite_exclusive,
        clients=reply.clients,
        client_topics=tuple(reply.client_topics),
    )


def _group_queue(row: wire.GroupQueue) -> GroupQueue:
    return GroupQueue(
        topic=row.topic,
        replica_group=row.replica_group,
        queue_id=row.queue_id,
        committed=row.committed if row.committed >= 0 else None,
        min_offset=row.min_offset,
        max_offset=row.max_offset,
        lag_messages=row.lag_messages,
        lag_ms=row.lag_ms,
        member_id=row.member_id,
        not_polled=row.not_polled,
    )


def offsets_of(reply: wire.OffsetsReply) -> list[QueueOffset]:
    """Offsets of a consumer group."""
    return [QueueOffset(row.topic, row.queue_id, row.offset) for row in reply.offsets]


def states_of(replies: Iterable[wire.TrackReply]) -> Mapping[str, TrackState]:
    """States of a message, by consumer group."""
    return {
        row.group: TrackState(wire.TrackState.Name(row.state))
        for reply in replies
        for row in reply.groups
    }


def way_of(message: wire.TrackedMessage) -> TrackedMessage:
    """The trace of a message."""
    return TrackedMessage(
        unique_key=message.unique_key,
        born_time_ms=message.born_time,
        born_host=message.born_host,
        traceparent=message.traceparent,
        steps=tuple(
            TrackStep(
                kind=wire.TrackStepKind.Name(step.kind),
                topic=step.topic,
                queue_id=step.queue_id,
                queue_offset=step.queue_offset,
                physical_offset=step.physical_offset,
                store_time_ms=step.store_time,
                deliver_time_ms=step.deliver_time or None,
            )
            for step in message.steps
        ),
        groups=tuple(map(_group_track, message.groups)),
    )


def _group_track(row: wire.MessageTrack) -> GroupTrack:
    copy = (row.copy_topic, row.copy_queue_id, row.copy_queue_offset)
    state = TrackState(wire.TrackState.Name(row.state))
    if not row.copy_topic:
        return GroupTrack(row.group, state, row.attempts)
    return GroupTrack(row.group, state, row.attempts, copy, row.copy_store_time)


def quota_of(reply: wire.QuotaReply) -> Quota:
    """The limits of a subject."""
    return Quota(
        reply.subject,
        reply.bytes_in,
        reply.messages_in,
        reply.bytes_out,
        reply.messages_out,
        reply.connections,
        reply.topics,
        reply.burst_ms,
    )


def message_of(found: wire.FoundMessage, group: str) -> FoundMessage:
    """A message that was looked up in a replica group."""
    return FoundMessage(
        topic=found.topic,
        queue_id=found.queue_id,
        queue_offset=found.queue_offset,
        physical_offset=found.physical_offset,
        store_time_ms=found.store_time,
        born_time_ms=found.born_time,
        flag=found.flag,
        sysflag=found.sysflag,
        reconsume_times=found.reconsume_times,
        message_id=found.message_id,
        born_host=found.born_host,
        body=found.body,
        properties=dict(found.properties),
        group=group,
    )


def node_of(reply: wire.NodeStatusReply) -> NodeStatus:
    """A node's status."""
    return NodeStatus(
        name=reply.name,
        role=reply.role,
        version=reply.version,
        listen=reply.listen,
        data=reply.data,
        start_time_ms=reply.start_time,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        flushed_offset=reply.flushed_offset,
        confirm_offset=reply.confirm_offset,
        dispatch_behind_bytes=reply.dispatch_behind_bytes,
        dispatch_behind_ms_max=reply.dispatch_behind_ms_max,
        disk_used_ratio=reply.disk_used_ratio,
        disk_directory=reply.disk_directory,
        flags=tuple(reply.flags),
        fence_reason=reply.fence_reason,
        recovered_abnormally=reply.recovered_abnormally,
        recovered_from=reply.recovered_from,
        recovered_end=reply.recovered_end,
        messages_in=reply.messages_in,
        messages_out=reply.messages_out,
        bytes_in=reply.bytes_in,
        bytes_out=reply.bytes_out,
        flushes=reply.flushes,
        flushed_messages=reply.flushed_messages,
        corrupt_ranges=reply.corrupt_ranges,
        refused_records=reply.refused_records,
        replication=_replication(reply.replication),
        store=LocalStore(
            boot_id=reply.store.boot_id,
            path=reply.store.path,
            device=reply.store.device,
            inode=reply.store.inode,
        ),
        stale=reply.stale,
        parts=dict(reply.parts),
        wall_ms=reply.wall_ms,
        certificate=reply.certificate,
        certificate_until_ms=reply.certificate_until_ms,
        cluster=reply.cluster,
        settings=dict(reply.settings),
    )


def _replication(status: wire.ReplicationStatus) -> ReplicationStatus:
    return ReplicationStatus(
        group=status.group,
        epoch=status.epoch,
        push2slave_max_offset=status.push2slave_max_offset,
        in_sync_replicas=status.in_sync_replicas,
        violations=status.violations,
        slaves=tuple(map(_slave, status.slaves)),
        state=status.state,
        reason=status.reason,
        master=status.master,
        master_offset=status.master_offset,
        lag_bytes=status.lag_bytes,
        lag_ms=status.lag_ms,
        truncated_bytes=status.truncated_bytes,
        resets=status.resets,
        role=status.role,
        sync_state_set=tuple(status.sync_state_set),
        elections=status.elections,
        lease_left_ms=status.lease_left_ms,
        lease_seconds=status.lease_seconds,
        lease_asked_seconds=status.lease_asked_seconds,
        renewal_ms_max=status.renewal_ms_max,
        discarded=tuple(status.discarded),
        log_epochs=tuple(LogEpoch(row.epoch, row.start, row.nonce) for row in status.log_epochs),
        masterships=tuple(
            Mastership(
                row.epoch,
                row.master,
                row.begin_ms,
                row.cause,
                row.unled_ms if row.HasField("unled_ms") else None,
            )
            for row in status.masterships
        ),
        refusal=status.refusal,
        rocketmq_slaves=tuple(
            RocketmqSlaveStatus(
                address=row.address,
                state=row.state,
                since_ms=row.since_ms,
                received_offset=row.received_offset,
                lag_bytes=row.lag_bytes,
                lag_ms=row.lag_ms,
                reason=row.reason,
            )
            for row in status.rocketmq_slaves
        ),
        guarantee=dict(status.guarantee),
        unreachable=dict(status.unreachable),
    )


def _slave(row: wire.SlaveStatus) -> SlaveStatus:
    return SlaveStatus(
        name=row.name,
        endpoint=row.endpoint,
        state=row.state,
        sent_offset=row.sent_offset,
        received_offset=row.received_offset,
        durable_offset=row.durable_offset,
        lag_bytes=row.lag_bytes,
        lag_ms=row.lag_ms,
        in_sync=row.in_sync,
        reason=row.reason,
    )


def cluster_of(reply: wire.ClusterStatusReply) -> ClusterStatus:
    """A cluster's nodes."""
    return ClusterStatus(cluster=reply.cluster, nodes=tuple(map(node_of, reply.nodes)))


def route_of(reply: wire.RouteReply) -> Route:
    """The replica groups of a cluster."""
    return Route(
        cluster=reply.cluster,
        groups=tuple(
            GroupRoute(
                group=group.group,
                epoch=group.epoch,
                master=group.master,
                master_endpoint=group.master_endpoint,
                replicas=tuple(
                    ReplicaRoute(
                        node=replica.node,
                        endpoint=replica.endpoint,
                        in_sync=replica.in_sync,
                        drained=replica.drained,
                    )
                    for replica in group.replicas
                ),
            )
            for group in reply.groups
        ),
        group=reply.group,
        frames_port=reply.frames_port,
        frames_key=reply.frames_key,
    )
