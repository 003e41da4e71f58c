"""Messages by their places in the log, which clients name in ids and in what they send back."""

import ipaddress
import zlib

from duolog import _errors as sdk

from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.rules import NO_SUCH_ID
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels.encode import RECORD_CRC_BYTES, RECORD_CRC_NAME
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import BORN_HOST_V6, STORE_HOST_V6, Host, Record

_SYSFLAG_AT, _BORN_HOST_AT = 36, 48
_SEAL = RECORD_CRC_NAME.tobytes()


async def message_for(sight: Sight, broker: Broker, offset: int) -> Record:
    """The message at an offset of the log, for the user whose request is served.

    Where there are users, all that this user may not read is answered alike, there or not. Raises
    as `message_at`.
    """
    if not sight.is_limited:
        return await message_at(broker, offset)
    try:
        record = await message_at(broker, offset)
    except (StoreError, sdk.NoPermission, sdk.NoSuchMessage):
        raise sdk.NoSuchMessage(NO_SUCH_ID) from None
    if not sight.may_read(record.topic):
        raise sdk.NoSuchMessage(NO_SUCH_ID)
    return record


async def message_at(broker: Broker, offset: int) -> Record:
    """The message at an offset of the log.

    A queue must name it: what a body holds there may look like a record, too. Raises StoreError,
    NoPermission, NoSuchMessage, Busy.
    """
    await broker.log.caught_up()
    record = broker.store.get_message(PhyOffset(offset))
    if is_reserved_topic(record.topic):
        raise sdk.NoPermission(f"topic {record.topic!r} is reserved for the system")
    named = broker.store.record_at(record.topic, record.queue_id, record.queue_offset)
    if named is None or named.physical_offset != offset:
        raise sdk.NoSuchMessage(f"no queue has a message at the offset {offset} of the log")
    return record


def reached_at(advertised: str, store_host: Host) -> Host:
    """The address in message ids, for clients of this protocol: the port that serves it.

    advertised: HOST:PORT of that port. store_host: of the records, whose address stands for a name.
    """
    host, _, port = advertised.rpartition(":")
    try:
        address = str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        address = store_host.address
    return Host(address, int(port))


def led_to(record: bytes, host: Host) -> bytes:
    """A record whose store host is another: clients make its id of it, and go there with the id.

    As it is where the address would be of another length.
    """
    flags = int.from_bytes(record[_SYSFLAG_AT : _SYSFLAG_AT + 4], "big")
    begin = _BORN_HOST_AT + (20 if flags & BORN_HOST_V6 else 8) + 8  # the store time is between
    packed = host.packed()
    if len(packed) != (20 if flags & STORE_HOST_V6 else 8):
        return record
    return _sealed(record[:begin] + packed + record[begin + len(packed) :])


def _sealed(record: bytes) -> bytes:
    """Add the CRC over all its bytes, if it has one."""
    rest = len(record) - RECORD_CRC_BYTES
    if not record.startswith(_SEAL, rest):
        return record
    digits = f"{zlib.crc32(record[:rest]):010d}"[::-1]  # the least significant first
    return record[: rest + len(_SEAL)] + digits.encode() + record[-1:]
