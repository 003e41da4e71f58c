"""Reading a queue: what a reader wants of it, and where it had better read."""

import os
from dataclasses import dataclass, replace

from duolog import _errors as sdk

from node.consuming.waitingcalls import WaitingCalls
from node.core.core import Core
from node.filters.consumerfilters import ConsumerFilters
from node.filters.tagfilter import MessageFilter
from node.replication.roles import Replication
from store.offsets import QueueOffset
from store.queueends import QueueKey
from store.reader import GetMessageStatus, GetResult, Wanted


@dataclass(frozen=True, slots=True)
class Selection:
    """What one read of a consumer takes: messages that its filter chooses, up to two limits.

    bytes_max: of bodies. group: whose bits of the ext units tell of them; empty: nobody's.
    """

    filter: MessageFilter
    messages_max: int
    bytes_max: int
    group: str = ""


def physical_memory() -> int:
    """Bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _passes_over(result: GetResult) -> bool:
    """Whether a read begins, or goes on, behind messages that are not there."""
    return result.lost > 0 or result.status is GetMessageStatus.OFFSET_TOO_SMALL


class Reader:
    """Reads for consumers."""

    def __init__(
        self, core: Core, replication: Replication, filters: ConsumerFilters, calls: WaitingCalls
    ) -> None:
        self._core = core
        self._replication = replication
        self._filters = filters
        self.calls = calls
        self.board = core.board
        self._in_memory_bytes = (
            physical_memory() * replication.options.access_message_in_memory_max_ratio // 100
        )

    def read(
        self,
        key: QueueKey,
        offset: int,
        selection: Selection,
    ) -> GetResult:
        """What a selection takes of a queue, from an offset on.

        Raises NotMaster where a slave would pass over messages: the master may have what is
        missing or was removed here, and a group that passed over it would never see it.
        """
        chosen = selection.filter
        count = min(selection.messages_max, chosen.at_once)
        bits = self._filters.bits(selection.group, key[0], chosen)
        wanted = Wanted(count, selection.bytes_max, chosen.codes, bits)
        start = QueueOffset(offset)
        result = chosen.chosen(self._core.store.get(*key, start, wanted))
        if self._replication.slave is not None and _passes_over(result):
            one = replace(wanted, messages_max=1)  # what comes before, if anything does
            result = chosen.chosen(self._core.store.get(*key, start, one))
            if _passes_over(result):
                raise self._not_here(key, start, result.next_offset)
        if result.count or not self._replication.may_be_behind():
            return result
        return result.where_behind(start)

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
        """suggestPullingFromSlave: where a reader at a log offset had better read, or empty.

        Who is further back than access_message_in_memory_max_ratio percent of the memory reads
        from the disk, which a slave can do without slowing the master's writers down.
        """
        master = self._replication.master
        if master is None or not self._replication.options.slave_read_enable:
            return ""
        if self._core.store.log.max_offset - physical_offset <= self._in_memory_bytes:
            return ""
        return master.read_endpoint()
