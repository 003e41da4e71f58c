"""Messages looked up by id and by key. Whose messages they are is for the caller to check."""

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.identity.access.rules import NO_SUCH_ID
from duolog_server.store.errors import CorruptRecord, OffsetOutOfRange
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.record import Record

FOUND_MAX = 32  # messages with a key, where the caller names no limit
ALWAYS_MS = 1 << 62


class Lookups:
    """Messages by id and by key.

    All raise NoSuchMessage; those by key as `readable_topic`, and BadRequest.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lookups = core.store.lookups

    def by_id(self, message_id: str) -> Record:
        """The message at a place in the log. Raises BadMessage for what is no id."""
        try:
            record = self._lookups.by_id(message_id)
        except (OffsetOutOfRange, CorruptRecord):
            raise sdk.NoSuchMessage(NO_SUCH_ID) from None
        if is_reserved_topic(record.topic):
            raise sdk.NoSuchMessage(NO_SUCH_ID)
        return record

    def by_unique_key(self, topic: str, key: str) -> Record:
        """The message with the id that its producer gave it."""
        self._check(topic)
        found = self._lookups.by_unique_key(topic, key)
        if found is None:
            raise sdk.NoSuchMessage(f"no message has the unique key {key!r}")
        return found

    def by_key(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> list[Record]:
        """Messages with a key, stored in a time; 0: the default, or no limit."""
        self._check(topic)
        if not key:
            raise sdk.BadRequest("give a key, a unique key or a message id")
        begin_ms, end_ms = max(0, begin_ms), end_ms or ALWAYS_MS
        return list(self._lookups.by_key(topic, key, most or FOUND_MAX, begin_ms, end_ms))

    def _check(self, topic: str) -> None:
        self._core.admission.readable_topic(topic)
        self._core.admission.check_index()
