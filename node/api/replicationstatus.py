"""Replication in a status: this node's own state, and its slaves as nodes of a cluster."""

from collections.abc import Mapping

from duolog.wire import duolog_pb2 as wire

from duolog_server.ha.failover import Role
from duolog_server.ha.groupstate import Registration, View
from duolog_server.node.broker import Broker
from duolog_server.node.election.failover import FailoverService

LOG_EPOCHS_MAX = 16  # reported of a log


def replication_status(broker: Broker) -> wire.ReplicationStatus:
    """What the node's master or slave machine knows."""
    status = wire.ReplicationStatus(group=broker.group)
    master, slave, now = broker.replication.master, broker.replication.slave, broker.times.mono_ms()
    if master is not None:
        status.epoch = master.epoch
        status.push2slave_max_offset = master.push2slave_max_offset
        status.in_sync_replicas = master.in_sync()
        status.violations = master.violations
        closed = broker.admission.closed()
        if closed is not None:
            status.refusal = closed.reason
        for row in master.rows(now):
            status.slaves.add(
                name=row.node,
                endpoint=row.endpoint,
                state=row.state.value,
                sent_offset=row.sent,
                received_offset=row.received,
                durable_offset=row.durable,
                lag_bytes=row.lag_bytes,
                lag_ms=row.lag_ms,
                in_sync=row.in_sync,
                reason=row.reason,
            )
    if slave is not None:
        status.epoch = slave.epoch or slave.history.last_epoch
        status.state = slave.state.value
        status.reason = slave.reason
        status.master = slave.master_endpoint
        status.master_offset = slave.master_end
        status.lag_bytes = slave.lag_bytes
        status.lag_ms = slave.lag_ms(now)
        status.truncated_bytes = slave.truncated_bytes
        status.resets = slave.resets
    for follower in broker.dialects.rocketmq_slaves():
        status.rocketmq_slaves.add(
            address=follower.address,
            state=follower.state.value,
            since_ms=follower.since_ms,
            received_offset=follower.received,
            lag_bytes=follower.lag_bytes,
            lag_ms=follower.lag_ms,
            reason=follower.reason,
        )
    role = master or slave
    if role is not None:
        confirmed = broker.log.confirm_offset
        for entry in role.history.entries[:LOG_EPOCHS_MAX]:
            if entry.start < confirmed:
                status.log_epochs.add(epoch=entry.epoch, start=entry.start, nonce=entry.nonce)
        for led in broker.replication.newest_masterships():
            status.masterships.add(
                epoch=led.epoch,
                master=led.master,
                begin_ms=led.began_ms,
                cause=led.began.cause or "",
                unled_ms=led.began.unled_ms,
            )
    if broker.failover is not None:
        _add_election(status, broker.failover, now)
        status.lease_seconds = broker.failover.lease_seconds
        status.lease_asked_seconds = broker.failover.lease_asked_seconds
        status.renewal_ms_max = broker.failover.renewal_ms_max
    return status


def _add_election(status: wire.ReplicationStatus, failover: FailoverService, now: int) -> None:
    """Add what a node that can be elected knows about its group."""
    machine = failover.machine
    status.role = machine.role.value
    status.elections = machine.elections
    status.lease_left_ms = max(0, machine.deadline_ms - now)
    # Without a master, the machine knows the reason; how the last stream ended is irrelevant.
    standing = machine.role is Role.STANDING
    reason = machine.reason if standing else status.reason or machine.reason
    if standing or (status.reason and machine.role is Role.FOLLOWING):
        reason = failover.unread_reason or reason
    status.reason = "; ".join(filter(None, (machine.notice, reason)))
    status.epoch = max(status.epoch, machine.last_epoch)
    state, guarantee = machine.view.state, machine.view.guarantee
    if guarantee is not None:
        status.guarantee.update(guarantee.settings())
    status.unreachable.update({name: str(why) for name, why in machine.unreachable.items()})
    status.down.update(machine.view.down)
    status.registry_silent.update(failover.registry_silent)
    status.barred.extend(machine.barred)
    if state is None:
        return
    status.sync_state_set.extend(sorted(replica.node for replica in state.sync_state_set))
    status.discarded.extend(
        f"epoch {row.epoch}: {row.node} led from {row.from_offset} on; given up: "
        f"{', '.join(row.given_up) or 'nobody'}"
        for row in state.discarded
    )


def node_of(
    row: wire.SlaveStatus, master: wire.NodeStatusReply, registered: Mapping[str, Registration]
) -> wire.NodeStatusReply:
    """A slave as its master sees it, in the form of a node status.

    One that was refused has said nothing of itself: it is to be asked where it is registered.
    """
    known = registered.get(row.name) if not row.endpoint else None
    return wire.NodeStatusReply(
        name=row.name,
        role="SLAVE",
        listen=row.endpoint if known is None else known.endpoint,
        stale=known is not None,
        max_offset=row.received_offset,
        flushed_offset=row.durable_offset,
        confirm_offset=min(row.received_offset, master.confirm_offset),
        replication=wire.ReplicationStatus(
            group=master.replication.group,
            epoch=master.replication.epoch,
            state=row.state,
            reason=row.reason,
            master=master.listen,
            master_offset=master.max_offset,
            lag_bytes=row.lag_bytes,
            lag_ms=row.lag_ms,
        ),
    )


def group_route(name: str, view: View) -> wire.GroupRoute:
    """A group of the cluster, as the registry shows it."""
    state, master = view.state, view.master
    epoch = state.epoch if state is not None else 0
    route = wire.GroupRoute(group=name, epoch=epoch, retiring=view.retiring)
    if master is not None:
        route.master, route.master_endpoint = master.replica.node, master.endpoint
    members = state.sync_state_set if state is not None else frozenset()
    for node in sorted(view.nodes):
        found = view.replicas.get(node)
        route.replicas.add(
            node=node,
            endpoint=found.endpoint if found is not None else "",
            in_sync=any(replica.node == node for replica in members),
            drained=node in view.drained,
        )
    return route


def add_routed(reply: wire.ClusterStatusReply, routes: Mapping[str, View]) -> None:
    """Add the nodes to a cluster status that are known from the registry only."""
    known = {(node.replication.group, node.name) for node in reply.nodes}
    for name, view in routes.items():
        route, down = group_route(name, view), view.down
        for row in route.replicas:
            if (name, row.node) in known:
                continue
            replication = wire.ReplicationStatus(group=name, epoch=route.epoch)
            role, listen = "MASTER" if row.node == route.master else "SLAVE", row.endpoint
            if row.node in down:
                role = replication.state = "DOWN"
                replication.down[row.node] = down[row.node]
                last = view.members.get(row.node)
                listen = last.last.endpoint if last is not None else ""
            reply.nodes.add(
                name=row.node, role=role, listen=listen, stale=True, replication=replication
            )
