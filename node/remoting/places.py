"""Messages by their places in the log, which clients name in ids and in what they send back."""

from duolog import _errors as sdk

from node.access.rules import NO_SUCH_ID
from node.broker import Broker
from node.remoting.guarding.sight import Sight
from store.errors import StoreError
from store.metadata import is_reserved_topic
from store.offsets import PhyOffset
from store.record import Record


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


__all__ = ["message_at", "message_for"]
