"""Metrics that a node has once: its role, log, disk, recovery and connections."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duolog import __version__

from duolog_server.ha.failover import Role
from duolog_server.ha.mover import OVER, State
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.node.api.replicationstatus import replication_status
from duolog_server.node.broker import Broker
from duolog_server.node.core.rocketmqslave import RocketmqSlave
from duolog_server.node.core.traffic import CallTimes
from duolog_server.node.identity.quotas.quota import LIMITS_OF
from duolog_server.node.metrics.samples import Samples, Shown, truth
from duolog_server.node.net.port_server import PortServer
from duolog_server.store.directories import LOG, file_system_of, fullest

ROLES = ("master", "slave", "standing")
STOPS = ("clean", "fenced", "killed")
STORAGE = ("local", "disk")


class NodeFacts:
    """Reads them."""

    def __init__(self, broker: Broker, frames: PortServer[Any]) -> None:
        self._broker = broker
        self._frames = frames
        self._oldest = (-1, 0)  # offset of the oldest record, and its store time
        self._copying: tuple[object, int] = (None, 0)  # the node as a slave, and since when

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in a few steps. Reads memory, and a record when retention moved on."""
        node = samples.node
        node.add("duolog_build_info", 1, __version__)
        node.add("duolog_wall_time_seconds", self._broker.times.wall_ms() / 1000)
        self._replication(node)
        yield
        self._log(node)
        yield
        self._histograms(node)
        self._recovery(node)
        yield
        self._held(node)
        self._throttled(node)
        self._audited(node)
        yield

    def read_late(self, samples: Samples) -> None:
        """Read slow facts of the operating system; runs in a thread."""
        expiry = self._broker.certificates.first()
        if expiry is not None:
            until = expiry.until.timestamp()
            samples.node.add("duolog_certificate_expiry_timestamp_seconds", until)
        try:
            data = Path(self._broker.node.data)
            usage, log = fullest(data), file_system_of(data, LOG)
        except OSError:  # where a disk has failed, the other figures are wanted most
            return
        samples.node.add("duolog_disk_free_bytes", usage.free_bytes)
        samples.node.add("duolog_disk_used_bytes", usage.used_bytes)
        samples.node.add("rocketmq_brokeruntime_commitlogdir_capacity_total", log.total_bytes)
        samples.node.add("rocketmq_brokeruntime_commitlogdir_capacity_free", log.free_bytes)

    @property
    def _role(self) -> str:
        broker = self._broker
        if broker.replication.master is not None:
            return "master"
        standing = broker.failover is not None and broker.failover.machine.role is Role.STANDING
        return "standing" if standing else "slave"

    def _replication(self, node: Shown) -> None:
        broker, status = self._broker, replication_status(self._broker)
        for role in ROLES:
            node.add("duolog_role", role == self._role, role)
        node.add("duolog_epoch", status.epoch)
        required = broker.replication.options.in_sync_replicas
        if broker.failover is not None:
            required = broker.failover.machine.guarantee.in_sync_replicas
        node.add("duolog_in_sync_replicas_required", required)
        for outcome, state in (("moved", State.DONE), ("given_up", State.ENDED)):
            node.add("duolog_moves_total", broker.moves.ended.get(state, 0), outcome)
        machine = broker.replication.master or broker.replication.slave
        node.add("duolog_damaged_frames_total", machine.damaged_frames if machine else 0)
        if broker.replication.master is not None:
            slaves = {row.name for row in status.slaves if row.in_sync}
            members = set(status.sync_state_set) if broker.failover else slaves
            for name in sorted(members | {broker.node.name}):
                node.add("duolog_in_sync_replica", 1, name)
            node.add("duolog_in_sync_replicas", len(members | {broker.node.name}))
            # Not of refused ones, whose names may be those of others.
            for row in status.slaves:
                if row.state == ConnectionState.TRANSFER.value:
                    node.add("duolog_replication_lag_bytes", row.lag_bytes, row.name)
                    node.add("duolog_replication_lag_seconds", row.lag_ms / 1000, row.name)
            self._copies(node)
            self._moves(node)
        elif broker.replication.slave is not None:
            self._copy(node, broker.replication.slave)
        if broker.failover is not None:
            for name, since_ms in status.down.items():
                node.add("duolog_replica_down_since_seconds", since_ms / 1000, name)
            node.add("duolog_elections_total", status.elections)
            node.add("duolog_lease_margin_seconds", status.lease_left_ms / 1000)
            node.add("duolog_lease_seconds", status.lease_seconds)
            node.add("duolog_lease_renewal_seconds_max", status.renewal_ms_max / 1000)
            node.add("duolog_drained", broker.node.name in broker.failover.machine.view.drained)

    def _moves(self, node: Shown) -> None:
        """Queues that move from here."""
        broker, over = self._broker, {state.value for state in (*OVER, State.WITNESSING)}
        known = broker.moves.progress()
        moves = [one for one in known if one.state not in over]
        node.add("duolog_moves_running", len(moves))
        node.add("duolog_move_puts_waiting", broker.passing.status().get("passing_on", 0))
        done = [one for one in known if one.state == State.DONE.value]
        last = max(done, key=lambda one: one.began_ms, default=None)
        node.add("duolog_move_pause_seconds", last.pause_ms / 1000 if last is not None else 0)
        held_ms = max((one.pause_ms for one in moves), default=0.0)
        node.add("duolog_move_hold_seconds", held_ms / 1000)

    def _copies(self, node: Shown) -> None:
        """Brokers of RocketMQ that copy the log: by address, as their ports are new each time."""
        copies: dict[str, list[RocketmqSlave]] = {}
        for row in self._broker.dialects.rocketmq_slaves():
            if row.state is ConnectionState.TRANSFER:
                copies.setdefault(row.host, []).append(row)
        for host, rows in copies.items():
            node.add("duolog_rocketmq_slaves", len(rows), host)
            node.add("duolog_rocketmq_slave_lag_bytes", max(row.lag_bytes for row in rows), host)
            behind_ms = max(row.lag_ms for row in rows)
            node.add("duolog_rocketmq_slave_lag_seconds", behind_ms / 1000, host)

    def _copy(self, node: Shown, slave: Slave) -> None:
        """How far this node is behind. Before it followed a master, it does not know the bytes."""
        now, name = self._broker.times.mono_ms(), self._broker.node.name
        if self._copying[0] is not slave:
            self._copying = slave, now
        if slave.caught_up_ms:
            node.add("duolog_replication_lag_bytes", slave.lag_bytes, name)
            behind_ms = slave.lag_ms(now)
        else:
            behind_ms = now - self._copying[1]
        node.add("duolog_replication_lag_seconds", behind_ms / 1000, name)

    def _log(self, node: Shown) -> None:
        broker, status = self._broker, self._broker.log.status()
        node.add("duolog_log_min_offset", status.min_offset)
        node.add("duolog_log_max_offset", status.max_offset)
        node.add("duolog_log_confirm_offset", status.confirm_offset)
        node.add("duolog_log_flushed_offset", status.flushed_offset)
        node.add("duolog_damaged_ranges", status.corrupt_ranges)
        node.add("duolog_refused_records", status.refused_records)
        node.add("duolog_fenced", bool(status.fence_reason))
        node.add("duolog_disk_full", "DISK_FULL" in status.flags)
        node.add("duolog_frozen", bool(broker.freeze.reason))
        writable = not broker.admission.refuses()
        node.add("duolog_writable", writable)
        readable = broker.store.flags.readable and not status.fence_reason
        node.add("rocketmq_broker_permission", 4 * readable + 2 * writable)
        size = status.max_offset - status.min_offset
        node.add("rocketmq_storage_size", size, *STORAGE)
        behind = max(0, status.max_offset - status.flushed_offset)
        node.add("rocketmq_storage_flush_behind_bytes", behind, *STORAGE)
        behind = status.dispatch_behind_bytes
        node.add("rocketmq_storage_dispatch_behind_bytes", behind, *STORAGE)
        age = self._oldest_age_ms(status.min_offset)
        node.add("rocketmq_storage_message_reserve_time", age, *STORAGE)

    def _oldest_age_ms(self, min_offset: int) -> int:
        """The age of the oldest record, which is read once; 0 for an empty log."""
        store = self._broker.store
        if store.max_offset == min_offset:
            return 0
        if self._oldest[0] != min_offset:
            self._oldest = (min_offset, store.log.store_time_at(min_offset))
        stored = self._oldest[1]
        return max(0, self._broker.times.wall_ms() - stored) if stored > 0 else 0

    def _histograms(self, node: Shown) -> None:
        log = self._broker.log
        node.add("duolog_append_seconds", log.append_seconds.copy())
        traffic = self._broker.core.traffic
        node.add("duolog_append_wait_seconds", traffic.wait_seconds.copy())
        for status, flow in traffic.failures.table.items():
            node.add("duolog_append_failures_total", flow.messages, status)
        node.add("duolog_fsync_seconds", log.group_commit.sync_seconds.copy())
        node.add("duolog_dispatch_behind_seconds_max", log.counters.dispatch_behind_ms_max / 1000)

    def _recovery(self, node: Shown) -> None:
        recovered = self._broker.recovered
        assert recovered is not None, "metrics are served after recovery"
        node.add("duolog_recovery_seconds", self._broker.recovery_seconds)
        node.add("duolog_recovery_abnormal", recovered.abnormal)
        node.add("duolog_recovery_cut_bytes", recovered.bytes_cut)
        fenced = self._broker.store.fenced_before
        stopped = "fenced" if fenced else "killed" if recovered.abnormal else "clean"
        for how in STOPS:
            node.add("duolog_last_stop", how == stopped, how)

    def _throttled(self, node: Shown) -> None:
        throttle = self._broker.core.throttle
        node.add("duolog_quotas", throttle.quotas.count)
        for kind, limits in LIMITS_OF.items():
            for limit in sorted(limits):
                refused = throttle.refused[kind, limit]
                node.add("duolog_throttled_calls_total", refused, kind, limit)

    def _audited(self, node: Shown) -> None:
        audit = self._broker.audit
        for to, outlet in (audit.outlets if audit is not None else {}).items():
            node.add("duolog_audit_entries_total", outlet.written, to)
            node.add("duolog_audit_entries_lost_total", outlet.lost, to)

    def _held(self, node: Shown) -> None:
        broker = self._broker
        status = broker.status()
        node.add("duolog_queues", len(broker.store.queues.table))
        node.add("duolog_light_queues", broker.store.topic_queue_table.light_count)
        node.add("duolog_pop_leases", status["messages_leased"])
        node.add("duolog_waiting_polls", status["calls_waiting"])
        node.add("duolog_timers_waiting", status["timers_waiting"])
        if broker.replication.master is not None:
            node.add("duolog_topics_not_expiring", status.get("topics_not_expiring", 0))
        if broker.spans is not None:
            counts = broker.spans()
            node.add("duolog_spans_exported_total", counts["spans_exported"])
            node.add("duolog_spans_refused_total", counts["spans_refused"])
            node.add("duolog_spans_left_out_total", counts["spans_left_out"])
            node.add("duolog_span_batches_lost_total", counts["span_batches_lost"])
        node.add("duolog_frames_connections", self._frames.connections)
        node.add("duolog_frames_refused_connections_total", self._frames.refused)
        node.add("duolog_untaken_answers_bytes", broker.untaken.held_bytes)
        node.add("duolog_untaken_answers_refused_total", broker.untaken.refused)
        node.add("duolog_failed_logins_total", broker.lockout.failures)
        node.add("duolog_locked_out_logins_total", broker.lockout.refused)
        node.add("duolog_frames_buffered_bytes", self._frames.buffered_bytes)
        node.add("rocketmq_topic_number", len(broker.metadata.topics))
        node.add("rocketmq_consumer_group_number", len(broker.metadata.tables.groups))


# Metrics of the port of RocketMQ's remoting protocol, if a node has one.
PROTOCOL = "remoting"
Times = CallTimes[tuple[str, str, bool, str]]  # request, response code, long polling, result


@dataclass(frozen=True, slots=True)
class Ports:
    """Metrics of the clients' ports. remoting: None without that port.

    name_servers: counts the configured name servers, and those that do not have this node.
    """

    frames: PortServer[Any]
    remoting: "tuple[PortServer[Any], Times] | None" = None
    name_servers: Callable[[], Mapping[str, int]] = dict


class RemotingFacts:
    """Reads it."""

    def __init__(self, ports: Ports) -> None:
        self._remoting = ports.remoting
        self._name_servers = ports.name_servers

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of it, in a few steps."""
        if self._remoting is None:
            return
        port, times = self._remoting
        node = samples.node
        node.add("duolog_remoting_connections", port.connections)
        node.add("duolog_remoting_refused_connections_total", port.refused)
        node.add("duolog_remoting_buffered_bytes", port.buffered_bytes)
        for name, count in self._name_servers().items():
            node.add(f"duolog_{name}", count)
        yield
        for (request, code, waits, result), took in list(times.table.items()):
            labels = PROTOCOL, request, code, truth(waits), result
            samples.one(sum(took.counts), "rocketmq_rpc_latency", took, *labels)
            yield
