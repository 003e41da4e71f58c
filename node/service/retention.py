"""Retention of topics that keep messages for a shorter time than the log, or only so many bytes.

The master raises the minimums of their queues, by records in the log: so all replicas hide the same
messages, and keep hiding them. The bytes are those of a topic's records in this replica group, of
all its queues together: the oldest ones go first, in whichever queue they are.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import structlog
from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.core.logbytes import Allowance, LogBytes
from duolog_server.node.core.ports import Reads
from duolog_server.node.core.slices import Slices
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.errors import StoreError
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.retention import HOUR_MS

log = structlog.get_logger("duolog.node")

ROUND_SECONDS = 60.0
QUEUES_AT_ONCE = 1000  # whose minimums one record raises, but for those of a single topic
ENTRIES_MAX = 1 << 24  # that one round reads of a topic: 320 MiB of queue files
ENTRIES_AT_ONCE = 65_536  # of all queues of a topic, in one step
QUEUE_ENTRIES_LEAST = 64  # of these, in each queue
LOGGED_MAX = 10  # topics that one line of the log names
# Of one topic, or of its record: the others expire. A queue's file may be damaged.
FAILURES = (sdk.DuologError, StoreError, OSError)


class TopicRetention:
    """A part of a node; it works while the node is the master."""

    def __init__(self, core: Core, log_bytes: LogBytes) -> None:
        """log_bytes: of the node's queues."""
        self._core = core
        self._log_bytes = log_bytes
        self._failing: dict[str, str] = {}  # topics that do not expire now, and why

    async def run(self) -> None:
        """Raise minimums once a minute, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.round()

    def status(self) -> Mapping[str, int]:
        """See Part."""
        return {"topics_not_expiring": len(self._failing)} if self._failing else {}

    def validate(self) -> str:
        """See Part: it keeps nothing that could be wrong."""
        return ""

    def role_changed(self) -> None:
        """See Part: this mastership tries all topics again."""
        self._failing.clear()

    async def round(self) -> None:
        """Raise the minimums of all topics that have a retention; errors are for the next round."""
        slices, found, count = Slices(), list[tuple[TopicConfig, dict[int, int]]](), 0
        failing: dict[str, str] = {}
        try:
            async for config in slices.each(list(self._core.metadata.topics.values())):
                if not config.retention_hours and not config.retention_bytes:
                    continue
                try:
                    self._core.admission.check_current()
                    row = await self._expired(config, slices)
                except sdk.NotMaster:
                    raise
                except FAILURES as error:
                    failing[config.name] = str(error)
                    continue
                if row:
                    found.append((config, row))
                    count += len(row)
                if count >= QUEUES_AT_ONCE:
                    await self._raise(found, failing)
                    found, count = [], 0
            await self._raise(found, failing)
        except sdk.NotMaster:
            self._failing.clear()  # the next master continues
            return
        self._note(failing)

    async def _raise(
        self, found: Iterable[tuple[TopicConfig, dict[int, int]]], failing: dict[str, str]
    ) -> None:
        """failing: gets the topics whose minimums could not be raised, with the reason. Raises
        NotMaster.
        """
        wanted = {config.name: row for config, row in found if self._is_current(config)}
        try:
            if wanted:
                await self._core.metadata.raise_minimums(wanted)
        except FAILURES as error:
            self._core.admission.check_current()  # a change that finds no room is refused alike
            failing.update(dict.fromkeys(wanted, str(error)))

    def _is_current(self, config: TopicConfig) -> bool:
        """Whether a topic is as it was; it may have been altered, or deleted and made again."""
        metadata = self._core.metadata
        return metadata.topics.get(config.name) is config and not metadata.creating(config.name)

    def _note(self, failing: dict[str, str]) -> None:
        """Keep which topics do not expire now, and log what has changed."""
        before, self._failing = self._failing, failing
        news: dict[str, list[str]] = {}
        for topic, reason in failing.items():
            if before.get(topic) != reason:
                news.setdefault(reason, []).append(topic)
        for reason, topics in news.items():
            log.warning(
                "messages of topics do not expire yet",
                reason=reason,
                topics=topics[:LOGGED_MAX],
                count=len(topics),
            )
        if again := [topic for topic in before if topic not in failing]:
            log.info("messages of topics expire again", topics=again[:LOGGED_MAX], count=len(again))

    async def _expired(self, config: TopicConfig, slices: Slices) -> dict[int, int]:
        """The minimums that a topic's queues are to have, where they are higher than now."""
        queues = self._core.metadata.readable("", config.name)
        found = await self._by_bytes(config, queues, slices) if config.retention_bytes else {}
        if config.retention_hours:
            before_ms = self._core.times.age_ms() - config.retention_hours * HOUR_MS
            async for queue_id in slices.each(queues):
                first = self._first_since(config.name, queue_id, before_ms)
                found[queue_id] = max(first, found.get(queue_id, 0))
        lows = {one: self._core.store.queue_range(config.name, one)[0] for one in found}
        return {one: first for one, first in found.items() if first > lows[one]}

    def _first_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        low, high = self._core.store.queue_range(topic, queue_id)
        positions = self._core.positions
        if low == high or positions.store_time(topic, queue_id, low) >= time_ms:
            return low
        return positions.offset_at_time(topic, queue_id, time_ms)

    async def _by_bytes(
        self, config: TopicConfig, queues: Iterable[int], slices: Slices
    ) -> dict[int, int]:
        allowance, total = Allowance(slices, ENTRIES_MAX), 0
        store, name = self._core.store, config.name
        lows = {one: store.queue_range(name, one)[0] for one in queues}
        for queue_id in queues:
            counted = await self._log_bytes.of(config.name, queue_id, allowance)
            if counted is None:
                return {}  # the next round continues to count
            total += counted
        oldest = OldestRecords.of(store, name, queues)
        excess = total - config.retention_bytes
        while excess > 0 and allowance.left > 0:
            await slices.turn()
            passed, entries = oldest.pass_by(store, excess)
            if not entries:
                break
            excess -= passed
            allowance.left -= entries
        if any(store.queue_range(name, one)[0] != low for one, low in lows.items()):
            return {}  # the sum has bytes that are gone: as many others would go
        return oldest.offsets


@dataclass(slots=True)
class OldestRecords:
    """Goes through the records of a topic's queues, the oldest first. offsets: where it is."""

    topic: str
    offsets: dict[int, int]
    ends: dict[int, int]

    @staticmethod
    def of(store: Reads, topic: str, queues: Iterable[int]) -> "OldestRecords":
        """At the beginning of all queues that have messages."""
        ranges = {one: store.queue_range(topic, one) for one in queues}
        held = {one: (low, high) for one, (low, high) in ranges.items() if low < high}
        return OldestRecords(
            topic,
            {one: int(low) for one, (low, _) in held.items()},
            {one: int(high) for one, (_, high) in held.items()},
        )

    def pass_by(self, store: Reads, size: int) -> tuple[int, int]:
        """Continue by one step, or until records of a size are passed.

        How many bytes were passed, and how many entries were read.
        """
        rest = [one for one, offset in self.offsets.items() if offset < self.ends[one]]
        count = max(QUEUE_ENTRIES_LEAST, ENTRIES_AT_ONCE // max(1, len(rest)))
        starts, sizes, known = [], [], None
        for queue_id in rest:
            offset, end = self.offsets[queue_id], self.ends[queue_id]
            table = store.entries(self.topic, queue_id, offset, min(count, end - offset))
            blank = table[1] == BLANK
            # A blank entry goes with the record before it: what goes is a queue's beginning.
            starts.append(np.maximum.accumulate(np.where(blank, 0, table[0])))
            sizes.append(np.where(blank, 0, table[1]))
            if offset + table.shape[1] < end and table.shape[1]:
                last = int(starts[-1][-1])
                known = last if known is None else min(known, last)
        if not rest:
            return 0, 0
        at, bytes_of = np.concatenate(starts), np.concatenate(sizes)
        if not len(at):  # their files were deleted meanwhile
            return 0, 0
        order = np.argsort(at, kind="stable")
        if known is not None:  # older records than those that were read may come behind it
            order = order[: np.searchsorted(at[order], known, side="right")]
        passed = np.cumsum(bytes_of[order])
        upto = min(int(np.searchsorted(passed, size)), len(order) - 1)
        until = int(at[order[upto]])
        for queue_id, row in zip(rest, starts, strict=True):
            self.offsets[queue_id] += int(np.searchsorted(row, until, side="right"))
        return int(passed[upto]), len(at)
