"""Messages looked up by place, id and key. Whose messages they are is for the caller to check."""

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.identity.access.rules import NO_SUCH_ID
from duolog_server.store.errors import CorruptRecord, OffsetOutOfRange
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import Record, parse_message_id

FOUND_MAX = 32  # messages with a key, where the caller names no limit
ALWAYS_MS = 1 << 62


class Lookups:
    """Messages by place, id and key. Those by key raise as `check`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lookups = core.store.lookups

    def by_id(self, message_id: str) -> Record:
        """The message at a place in the log. Raises NoSuchMessage, BadMessage for what is no id."""
        _, place = parse_message_id(message_id)
        try:
            return self.at(place)
        except (OffsetOutOfRange, CorruptRecord, sdk.NoPermission, sdk.NoSuchMessage):
            raise sdk.NoSuchMessage(NO_SUCH_ID) from None

    def at(self, place: int) -> Record:
        """The message at an offset of the log.

        A queue must name it: what a body holds there may look like a record, too. Raises
        OffsetOutOfRange, CorruptRecord, NoPermission, NoSuchMessage.
        """
        record = self._lookups.at(PhyOffset(place))
        if is_reserved_topic(record.topic):
            raise sdk.NoPermission(f"topic {record.topic!r} is reserved for the system")
        named = self._core.store.record_at(record.topic, record.queue_id, record.queue_offset)
        if named is None or named.physical_offset != place:
            raise sdk.NoSuchMessage(f"no queue has a message at the offset {place} of the log")
        return record

    def by_unique_key(self, topic: str, key: str) -> Record:
        """The message with the id that its producer gave it; of several attempts the first.

        Raises NoSuchMessage.
        """
        self.check(topic)
        found = self._lookups.by_unique_key(topic, key)
        if found is None:
            raise sdk.NoSuchMessage(f"no message has the unique key {key!r}")
        return found

    def attempts(self, topic: str, key: str) -> list[Record]:
        """All messages with such an id."""
        self.check(topic)
        return self._lookups.all_by_unique_key(topic, key)

    def by_key(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> list[Record]:
        """Messages with a key, stored in a time; 0: the default, or no limit. Raises BadRequest."""
        self.check(topic)
        if not key:
            raise sdk.BadRequest("give a key, a unique key or a message id")
        begin_ms, end_ms = max(0, begin_ms), end_ms or ALWAYS_MS
        return list(self._lookups.by_key(topic, key, most or FOUND_MAX, begin_ms, end_ms))

    def check(self, topic: str) -> None:
        """Raise as `readable_topic`, and Unavailable where keys cannot be looked up."""
        self._core.admission.readable_topic(topic)
        self._core.admission.check_index()
