"""Answers to administration: topics, consumer groups, messages found, nodes, the cluster.

Values only; `_fromwire.py` makes them from what the nodes send. Times named `..._time_ms` are
milliseconds since 1970. A `queue offset` is a message's index in its queue, a `log offset` a byte
position in a node's commit log; a range ends before its maximum. `group` is a replica group, unless
a consumer group is described.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue of a topic.

    Attributes:
        queue_id: queue in the topic.
        min_offset: queue offset of the oldest message that is kept.
        max_offset: queue offset that the next message gets.
        last_store_time_ms: when the newest message was stored; None: not known, or none.
        log_bytes: that its messages take in the log; None: not asked for (`sizes`), or not counted
            yet. A node counts some millions in each call, and continues in the next one.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time_ms: int | None = None
    log_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, as one replica group holds it.

    Attributes:
        topic: its name.
        group: the replica group.
        queues: how many it has in this group.
        perm: READ 4, WRITE 2.
        stats: its queues, then those of other replica groups that moved here.
        message_type: what RocketMQ's clients may send to it; empty: everything but LITE.
        lite_ttl_minutes: a lite topic without messages for so long expires; 0: never.
        owner: the user who created it; empty where there were no users.
        retention_hours: messages are kept for so long, or less where the disk fills; 0: not known.
            Those of the topic, if it has a retention; else those of the log, whose segments are
            deleted so long after their last change.
        topic_retention_hours: as the topic was given it; 0: as long as the log.
        retention_bytes: the newest messages of the topic in this group are kept, of so many bytes
            in the log; 0: all that the log has.
    """

    topic: str
    group: str
    queues: int
    perm: int = 6
    stats: tuple[QueueStats, ...] = ()
    message_type: str = ""
    lite_ttl_minutes: int = 0
    owner: str = ""
    retention_hours: int = 0
    topic_retention_hours: int = 0
    retention_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TrimmedQueue:
    """A queue whose oldest messages were hidden, or would be.

    Attributes:
        topic: topic of the queue.
        group: the replica group that holds it.
        queue_id: queue in the topic.
        first: its minimum offset before.
        min_offset: its minimum offset after that.
    """

    topic: str
    group: str
    queue_id: int
    first: int
    min_offset: int


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A queue as a consumer group reads it.

    Attributes:
        topic: topic of the queue.
        replica_group: the replica group that holds it.
        queue_id: queue in the topic.
        committed: queue offset that the group reads next; None: nothing was committed.
        min_offset: queue offset of the oldest message that is kept.
        max_offset: queue offset that the next message gets.
        lag_messages: messages that are not consumed.
        lag_ms: age of the oldest of them; 0 where there is none.
        member_id: the member that reads it; empty: none.
        not_polled: that member's program has not asked it for messages yet.
        stalled_ms: for so long nothing was committed although messages wait and the group has
            consumers; 0 where none wait.
    """

    topic: str
    replica_group: str
    queue_id: int
    committed: int | None
    min_offset: int
    max_offset: int
    lag_messages: int = 0
    lag_ms: int = 0
    member_id: str = ""
    not_polled: bool = False
    stalled_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """How consumers of a group select the messages of a topic.

    Attributes:
        topic: what they read.
        expression: tags or SQL92; `*`: all messages; empty: they do not say.
        is_sql: whether that is SQL92.
        members: how many consumers select so.
        member_id: one of them.
        sharing: how many of them read whole queues, of which each has one reader.
    """

    topic: str
    expression: str
    is_sql: bool
    members: int
    member_id: str = ""
    sharing: int = 0


@dataclass(frozen=True, slots=True)
class GroupHold:
    """A quota that delays the reads of a group in a topic now. quota: which one, and its limit."""

    topic: str
    quota: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group.

    Attributes:
        group: its name.
        members: how many consumers of the SDK it has.
        queues: what it reads, from all replica groups.
        orderly: its consumers get the messages of a queue in order, one at a time.
        retry_times: attempts after the first, then a message is a dead letter.
        lite_topic: the topic whose lite topics it subscribes to; empty: none.
        lite_exclusive: a lite topic has one subscriber at a time.
        clients: how many of RocketMQ's clients consume as this group.
        client_topics: what those read, by name.
        subscriptions: how its consumers select messages: one row for each way in each topic.
        sharing_clients: of the clients, those that share all queues of the group out among
            themselves, as RocketMQ's classic push consumers do.
        holds: quotas that delay its reads now.
    """

    group: str
    members: int
    queues: tuple[GroupQueue, ...]
    orderly: bool = False
    retry_times: int = 0
    lite_topic: str = ""
    lite_exclusive: bool = False
    clients: int = 0
    client_topics: tuple[str, ...] = ()
    subscriptions: tuple[GroupSubscription, ...] = ()
    sharing_clients: int = 0
    holds: tuple[GroupHold, ...] = ()

    @property
    def consumers(self) -> int:
        """How many consumers it has, of the SDK and RocketMQ's."""
        return self.members + self.clients


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """A place in a queue: the queue offset of the message that is read next."""

    topic: str
    queue_id: int
    offset: int


class TrackState(StrEnum):
    """State of a message in a consumer group."""

    WAITING = "WAITING"  # the group has not got to it
    IN_FLIGHT = "IN_FLIGHT"  # a consumer has it
    RETRY = "RETRY"  # an attempt failed; it waits for another one, or had it
    CONSUMED = "CONSUMED"
    DEAD_LETTER = "DEAD_LETTER"


@dataclass(frozen=True, slots=True)
class TrackStep:
    """A record of a message on its way to consumers.

    Attributes:
        kind: HALF (until its producer decides), DELAYED (until its time) or STORED (consumers get
            it).
        topic, queue_id, queue_offset, physical_offset: where it is.
        store_time_ms: when it was stored, ms since 1970.
        deliver_time_ms: when a delayed message is due; None: not known, or not delayed.
    """

    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time_ms: int
    deliver_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupTrack:
    """A consumer group's work on a message.

    Attributes:
        group: its name.
        state: what became of it.
        attempts: failed ones.
        copy: where it was stored for another attempt, or as a dead letter; None: nowhere.
        copy_time_ms: when, ms since 1970.
    """

    group: str
    state: TrackState
    attempts: int = 0
    copy: tuple[str, int, int] | None = None
    copy_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class TrackedMessage:
    """The trace of a message.

    Attributes:
        unique_key: the one that its producer gave it.
        born_time_ms: when it was sent, ms since 1970.
        born_host: from where.
        traceparent: its trace (W3C); empty for none.
        steps: its records, in their order.
        groups: those that read its topic.
    """

    unique_key: str
    born_time_ms: int
    born_host: str
    traceparent: str
    steps: tuple[TrackStep, ...]
    groups: tuple[GroupTrack, ...]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that was looked up.

    Attributes:
        topic, queue_id: the queue it lies in.
        queue_offset: its index in that queue.
        physical_offset: its log offset.
        store_time_ms: when the node stored it.
        born_time_ms: when the producer sent it.
        flag: the user's own.
        sysflag: RocketMQ's bits: compression, transaction, address families.
        reconsume_times: how often it was consumed before.
        message_id: 32 or 56 hex digits: the node's address and the log offset.
        born_host: ADDRESS:PORT of the producer.
        body: as sent.
        properties: all of them, the well-known ones (TAGS, KEYS, UNIQ_KEY ...) too.
        group: the replica group of the queue; empty where it is not known.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time_ms: int
    born_time_ms: int
    flag: int
    sysflag: int
    reconsume_times: int
    message_id: str
    born_host: str
    body: bytes
    properties: Mapping[str, str]
    group: str = ""


@dataclass(frozen=True, slots=True)
class LogEpoch:
    """A mastership in a log: log offset of its first byte, and a random number of its own."""

    epoch: int
    start: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Mastership:
    """A mastership: the master of one epoch.

    Attributes:
        epoch: number of the epoch.
        master: name of the node.
        begin_ms: since when, by the master's wall clock.
        cause: why it began: STARTED, HANDED_OVER, LEASE_ENDED, DEPOSED, UNCLEAN; empty: not known.
        unled_ms: how long nobody led before, as the new master knows; None: it does not.
    """

    epoch: int
    master: str
    begin_ms: int
    cause: str = ""
    unled_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """A slave, as its master sees it.

    Attributes:
        name: of the node.
        endpoint: HOST:PORT of its client API.
        state: READY, HANDSHAKE, TRANSFER or SUSPEND.
        sent_offset: log offset up to which it was sent the log.
        received_offset: up to which it has acknowledged it.
        durable_offset: up to which it has it on its disk.
        lag_bytes: what it lacks of the master's log.
        lag_ms: how long ago it had everything.
        in_sync: it counts as a copy that puts wait for.
        reason: why it is not sent anything; empty where it is.
    """

    name: str
    endpoint: str
    state: str
    sent_offset: int
    received_offset: int
    durable_offset: int
    lag_bytes: int
    lag_ms: int
    in_sync: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RocketmqSlaveStatus:
    """A broker of RocketMQ that copies a master's log. No put waits for it.

    Attributes:
        address: HOST:PORT that it connects from.
        state: HANDSHAKE, TRANSFER, or SUSPEND where it is refused.
        since_ms: when it connected, or was first refused, by the node's wall clock.
        received_offset: log offset up to which it says that it has the log.
        lag_bytes: what it lacks of what is confirmed.
        lag_ms: how long ago it lacked nothing.
        reason: why it is refused; empty where it is not.
    """

    address: str
    state: str
    since_ms: int
    received_offset: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """How a node takes part in the replication of its group.

    Attributes:
        group: its replica group.
        epoch: number of the mastership that is held or followed.
        push2slave_max_offset: master: highest log offset that a slave has acknowledged.
        in_sync_replicas: master: nodes in sync, itself included.
        violations: master: connections ended because of what the peer said.
        slaves: master: its slaves.
        state: slave: READY, HANDSHAKE, TRANSFER or SUSPEND.
        reason: slave: why it does not follow.
        master: slave: HOST:PORT of its master's client API.
        master_offset: slave: log offset where the master's log ends, as last told.
        lag_bytes: slave: what it lacks of the master's log.
        lag_ms: slave: how long ago it had everything.
        truncated_bytes: slave: cut off since it started, to follow another lineage.
        resets: slave: how often it began with an empty log since it started.
        role: elected groups: STANDING, FOLLOWING or LEADING.
        sync_state_set: elected groups: names of the nodes that every acknowledged put is on.
        elections: elected groups: won by this node since it started.
        lease_left_ms: elected groups: until this node's lease ends by its clock.
        lease_seconds: elected groups: how long the registry grants leases, which is what counts.
        lease_asked_seconds: elected groups: how long the node is configured to ask for.
        renewal_ms_max: elected groups: how long the slowest of the last renewals of the lease took.
        discarded: elected groups: what unclean elections gave up, in words.
        log_epochs: the oldest confirmed ones of the log: they tell logs apart.
        masterships: the newest confirmed ones of the log, oldest first.
        refusal: master: why its role and replicas allow no puts now; a full disk and an error are
            in a node's flags and fence_reason. Empty: they do, or it is of an older version.
        rocketmq_slaves: brokers of RocketMQ that copy its log, and addresses that it refused in the
            last minute.
        guarantee: elected groups: what puts are promised whichever node leads, by setting; none: it
            is not recorded yet, or the node is of an older version.
        unreachable: elected groups: the nodes that it cannot reach at their replication addresses,
            where they would have to be followed if they led: the address, and why.
        down: elected groups: the members that have no lease, and since when (ms since 1970; 0: not
            known). Of a node that another one tells of: itself, if it is one of them.
        registry_silent: elected groups: the members of etcd that do not answer it, and why; it
            looks every 10 s where `registry.endpoints` names several.
        barred: elected groups: the nodes that its master keeps out of sync, as queues have moved,
            which their version does not know.
    """

    group: str = ""
    epoch: int = 0
    push2slave_max_offset: int = 0
    in_sync_replicas: int = 0
    violations: int = 0
    slaves: tuple[SlaveStatus, ...] = ()
    state: str = ""
    reason: str = ""
    master: str = ""
    master_offset: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    truncated_bytes: int = 0
    resets: int = 0
    role: str = ""
    sync_state_set: tuple[str, ...] = ()
    elections: int = 0
    lease_left_ms: int = 0
    lease_seconds: int = 0
    lease_asked_seconds: int = 0
    renewal_ms_max: int = 0
    discarded: tuple[str, ...] = ()
    log_epochs: tuple[LogEpoch, ...] = ()
    masterships: tuple[Mastership, ...] = ()
    refusal: str = ""
    rocketmq_slaves: tuple[RocketmqSlaveStatus, ...] = ()
    guarantee: Mapping[str, str] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    down: Mapping[str, int] = field(default_factory=dict)
    registry_silent: Mapping[str, str] = field(default_factory=dict)
    barred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Location of a node's store.

    Who finds this directory under this path, in this run of the system, is on the node's machine.

    Attributes:
        boot_id: of the run of the system; empty: not known.
        path: of the store's directory.
        device, inode: of that directory.
    """

    boot_id: str = ""
    path: str = ""
    device: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Durations:
    """How often something took how long, since its node started.

    Attributes:
        name: append (a batch is stored), append_wait (it waits for disk and slaves), fsync.
        bounds: inclusive upper ones, ascending, seconds.
        counts: up to each of them, and one more above.
    """

    name: str
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FreezeStatus:
    """How far the way back to RocketMQ is.

    Attributes:
        frozen: the master stores nothing.
        max_offset: where its log ends.
        messages_end: where its last message ends; behind it are notes of its own alone.
        tables_given: since it froze, RocketMQ's slaves got all of its tables.
    """

    frozen: bool
    max_offset: int
    messages_end: int
    tables_given: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of a node, reported by itself or by another node.

    Attributes:
        name: its name in its replica group.
        role: ASYNC_MASTER, SYNC_MASTER or SLAVE; MASTER or DOWN where another node tells of it.
            DOWN: it has no lease in the registry, and did not answer.
        version: of its program.
        listen: HOST:PORT of its client API.
        data: path of its store.
        start_time_ms: when its process started.
        min_offset: log offset of the oldest byte that is kept.
        max_offset: log offset where the next record goes.
        flushed_offset: log offset up to which the log is on disk.
        confirm_offset: log offset up to which readers see messages.
        dispatch_behind_bytes: of the log that queues and index do not have yet.
        dispatch_behind_ms_max: longest time a message waited for its queue entry.
        disk_used_ratio: of the fullest file system of its store, 0 to 1.
        disk_directory: of the store, on that file system; empty: an older node does not say.
        flags: why it takes no writes or reads now, as names; none where it does.
        fence_reason: the error after which the store refuses everything; empty: none.
        recovered_abnormally: its last run did not end by itself.
        recovered_from, recovered_end: log offsets that recovery scanned from and ended at.
        messages_in, messages_out, bytes_in, bytes_out: since it started.
        flushes: of the log since it started; flushed_messages were answered by them.
        flushed_messages: see flushes.
        corrupt_ranges: damaged ranges of the log.
        refused_records: records of a topic's queue that dispatch could not enter.
        replication: its part in its replica group.
        store: where its store lies.
        stale: another node that is not its master tells of it: zeros are not known.
        parts: what it holds now, by name: messages_leased, calls_waiting,
            lite_subscriptions, timers_waiting, half_messages_waiting, sinks; where some are late:
            timers_overdue_ms; where they are not 75 and 85: disk_clean_percent, disk_force_percent,
            from where on expired and unexpired segments are deleted, 0: never; where a full disk
            makes it ask: disk_store_bytes, disk_others_bytes.
        wall_ms: its wall clock when it answered; 0: not known.
        certificate: file of its certificate, or of an authority that it trusts, that expires first;
            empty: none.
        certificate_until_ms: when that is.
        cluster: that it belongs to; empty: not known.
        settings: its own settings that all nodes of a group should have alike, by option; none: an
            older node does not say.
        durations: of what takes time; none: an older node does not say.
        write_holds: quotas that refused sends a moment ago, with their limits.
    """

    name: str
    role: str
    version: str = ""
    listen: str = ""
    data: str = ""
    start_time_ms: int = 0
    min_offset: int = 0
    max_offset: int = 0
    flushed_offset: int = 0
    confirm_offset: int = 0
    dispatch_behind_bytes: int = 0
    dispatch_behind_ms_max: int = 0
    disk_used_ratio: float = 0.0
    disk_directory: str = ""
    flags: tuple[str, ...] = ()
    fence_reason: str = ""
    recovered_abnormally: bool = False
    recovered_from: int = 0
    recovered_end: int = 0
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    flushes: int = 0
    flushed_messages: int = 0
    corrupt_ranges: int = 0
    refused_records: int = 0
    replication: ReplicationStatus = field(default_factory=ReplicationStatus)
    store: LocalStore = field(default_factory=LocalStore)
    stale: bool = False
    parts: Mapping[str, int] = field(default_factory=dict)
    wall_ms: int = 0
    certificate: str = ""
    certificate_until_ms: int = 0
    cluster: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    durations: tuple[Durations, ...] = ()
    write_holds: tuple[str, ...] = ()

    @property
    def is_master(self) -> bool:
        """Whether it is a master, of whichever kind."""
        return self.role.endswith("MASTER")

    @property
    def is_down(self) -> bool:
        """Whether it is a member that does not live, as far as the others know."""
        return self.role == "DOWN"

    @property
    def down_since_ms(self) -> int:
        """Since when it is down (ms since 1970); 0: it is not, or that is not known."""
        return self.replication.down.get(self.name, 0) if self.is_down else 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The nodes of a cluster; the first one is the node that was asked."""

    cluster: str
    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRoute:
    """A node of a replica group.

    Attributes:
        node: its name.
        endpoint: HOST:PORT of its client API; empty where it is not alive.
        in_sync: it holds every acknowledged put.
        drained: it is taken out: not elected, and no put waits for it.
    """

    node: str
    endpoint: str
    in_sync: bool = False
    drained: bool = False


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """A replica group.

    Attributes:
        group: its name.
        epoch: number of the last mastership; 0 where roles are fixed.
        master: name of the master; empty while there is none, or where roles are fixed.
        master_endpoint: HOST:PORT of its client API.
        replicas: its nodes.
        retiring: it gets no new topics and queues, and those that it has are to move away.
    """

    group: str
    epoch: int
    master: str
    master_endpoint: str
    replicas: tuple[ReplicaRoute, ...]
    retiring: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The replica groups of a cluster.

    Attributes:
        group: that of the node that answered.
        frames_port: where that node takes frames, 0: nowhere.
        frames_key: names its process there.
    """

    cluster: str
    groups: tuple[GroupRoute, ...]
    group: str
    frames_port: int
    frames_key: bytes


class QueuePlace(NamedTuple):
    """A queue of a replica group.

    Attributes:
        group: the replica group.
        queue_id: queue of the topic there.
    """

    group: str
    queue_id: int

    def __str__(self) -> str:
        """As commands take and show it."""
        return f"{self.group}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class QueueMove:
    """The move of a queue to another replica group.

    Attributes:
        topic: of the queue.
        move: its id; empty: it has not begun.
        state: PLANNED; WAITING, PREPARING, RESERVING: puts are stored; SEALING, OPENING, RENEWING,
            ASKING: puts wait; WITNESSING, DONE: it has moved; REVOKING, CLEARING, ENDED: it does
            not move.
        name: where the queue was born, by which producers and consumers know it.
        source: where it takes its messages until it has moved.
        target: the replica group that it moves to.
        to: the queue there; None: not known yet.
        end: queue offset at which the source ends, and `to` begins; None: not known yet.
        begin_ms: when it began, by the master's wall clock.
        pause_ms: for how long puts waited.
        reason: why it ended without moving, or cannot continue; empty: neither.
    """

    topic: str
    move: str
    state: str
    name: QueuePlace
    source: QueuePlace
    target: str
    to: QueuePlace | None
    end: int | None
    begin_ms: int
    pause_ms: float
    reason: str

    @property
    def is_over(self) -> bool:
        """It has moved, or it will not."""
        return self.has_moved or self.state == "ENDED"

    @property
    def has_moved(self) -> bool:
        """New messages are stored at `to`."""
        return self.state in ("WITNESSING", "DONE")


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """A stretch of a queue that moved, as one replica group holds it.

    Attributes:
        topic: of the queue.
        name: where the queue was born.
        place: where this stretch is.
        first: queue offset at which it begins.
        end: queue offset at which it ends; None: it takes new messages.
        came_from: where the stretch before it is; None: it is the first one.
        following: where the next one is; None: it takes new messages.
        min_offset: queue offset of the oldest message of it that is kept.
        max_offset: queue offset after its newest message.
        passed_on: messages that were sent here in the last minute, and stored at the next place.
    """

    topic: str
    name: QueuePlace
    place: QueuePlace
    first: int
    end: int | None
    came_from: QueuePlace | None
    following: QueuePlace | None
    min_offset: int
    max_offset: int
    passed_on: int = 0


@dataclass(frozen=True, slots=True)
class QueueMoves:
    """Queues that moved between replica groups, or move.

    Attributes:
        moves: running, and the last ones that are over.
        spans: of all queues that moved, each queue's in order.
    """

    moves: tuple[QueueMove, ...] = ()
    spans: tuple[QueueSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """How much somebody or something may have.

    Attributes:
        subject: User:NAME, Client:ADDRESS, Topic:NAME or Namespace:NAME; with the name * every one
            that has no quota of its own.
        bytes_in: that may be sent in a second, of bodies and properties; 0: no limit, as below.
        messages_in: that may be sent in a second.
        bytes_out: that may be read in a second.
        messages_out: that may be read in a second.
        connections: of a user or a client address, with one node.
        topics: that a user created, or of a namespace.
        burst_ms: after a pause, so much of each rate passes at once.
    """

    subject: str
    bytes_in: int = 0
    messages_in: int = 0
    bytes_out: int = 0
    messages_out: int = 0
    connections: int = 0
    topics: int = 0
    burst_ms: int = 1000
