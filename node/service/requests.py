"""Append requests as sends. Sinks' batches are staged in the same form."""

import numpy as np
from duolog._columns import crc32, offset_bytes
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.service.sends import Send
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadMessage
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Host


def is_whole(request: wire.AppendRequest, bodies: bytes | memoryview) -> bool:
    """Whether its CRC matches the bytes of a request. bodies: see `send_of`."""
    found = crc32(bodies, request.body_offsets, request.properties, request.property_offsets)
    if request.HasField("expect_offset"):
        found = crc32(offset_bytes(request.expect_offset), start=found)
    return found == request.crc32


def send_of(
    request: wire.AppendRequest,
    host: Host,
    bodies: bytes | memoryview,
    repeat_of: int | None,
    accepted: bool = False,
) -> Send:
    """The send that a request asks for. Raises BadMessage for columns that do not fit together.

    bodies: those of the request, which need not be in it. repeat_of, accepted: see PutBatch.
    """
    columns = Columns.from_wire(
        bodies, request.body_offsets, request.properties, request.property_offsets
    )
    batch = PutBatch(
        request.topic,
        request.queue_id,
        columns,
        request.born_time,
        host,
        request.flag,
        producer=request.producer_id,
        sequence=request.sequence,
        repeat_of=repeat_of,
        accepted=accepted,
        expect_offset=QueueOffset(request.expect_offset)
        if request.HasField("expect_offset")
        else None,
    )
    origin: tuple[str, int, QueueOffset] | None = None
    if request.HasField("copied_from"):
        place = request.copied_from
        origin = place.topic, place.queue_id, QueueOffset(place.offset)
        if request.transaction_group:
            raise BadMessage("a copy of a stored message cannot be a half message")
    return Send(
        batch,
        copy_of=origin,
        half_of=request.transaction_group or None,
        immunity_seconds=request.immunity_seconds,
        delay_level=request.delay_level,
        deliver_ms=request.deliver_time,
        no_wait=request.no_wait,
    )


def without_first(request: wire.AppendRequest, count: int) -> wire.AppendRequest:
    """A batch without its first messages, with the sequences of the rest."""
    made = wire.AppendRequest()
    made.CopyFrom(request)
    made.sequence += count
    made.bodies, made.body_offsets = _rest(request.bodies, request.body_offsets, count)
    if request.property_offsets:
        made.properties, made.property_offsets = _rest(
            request.properties, request.property_offsets, count
        )
    made.crc32 = crc32(made.bodies, made.body_offsets, made.properties, made.property_offsets)
    return made


def _rest(blob: bytes, offsets: bytes, count: int) -> tuple[bytes, bytes]:
    ends = np.frombuffer(offsets, "<u4")[count:]
    return blob[int(ends[0]) :], (ends - ends[0]).astype("<u4").tobytes()
