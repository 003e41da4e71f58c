"""Records as columns, read directly from the files by the node's own kernel."""

from dataclasses import dataclass

import numpy as np
from duolog.spark._columns import Columns

from duolog_server.store.columns import offsets_to_wire
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.queueends import QueueKey

UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8")])  # of a ConsumeQueue


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records: the table of `decode`, with queue offsets from 0 on, their bodies and properties."""

    table: I64
    bodies: U8
    properties: U8


def gather(units: U8, log: U8, log_base: int, check_crc: bool) -> Gathered:
    """The records that queue entries point to, up to the first one outside this segment.

    units: bytes of the entries. log, log_base: the segment and its position in the log. check_crc:
    False if they were verified before.
    """
    sizes = units.view(UNIT)["size"]
    count, room = len(sizes), int(sizes.sum(dtype=np.int64))  # of all bodies, and all properties
    bodies: U8 = np.empty(room, np.uint8)
    properties: U8 = np.empty(room, np.uint8)
    table: I64 = np.empty((decode.OUT_COLUMNS, count), np.int64)
    state: I64 = np.zeros(decode.STATE_SIZE, np.int64)
    decode.decode(
        units,
        0,
        count,
        0,
        log,
        log_base,
        len(log),
        EMPTY_I64,
        count,
        check_crc,
        bodies,
        properties,
        table,
        state,
    )
    return Gathered(
        table[:, : int(state[decode.STATE_MESSAGES])],
        bodies[: int(state[decode.STATE_BODY_BYTES])],
        properties[: int(state[decode.STATE_PROPERTIES_BYTES])],
    )


def columns(key: QueueKey, offsets: I64, gathered: Gathered) -> Columns:
    """The gathered records of a queue as a batch. offsets: their queue offsets, ascending."""
    (topic, queue_id), table = key, gathered.table
    count, base = len(offsets), int(offsets[0])
    dense = int(offsets[-1]) - base == count - 1
    return Columns(
        topic=topic,
        queue_id=queue_id,
        count=count,
        next_offset=int(offsets[-1]) + 1,
        queue_offset_base=base,
        queue_offset_deltas=b"" if dense else (offsets - base).astype("<u4").tobytes(),
        bodies=gathered.bodies,
        body_offsets=offsets_to_wire(table[decode.OUT_BODY_END]),
        properties=gathered.properties,
        property_offsets=offsets_to_wire(table[decode.OUT_PROPERTIES_END]),
        physical_offsets=table[decode.OUT_PHY],
        store_times=table[decode.OUT_STORE_TIME],
        born_times=table[decode.OUT_BORN_TIME],
        flags=table[decode.OUT_FLAG].astype("<i4"),
        reconsume_times=table[decode.OUT_RECONSUME_TIMES].astype("<i4"),
    )
