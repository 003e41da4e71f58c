"""Admission: the one place that decides which puts, changes and reads this node may do now."""

from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.ha.epochs import Epoch
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.freeze import Freeze
from duolog_server.node.replication.roles import Replication
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.store.messagestore import MessageStore, PutResult
from duolog_server.store.metadata import (
    PERM_READ,
    PERM_WRITE,
    Metadata,
    TopicConfig,
    is_closed_topic,
)
from duolog_server.store.names import check_topic
from duolog_server.store.status import PutMessageStatus

CHANGE_PATIENCE_MS = 1000  # less than a client waits for an answer


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why every put is refused. not_master: RocketMQ has no status for that."""

    status: PutMessageStatus
    reason: str
    not_master: bool = False


class Admission:
    """Decides by the node's role, its tables and its limits; changes nothing."""

    def __init__(
        self,
        store: MessageStore,
        replication: Replication,
        metadata: MetadataLog,
        limits: LimitsSection,
        freeze: Freeze,
    ) -> None:
        self._freeze = freeze
        self._store = store
        self._replication = replication
        self._metadata = metadata
        self._limits = limits

    # -- puts ----------------------------------------------------------------------------------

    def _unable(self) -> Refusal | None:
        """Why this node can store nothing, regardless of replicas."""
        not_master = self._replication.not_master()
        if not_master:
            return Refusal(PutMessageStatus.SERVICE_NOT_AVAILABLE, not_master, True)
        closed = self._replication.closed or self._freeze.reason
        return Refusal(PutMessageStatus.SERVICE_NOT_AVAILABLE, closed) if closed else None

    def closed(self) -> Refusal | None:
        """Why no message may be put now."""
        unable = self._unable()
        if unable is not None:
            return unable
        too_few = self._replication.refusal()
        status = PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return Refusal(status, too_few) if too_few else None

    def refused_put(self) -> PutResult | None:
        """`closed` as the result of a put."""
        closed = self.closed()
        return PutResult(closed.status, closed.reason) if closed is not None else None

    def writable_topic(
        self,
        name: str,
        owner: str,
        *,
        queue_id: int | None = None,
        queues: int = 0,
        make: bool = True,
    ) -> TopicConfig:
        """A topic that messages may be put to; made if it is missing, and clients may make topics.

        owner: the caller, empty where there are no users. queue_id: where they go, also one that
        moved here; None: to any of the topic's own. queues: of a new topic; 0: the default. make:
        whether the caller asks for a new topic. Raises NoPermission, UnknownTopic, BadMessage,
        BadRequest (it has no such queue), Busy, Throttled, and NotMaster where this master may not
        know the topic as it is.
        """
        if is_closed_topic(name):
            raise sdk.NoPermission(f"topic {name[:200]!r} is reserved for the system")
        topic = self._metadata.topics.get(name)
        if topic is None:
            self.check_knows()
            check_topic(name)
            if not (make and self._limits.auto_create_topic):
                raise sdk.UnknownTopic(f"topic {name!r} does not exist")
            topic = self._metadata.creating(name) or self._metadata.new_topic(name, queues, 0)
        if not topic.perm & PERM_WRITE:
            self.check_knows()
            raise sdk.NoPermission(
                f"topic {name!r} does not allow writes (perm={topic.perm}); fix: duolog topic "
                f"alter {name} --perm {topic.perm | PERM_WRITE}"
            )
        if not 0 <= (queue_id or 0) < topic.queues and not self._is_guest(name, queue_id):
            self.check_knows()
            if not topic.queues:  # it is here for queues of other groups, which were moved here
                raise sdk.BadRequest(f"topic {name} has no queues of its own in this group")
            raise sdk.BadRequest(f"queue {queue_id}: {name} has queues 0..{topic.queues - 1}")
        if name not in self._metadata.topics:
            topic = self._metadata.auto_create(name, queues, owner)
        return topic

    def _is_guest(self, topic: str, queue_id: int | None) -> bool:
        """Whether a queue of another group moved here, and has that id."""
        return queue_id is not None and self._metadata.moves.first_of(topic, queue_id) is not None

    def refuses(self) -> bool:
        """Whether every put is refused now."""
        return self.closed() is not None or not self._store.writeable

    def may_store(self) -> bool:
        """Whether the node's own batches may be stored now.

        Not while it may be behind: the batches of the last master would be stored again.
        """
        return not self._replication.may_be_behind() and not self.refuses()

    def unknown_repeat(self, end: int) -> PutResult | None:
        """Why a repeat may not be recognised by its unique key now: not all that lies below a log
        offset is confirmed and indexed. None if it is.
        """
        lacking = ""
        if self._replication.may_be_behind():
            lacking = "confirmed"
        elif self._store.dispatched_offset < end:
            lacking = "indexed"
        if not lacking:
            return None
        reason = f"messages stored by the last master are not {lacking} yet: try again"
        return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)

    # -- changes of metadata -------------------------------------------------------------------

    def change(self) -> sdk.DuologError | None:
        """Why metadata may not be changed now; a change waits for the slaves as well."""
        replication = self._replication
        unable = self._unable()
        if unable is not None:
            if unable.not_master:
                return sdk.NotMaster(unable.reason, *replication.master_endpoint)
            return sdk.Busy(unable.reason)
        if replication.elected:
            too_few = replication.refusal()
            if too_few:
                return sdk.Busy(too_few)
            return self._does_not_know() if replication.may_be_behind() else None
        if replication.waits and replication.master is not None:
            needed, found = replication.options.in_sync_replicas, replication.master.in_sync()
            if found < needed:
                return sdk.Busy(f"SLAVE_NOT_AVAILABLE: {found} of {needed} replicas are in sync")
        return None

    async def until_taken(self) -> None:
        """Wait a moment if a change would be refused, and may be taken soon: the group is changing
        its master, or has just been formed.
        """
        if self.change() is not None:
            told = self._replication.refusals.told_later(CHANGE_PATIENCE_MS)
            if told is not None:
                await told

    # -- reads ---------------------------------------------------------------------------------

    def check_master(self) -> None:
        """Raise NotMaster on a slave."""
        not_master = self._replication.not_master()
        if not_master:
            raise sdk.NotMaster(not_master, *self._replication.master_endpoint)

    def check_knows(self) -> None:
        """Raise NotMaster if this node may still lack changes that its group confirmed."""
        if self._replication.may_be_behind():
            raise self._does_not_know()

    def check_current(self) -> None:
        """Raise NotMaster unless this node is the master and has everything that its group
        confirmed.
        """
        self.check_master()
        self.check_knows()

    def masterships(self) -> tuple[Epoch, Epoch]:
        """The epochs of this mastership and of the one before it. Raises as `check_current`."""
        self.check_current()
        return self._replication.masterships

    def check_readable(self) -> None:
        """Raise NotMaster on a slave that does not serve readers (slave_read_enable)."""
        replication = self._replication
        if replication.slave is not None and not replication.options.slave_read_enable:
            endpoint, epoch = replication.master_endpoint
            raise sdk.NotMaster(
                "this slave does not serve readers (ha.slave_read_enable=false); its "
                f"master is {endpoint}",
                endpoint,
                epoch,
            )

    def group_tables(self) -> Metadata:
        """The tables of groups and committed offsets, to answer a client from.

        Raises NotMaster on a slave, and on a new master that may not have the newest commits yet:
        an outdated answer would make a group consume messages again.
        """
        self.check_knows()
        return self._metadata.tables

    def known_topic(self, name: str) -> TopicConfig:
        """A topic that exists. Raises UnknownTopic, NotMaster."""
        known = self._metadata.topics.get(name)
        if known is None:
            self.check_knows()
            raise sdk.UnknownTopic(f"topic {name!r} does not exist")
        return known

    def readable_topic(self, name: str) -> TopicConfig:
        """A topic that may be read. Raises UnknownTopic, NoPermission.

        Its other settings may be outdated: nothing is refused because of them without
        `check_knows`.
        """
        self.check_readable()
        topic = self.known_topic(name)
        if not topic.perm & PERM_READ:
            self.check_knows()
            raise sdk.NoPermission(f"topic {name!r} is not readable (its perm has no 4)")
        return topic

    def readable_queue(self, name: str, queue_id: int) -> TopicConfig:
        """`readable_topic` for a queue; NotMaster if the master may have added it meanwhile."""
        topic = self.readable_topic(name)
        if queue_id >= topic.read_queues:
            self.check_knows()
        return topic

    def check_index(self) -> None:
        """Raise BadRequest if nothing can be found by key."""
        if not self._store.options.message_index_enable:
            raise sdk.BadRequest(
                "this node keeps no index (store.message_index_enable=false), so "
                "messages cannot be found by key: read the queue, or give the message "
                "id"
            )

    def _does_not_know(self) -> sdk.NotMaster:
        endpoint, epoch = self._replication.master_endpoint
        follower = self._replication.follower
        away = follower.away_seconds if follower is not None else 0.0
        if follower is not None and away and not self._replication.elected:
            return sdk.NotMaster(
                "this node is a slave and may lack the newest changes of its group; its master "
                f"{follower.describe()} has not been reached for {away:.0f} s. Roles are "
                "fixed: start that node again, or make another one the master",
                endpoint,
                epoch,
                master_away=True,
            )
        return sdk.NotMaster(
            "this node may lack the newest changes of its group: ask its master", endpoint, epoch
        )
