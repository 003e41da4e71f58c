"""Conversion between values of the engine and of the wire: batches, records, statuses, errors."""

import urllib.parse
from collections.abc import Collection
from functools import lru_cache

from duolog import _errors as sdk
from duolog._columns import crc32
from duolog.wire import duolog_pb2 as wire

from duolog_server.store import errors
from duolog_server.store.columns import offsets_to_wire
from duolog_server.store.kernels import decode
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult
from duolog_server.store.record import LOCAL_HOST, Host, Record
from duolog_server.store.status import PutMessageStatus

PUT_STATUS: dict[PutMessageStatus, wire.PutStatus] = {
    status: getattr(wire.PutStatus, status.value)
    for status in PutMessageStatus
    if status.value in wire.PutStatus.keys()  # noqa: SIM118 - an enum wrapper, not a dict
} | {PutMessageStatus.QUEUE_MOVED: wire.SERVICE_NOT_AVAILABLE}  # it is not stored: repeat it
_NUMBERS = (
    (wire.PHYSICAL_OFFSETS, "physical_offsets", decode.OUT_PHY, "<i8"),
    (wire.STORE_TIMES, "store_times", decode.OUT_STORE_TIME, "<i8"),
    (wire.BORN_TIMES, "born_times", decode.OUT_BORN_TIME, "<i8"),
    (wire.FLAGS, "flags", decode.OUT_FLAG, "<i4"),
    (wire.SYSFLAGS, "sysflags", decode.OUT_SYSFLAG, "<i4"),
    (wire.RECONSUME_TIMES, "reconsume_times", decode.OUT_RECONSUME_TIMES, "<i4"),
)
_READ_STATUS: dict[GetMessageStatus, wire.ReadStatus] = {
    GetMessageStatus.FOUND: wire.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE: wire.NO_MATCHED_MESSAGE,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: wire.NO_NEW_MESSAGE,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: wire.NO_NEW_MESSAGE,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: wire.NO_NEW_MESSAGE,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: wire.OFFSET_TOO_LARGE,
    GetMessageStatus.OFFSET_TOO_SMALL: wire.OFFSET_TOO_SMALL,
    GetMessageStatus.MESSAGE_WAS_REMOVING: wire.MESSAGES_LOST,
}


def batch_to_wire(
    key: QueueKey,
    asked: int,
    result: GetResult,
    subscription: int = 0,
    columns: Collection[int] = (),
) -> wire.MessageBatch:
    """A read as a wire batch. columns: those to include; none: all."""
    topic, queue_id = key
    status = _READ_STATUS[result.status]
    if status == wire.NO_NEW_MESSAGE and asked > result.max_offset:
        status = wire.OFFSET_TOO_LARGE
    if result.count == 0:
        return wire.MessageBatch(
            topic=topic,
            queue_id=queue_id,
            status=status,
            next_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            lost=result.lost,
            subscription=subscription,
        )
    table = result.table
    offsets = table[decode.OUT_QUEUE_OFFSET]
    base = int(offsets[0])
    bodies = body_offsets = properties = property_offsets = b""
    if not columns or wire.BODIES in columns:
        bodies, body_offsets = result.bodies, offsets_to_wire(table[decode.OUT_BODY_END])
    if not columns or wire.PROPERTIES in columns:
        properties, property_offsets = (
            result.properties,
            offsets_to_wire(table[decode.OUT_PROPERTIES_END]),
        )
    dense = int(offsets[-1]) - base == result.count - 1
    numbers = {
        field: table[row].astype(dtype, copy=False).tobytes()
        for column, field, row, dtype in _NUMBERS
        if not columns or column in columns
    }
    return wire.MessageBatch(
        topic=topic,
        queue_id=queue_id,
        status=status,
        next_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        count=result.count,
        bodies=bodies,
        body_offsets=body_offsets,
        properties=properties,
        property_offsets=property_offsets,
        crc32=crc32(bodies, body_offsets, properties, property_offsets),
        queue_offset_base=base,
        queue_offset_deltas=b"" if dense else (offsets - base).astype("<u4").tobytes(),
        lost=result.lost,
        subscription=subscription,
        **numbers,
    )


def record_to_wire(record: Record) -> wire.FoundMessage:
    """A single record."""
    properties = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
    return wire.FoundMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_time=record.store_time,
        born_time=record.born_time,
        flag=record.flag,
        sysflag=record.sysflag,
        reconsume_times=record.reconsume_times,
        message_id=record.message_id,
        born_host=f"{record.born_host.address}:{record.born_host.port}",
        body=record.body,
        properties=properties,
    )


@lru_cache(4096)
def peer_host(peer: str) -> Host:
    """Host of a gRPC peer name such as `ipv4:127.0.0.1:55555` or `ipv6:%5B::1%5D:55555`."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return LOCAL_HOST
    return Host(address.strip("[]").partition("%")[0], int(port))


def error_to_sdk(error: Exception) -> sdk.DuologError:
    """The SDK's error for one of the engine's."""
    if isinstance(error, sdk.DuologError):
        return error
    if isinstance(error, errors.BadMessage):
        return sdk.BadRequest(error.reason)
    if isinstance(error, errors.OffsetOutOfRange | errors.CorruptRecord):
        return sdk.NoSuchMessage(str(error))
    if isinstance(error, errors.StoreFenced):
        return sdk.NotMaster(str(error))
    if isinstance(error, errors.StoreClosed):
        return sdk.Unavailable(str(error))
    return sdk.ResultUnknown(f"{type(error).__name__}: {error}")
