"""Reads of a queue: what a reader selects, and which node it should read from."""

import os
from dataclasses import dataclass, replace

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.node.consuming.waiting import Turns
from duolog_server.node.core.births import own
from duolog_server.node.core.core import Core
from duolog_server.node.core.throttle import throttled
from duolog_server.node.core.untaken import Untaken
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.filters.consumerfilters import ConsumerFilters
from duolog_server.node.filters.tagfilter import MessageFilter
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.replication.roles import Replication
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult, Wanted


@dataclass(frozen=True, slots=True)
class Selection:
    """Limits of one read of a consumer: messages that its filter selects, up to two limits.

    bytes_max: of bodies. group: that reads, whose bits in the extension units are used; empty for
    none. who: whose quotas a poll asks, and its answer is charged to; None where there are none.
    """

    filter: MessageFilter
    messages_max: int
    bytes_max: int
    group: str = ""
    who: Who | None = None


def physical_memory() -> int:
    """Bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _passes_over(result: GetResult) -> bool:
    """Whether a read skips messages that this node does not have."""
    return result.lost > 0 or result.status is GetMessageStatus.OFFSET_TOO_SMALL


class Reader:
    """Reads for consumers."""

    def __init__(
        self,
        core: Core,
        replication: Replication,
        filters: ConsumerFilters,
        calls: WaitingCalls,
        untaken: Untaken,
    ) -> None:
        self._core = core
        self._replication = replication
        self._filters = filters
        self.calls = calls
        self.untaken = untaken
        self.board = core.board
        self.turns = Turns()
        self._in_memory_bytes = (
            physical_memory() * replication.options.access_message_in_memory_max_ratio // 100
        )

    def read(
        self,
        key: QueueKey,
        offset: int,
        selection: Selection,
    ) -> GetResult:
        """Read what a selection allows, from an offset on.

        A group finds nothing in a queue that it may not read yet (`Metadata.may_read`).

        Raises NotMaster if a slave would skip messages: the master may have what is missing or was
        removed here, and a group that skipped it would never see it.
        """
        if selection.group and not self._core.metadata.tables.may_read(selection.group, *key):
            return self._nothing(offset)
        chosen = selection.filter
        count = min(selection.messages_max, chosen.at_once)
        bits = self._filters.bits(selection.group, key[0], chosen)
        wanted = Wanted(count, selection.bytes_max, chosen.codes, bits)
        start = QueueOffset(offset)
        result = chosen.chosen(self._core.store.get(*key, start, wanted))
        if key[0].startswith(RETRY_PREFIX):
            result = own(self._core.metadata.births, key[0], result, selection.group)
        if self._replication.slave is not None and _passes_over(result):
            one = replace(wanted, messages_max=1)  # the messages before the gap, if there are any
            result = chosen.chosen(self._core.store.get(*key, start, one))
            if _passes_over(result):
                raise self._not_here(key, start, result.next_offset)
        self._core.traffic.read(result.count)
        if result.count or not self._replication.may_be_behind():
            return result
        return result.where_behind(start)

    @staticmethod
    def _nothing(offset: int) -> GetResult:
        """What a group finds in a queue that it may not read yet: it continues there."""
        at = QueueOffset(offset)
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, at, at, at)

    def delivered(self, key: QueueKey, group: str, result: GetResult) -> None:
        """Count and trace what a read found, as it goes to a client.

        group: as the client names it; empty for a reader without one.
        """
        core = self._core
        if result.count:
            if not core.metadata.has_group(group):
                group = ""  # any text may come: it must not be kept
            core.traffic.deliver(key[0], group, result.count, len(result.bodies))
            if core.traces is not None:
                core.traces.delivered(*key, group, result)

    # -- quotas --------------------------------------------------------------------------------

    async def may_read(self, who: Who, topic: str, group: str, deadline: float) -> None:
        """Wait while a reader is over a quota. Raises Throttled at the deadline."""
        wait = await self._core.throttle.may_read(who, topic, deadline, group)
        if wait is not None:
            raise throttled(wait)

    def may_go_out(self, who: Who, topic: str) -> bool:
        """Whether a reader, who waited since it was asked, is still not over a quota."""
        return self._core.throttle.read(who, topic, again=True) is None

    def share(self, who: Who, topic: str, selection: Selection) -> Selection:
        """A selection of no more than passes the reader's quotas at once."""
        most = selection.bytes_max, selection.messages_max
        size, count = self._core.throttle.at_once(who, topic, *most)
        return replace(selection, bytes_max=size, messages_max=count)

    def sent(self, who: Who, topic: str, result: GetResult) -> None:
        """A reader gets what was read."""
        if result.count:
            size = len(result.bodies) + len(result.properties)
            self._core.throttle.sent(who, topic, size, result.count)

    def _not_here(self, key: QueueKey, start: QueueOffset, following: QueueOffset) -> sdk.NotMaster:
        topic, queue_id = key
        endpoint, epoch = self._replication.master_endpoint
        return sdk.NotMaster(
            f"this slave lacks messages of {topic}/{queue_id} between offsets {start} and "
            f"{following}: read them from its master ({endpoint or 'not known now'})",
            endpoint,
            epoch,
        )

    def suggested_endpoint(self, physical_offset: int) -> str:
        """The endpoint that a reader at a log offset should use; empty for this node.

        RocketMQ: suggestPullingFromSlave. A reader further behind than
        access_message_in_memory_max_ratio percent of the memory reads from the disk. A slave can do
        that without slowing down the master's writers.
        """
        master = self._replication.master
        if master is None or not self._replication.options.slave_read_enable:
            return ""
        if self._core.store.max_offset - physical_offset <= self._in_memory_bytes:
            return ""
        return master.read_endpoint()
