"""Clients: heartbeats, groups, locks of queues, what they send back, and their notifications."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.bodies import (
    ConsumerData,
    QueueName,
    locked,
    member_list,
    read_check,
    read_heartbeat,
    read_locks,
)
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import (
    LANGUAGES,
    NUMBER_MAX,
    ONEWAY,
    OTHER,
    Command,
)
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import (
    MembersRequest,
    SendBackRequest,
    UnregisterRequest,
)
from duolog_server.compat.remoting.consuming.pulling import filter_of
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.lookups import message_for
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Begun, Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import BadGroup
from duolog_server.store.grouptopics import group_retry_topic
from duolog_server.store.metadata import check_group
from duolog_server.store.names import TOPIC_BYTES_MAX
from duolog_server.store.queueends import QueueKey

LOCK_MS = 60_000  # RocketMQ's: clients renew every 20 s
LOCKS_MAX = 100_000  # of all groups; each takes 300 bytes


@dataclass(slots=True)
class _Lock:
    client_id: str
    until_ms: MonoMs


class QueueLocks:
    """The locks of all groups."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, QueueKey], _Lock] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], mono_ms: MonoMs
    ) -> list[QueueKey]:
        """Lock queues for a client, or renew its locks; those that it has now."""
        until, held = MonoMs(mono_ms + LOCK_MS), []
        for key in queues:
            known = self._locks.get((group, key))
            if known is None and len(self._locks) >= LOCKS_MAX:
                continue
            if known is None or known.client_id == client_id or known.until_ms < mono_ms:
                self._locks[group, key] = _Lock(client_id, until)
                held.append(key)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """A client is done with queues; those of others stay locked."""
        for key in queues:
            known = self._locks.get((group, key))
            if known is not None and known.client_id == client_id:
                del self._locks[group, key]

    def expire(self, mono_ms: MonoMs) -> None:
        """Forget what was not renewed."""
        for place in [place for place, one in self._locks.items() if one.until_ms < mono_ms]:
            del self._locks[place]

    def __len__(self) -> int:
        """Locks of all groups."""
        return len(self._locks)


GIVE_UP_LEVEL = -1  # RocketMQ's: the message becomes a dead letter
TOLD_MAX = 5000  # members that are notified of others in a second; a group is notified whole
TOLD_OF_GROUP_MAX = 200  # those of one group; a larger one is notified once
TOLD_AT_ONCE = 32  # members of a group; others have their turns between those of a larger one


class Clients:
    """Keeps the members of groups, and tells them of each other."""

    def __init__(self, broker: Broker, members: Members, sight: Sight) -> None:
        self._broker = broker
        self._sight = sight
        self._core = broker.core
        self._members = members
        self._locks = QueueLocks()
        self._numbers = 0  # of the requests to clients
        self._seen = sight.version  # of users and rights, when members were looked at
        self._told: Counter[str] = Counter()  # members of groups that were notified in this second
        self._untold: dict[str, None] = {}  # to be notified in the next one
        self._left = TOLD_MAX
        self._large: dict[str, None] = {}  # groups that `keep_telling` is to tell
        self._has_large = asyncio.Event()

    def heartbeat(self, peer: Peer, request: Command) -> Begun:
        """HEART_BEAT: notes the client; its groups are made where they do not exist yet.

        In this order: what it reads already continues while no group can be made. It is noted at
        once: a request that follows it finds, or removes, the member.
        """
        language = request.language if request.language in LANGUAGES else OTHER
        heartbeat = replace(
            read_heartbeat(request.body), language=language, version=request.version
        )
        for data in heartbeat.consumers:
            check_group(data.group)
        now, user = self._core.times.mono_ms(), PRINCIPAL.get()
        changed = self._members.beat(peer, heartbeat, now, user)
        for data in heartbeat.consumers:
            if data.group in changed:
                self._register(data)
        self._tell_of(changed)
        new = [data.group for data in heartbeat.consumers if not self._is_whole(data.group)]
        if not new or self._broker.replication.not_master():
            return request.answer(0)
        return self._make(request, new)

    def _is_whole(self, group: str) -> bool:
        """Whether a group exists, and the topic of what its members send back."""
        metadata = self._core.metadata
        is_made = group_retry_topic(group) in metadata.topics or metadata.retires()
        return metadata.has_group(group) and is_made

    async def _make(self, request: Command, groups: list[str]) -> Command:
        """Make groups, and their topics. Raises Busy, Retryable."""
        metadata = self._core.metadata
        for group in groups:
            _check_retries_found(metadata.has_group(group), group)
            await metadata.ensure_group(group)
            if not metadata.retires():  # it is made there with the first message sent back
                metadata.make_internal(group_retry_topic(group))
        return request.answer(0)

    def _register(self, data: ConsumerData) -> None:
        """Note SQL expressions for the bits of messages; pulls get the errors."""
        for one in data.subscriptions:
            try:
                chosen = filter_of(one.kind, one.expression)
            except Refused:
                continue
            if not self._broker.replication.not_master():
                self._broker.filters.register(data.group, one.topic, chosen)

    def unregister(self, peer: Peer, request: Command) -> Command:
        """UNREGISTER_CLIENT."""
        header = read_header(UnregisterRequest, request.fields)
        if header.producer_group:
            self._members.produces_no_more(peer, header.producer_group)
        if header.consumer_group and self._members.leave(peer, header.consumer_group):
            self._tell_of({header.consumer_group})
        return request.answer(0)

    def gone(self, peer: Peer) -> None:
        """A connection ended."""
        self._tell_of(self._members.gone(peer))

    def expire(self) -> None:
        """Let go of clients that send no heartbeats, or may not consume any more."""
        self._tell_of(self._members.expire(self._core.times.mono_ms()))
        if self._seen != self._sight.version:
            self._seen = self._sight.version
            self._tell_of(self._members.dismiss(self._sight.may_consume))
        self._locks.expire(self._core.times.mono_ms())

    def tick(self) -> None:
        """Once a second: notify groups that have changed since their last notification."""
        groups, self._untold = self._untold, {}
        self._told, self._left = Counter(), TOLD_MAX
        for group in groups:
            self._tell(group)

    def _tell_of(self, groups: set[str]) -> None:
        """Tell the members of groups that others came or left, or read something else."""
        for group in sorted(groups):
            self._tell(group)

    def _tell(self, group: str) -> None:
        """Notify at once, but few times a second: not of each member that comes and leaves."""
        row = self._core.metadata.tables.groups.get(group, {})
        if not row.get("notifyConsumerIdsChangedEnable", True):
            return
        if self._told[group] >= TOLD_OF_GROUP_MAX or self._left <= 0:
            self._untold[group] = None
            return
        if group in self._large:
            return
        members = self._members.peers(group)
        self._told[group] += len(members)
        self._left -= len(members)
        if len(members) > TOLD_AT_ONCE:
            self._large[group] = None
            self._has_large.set()
            return
        for peer, user in members:
            self._tell_one(peer, user, group)

    async def keep_telling(self) -> None:
        """Tell large groups, until cancelled."""
        while True:
            await self._has_large.wait()
            self._has_large.clear()
            while self._large:
                group = next(iter(self._large))
                del self._large[group]
                async for peer, user in Slices().each(self._members.peers(group)):
                    self._tell_one(peer, user, group)

    def _tell_one(self, peer: Peer, user: Principal | None, group: str) -> None:
        if self._sight.may_consume(user, group):
            self._numbers = (self._numbers + 1) & NUMBER_MAX
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            fields = write_header(MembersRequest(group))
            peer.tell(Command(code, self._numbers, fields, flag=ONEWAY))

    def ids(self, request: Command) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP."""
        group = read_header(MembersRequest, request.fields).consumer_group
        found = self._members.ids(group)
        if not found:
            remark = f"no consumer for this group, {group[:255]}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        return request.answer(0, body=member_list(found))

    def lock(self, request: Command) -> Command:
        """LOCK_BATCH_MQ. Raises NotMaster, BadRequest."""
        wanted = read_locks(request.body)
        self._core.admission.check_current()
        self._check_group(wanted.group)
        named = {(one.topic, one.queue_id): one for one in wanted.queues if self._is_here(one)}
        now = self._core.times.mono_ms()
        held = self._locks.lock(wanted.group, wanted.client_id, named, now)
        return request.answer(0, body=locked(named[key] for key in held))

    def _is_here(self, queue: QueueName) -> bool:
        topic = self._core.metadata.topics.get(queue.topic)
        here = queue.broker_name == self._broker.group
        return here and topic is not None and 0 <= queue.queue_id < topic.read_queues

    def unlock(self, request: Command) -> Command:
        """UNLOCK_BATCH_MQ."""
        wanted = read_locks(request.body)
        keys = [(one.topic, one.queue_id) for one in wanted.queues]
        self._locks.unlock(wanted.group, wanted.client_id, keys)
        return request.answer(0)

    def _check_group(self, group: str) -> None:
        if not self._core.metadata.has_group(group):
            raise sdk.BadRequest(f"group {group[:255]!r} does not exist: heartbeats create groups")

    @staticmethod
    def check(request: Command) -> Command:
        """CHECK_CLIENT_CONFIG: whether an expression can be used. Raises Refused."""
        wanted = read_check(request.body)
        filter_of(wanted.kind, wanted.expression)
        return request.answer(0)

    async def send_back(self, request: Command) -> Command:
        """CONSUMER_SEND_MSG_BACK: one more attempt after a delay, or a dead letter."""
        header = read_header(SendBackRequest, request.fields)
        self._core.admission.check_current()
        self._check_group(header.group)
        record = await message_for(self._sight, self._broker, header.offset)
        most, level = header.max_reconsume_times, header.delay_level
        if most == 0:  # no further attempt; elsewhere 0 is the group's number
            level = GIVE_UP_LEVEL
        await self._broker.retries.send_back(header.group, record, level, max(0, most))
        return request.answer(0)


def _check_retries_found(is_known: bool, group: str) -> None:
    """Raise BadGroup for a new group whose members would not find what they sent back.

    These clients read %RETRY%<group> themselves; that is no topic where it has too many bytes.
    """
    limit = TOPIC_BYTES_MAX - len(RETRY_PREFIX)
    if not is_known and len(group) > limit:
        raise BadGroup(
            f"cannot create group {group[:40]}...: its name has {len(group)} characters, the limit "
            f"for clients of RocketMQ 4 is {limit}, so that its retry topic can have its name"
        )
