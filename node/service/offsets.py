"""Offsets that clients commit for their groups, and the places that they name."""

from collections.abc import Mapping

from duolog import _errors as sdk

from duolog_server.node.consuming.groups import GroupCoordinator
from duolog_server.node.consuming.longpoll import check_place
from duolog_server.node.core.core import Core
from duolog_server.store.metadata import check_group
from duolog_server.store.queueends import QueueKey

QUEUES_MAX = 10_000


class Offsets:
    """Offsets that clients commit, checked and stored for every protocol."""

    def __init__(self, core: Core, coordinator: GroupCoordinator) -> None:
        self._core = core
        self._coordinator = coordinator

    def check_place(self, key: QueueKey, offset: int = 0) -> QueueKey:
        """A queue that may be read. Raises UnknownTopic, NoPermission, NotMaster, BadRequest."""
        check_place(key, self._core.admission.readable_queue(*key).read_queues, offset)
        return key

    def waits_at(self, group: str, key: QueueKey) -> int | None:
        """Where a group will read a queue that it may not read yet; None: it may.

        So that no client chooses where it begins there. Raises NotMaster.
        """
        tables, (topic, queue_id) = self._core.admission.group_tables(), key
        if tables.may_read(group, topic, queue_id):
            return None
        back = tables.progress_of(group, topic, queue_id).going_back
        return self._core.store.queue_range(topic, queue_id)[0] if back is None else back

    async def commit(
        self, group: str, queues: Mapping[QueueKey, int], member: str = "", forward: bool = False
    ) -> None:
        """Commit offsets of a group, and create it if it is missing.

        member: the one that reads the queues; empty for clients that the coordinator does not know.
        forward: offsets below the committed ones are ignored. So is what is committed in a queue
        that the group may not read yet. Raises StaleMember if a queue belongs
        to another member now, BadGroup, BadRequest, Busy, as `check_place` and as a change of
        metadata.
        """
        if not self._core.metadata.has_group(group):  # one of RocketMQ's may have any name
            check_group(group)
        if len(queues) > QUEUES_MAX:
            raise sdk.BadRequest(
                f"a commit of group {group!r} has {len(queues)} offsets; it may have {QUEUES_MAX}"
            )
        table: dict[str, dict[int, int]] = {}
        for key, offset in queues.items():
            topic, queue_id = self.check_place(key, offset)
            table.setdefault(topic, {})[queue_id] = offset
        await self._core.metadata.ensure_group(group)
        # No await between this check and the write: a queue could be reassigned meanwhile.
        now = self._core.times.mono_ms()
        if member and not self._coordinator.may_commit(group, member, {*queues}, now):
            raise sdk.StaleMember(
                "one of these queues has been assigned to another member of the group, or this "
                "master has not heard of the member yet"
            )
        if table:
            await self._core.metadata.commit(group, table, forward)
