"""Divergence of a copy from its broker's log, and the cut there, on an operator's order only.

The broker lost the end of its log, and has stored others since, or none. What the copy has
beyond the last common record is given up. Bytes are compared, segment by segment from the newest
on: the logs of RocketMQ have no epochs.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from duolog_server.compat.hawire.frames import BadStream, Frame
from duolog_server.compat.migration.copying import CannotFollow, OutOfOrder
from duolog_server.compat.migration.link import SILENCE_SECONDS, connect
from duolog_server.compat.migration.rocketmqbroker import Runtime
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset


class _Compared(ConnectionError):
    """The comparison is over."""


class _Comparison:
    """Compares what arrives with [start, end) of a copy. at: the first byte that differs."""

    def __init__(self, store: MessageStore, start: int, end: int) -> None:
        self._store = store
        self._end = end
        self.at = start

    def take(self, frames: Sequence[Frame]) -> int:
        """Raises _Compared at the first difference, or at the end; OutOfOrder."""
        for frame in frames:
            if frame.offset != self.at:
                raise OutOfOrder(f"bytes from {frame.offset}, expected from {self.at}")
            mine = self._store.log.get_data(self.at)[: min(len(frame.data), self._end - self.at)]
            same = mine == np.frombuffer(frame.data[: len(mine)], np.uint8)
            if not same.all():
                self.at += int(same.argmin())
                raise _Compared
            self.at += len(mine)
            if self.at >= self._end:
                raise _Compared
        return self.at


async def cut_to_master(store: MessageStore, ha: str, master: Runtime) -> int:
    """Truncate a copy where its broker's log differs from it, or ends; the bytes given up.

    Nothing may be copied meanwhile. Raises CannotFollow where the logs have no record in common,
    OSError, TimeoutError.
    """
    before = store.max_offset
    end = await _parted_at(store, ha, master)
    if end <= store.log.min_offset:
        raise CannotFollow("the copy and the broker's log have nothing in common")
    if end < before:
        store.truncate(PhyOffset(end))
    return before - end


async def _parted_at(store: MessageStore, ha: str, master: Runtime) -> int:
    """The end of the last common record.

    Bytes alone prove nothing: all records of a size begin alike. A record names its own place, its
    times and hosts: where one is the same, the log before it is.
    """
    for mapped in reversed(store.log.queue.files):
        start = max(1, mapped.start, master.first)
        end = min(mapped.start + mapped.readable, master.end)
        if start >= end:
            continue
        boundary = _last_boundary(store, await _compared(store, ha, start, end))
        if boundary > mapped.start:
            return boundary
    return store.log.min_offset


async def _compared(store: MessageStore, ha: str, start: int, end: int) -> int:
    """The first byte of [start, end) that is not the same there; the end if all are."""
    comparison = _Comparison(store, start, end)
    link = await connect(ha, comparison.take)
    link.report(start)
    try:
        with suppress(_Compared):
            while not link.ended.done():
                before = comparison.at
                await asyncio.wait([link.ended], timeout=SILENCE_SECONDS)
                if comparison.at == before and not link.ended.done():
                    raise TimeoutError(f"the broker does not send its log from {before} on")
            link.ended.result()
    except BadStream as error:
        raise ConnectionError(f"{ha}: {error}") from None
    finally:
        link.close()
    return comparison.at


def _last_boundary(store: MessageStore, at: int) -> int:
    """The end of the last record, or blank, that lies wholly before an offset."""
    mapped = store.log.queue.find(at - 1)
    if mapped is None:
        return at
    end = mapped.start
    while (size := store.log.record_bytes(end)) and end + size <= at:
        end += size
    return end
