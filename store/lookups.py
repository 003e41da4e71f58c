"""Lookups: records by their message id and by their keys.

The index has only hashes of keys, and may be ahead of what readers may see: every record is read
and checked. It has records of deleted topics, too: those that are older than their topic are not
found by key. Those below the minimum of their queue are not found at all.
"""

from collections.abc import Callable

from duolog_server.store.errors import OffsetOutOfRange, StoreError
from duolog_server.store.indexservice import IndexService
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import Record, keys_of, parse_message_id

# Records read for one answer, at most: keys of other texts have the same hash where somebody means
# harm, and a call may not hold up others for long.
CANDIDATES_MAX = 1024
WORDS_MAX = 64  # of a key, looked for in the index: keys of callers may have any length


class Lookups:
    """at: reads a record that readers may see, verified. most: records of one answer."""

    def __init__(self, index: IndexService, at: Callable[[PhyOffset], Record], most: int) -> None:
        self._index = index
        self.at = at
        self._most = most
        self.born: Callable[[str], int] = lambda _: 0  # where in the log a topic begins
        # Below which queue offset the messages of a topic's queue are hidden.
        self.minimum: Callable[[str, int], int] = lambda _, queue_id: 0

    def by_id(self, message_id: str) -> Record:
        """The record an offset message id names. The id is checked, its offset never trusted.

        Raises BadMessage for no id, OffsetOutOfRange where it names no record or one that is hidden
        in its queue, CorruptRecord.
        """
        _, physical_offset = parse_message_id(message_id)
        record = self.at(PhyOffset(physical_offset))
        if self._is_hidden(record):
            end = PhyOffset(physical_offset + 1)
            raise OffsetOutOfRange(physical_offset, end, end)
        return record

    def _is_hidden(self, record: Record) -> bool:
        return record.queue_offset < self.minimum(record.topic, record.queue_id)

    def by_key(
        self, topic: str, key: str, count: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[Record]:
        """Records of a topic with a key (KEYS token or UNIQ_KEY), oldest first, at most count.

        Only records that truly carry the key and were stored in [begin_ms, end_ms] are answered.
        """
        count = max(1, min(count, self._most))
        found: dict[int, Record] = {}
        born = self.born(topic)
        candidates = 4 * count + 64
        while True:
            offsets = self._index_of(topic, key, candidates, begin_ms, end_ms)
            for offset in offsets:
                if offset < born or offset in found or len(found) >= count:
                    continue
                try:
                    record = self.at(PhyOffset(offset))
                except StoreError:
                    continue
                if self._is_hidden(record) or not record_has_key(record, topic, key):
                    continue
                if begin_ms <= record.store_time <= end_ms:
                    found[offset] = record
            if len(found) >= count or len(offsets) < candidates or candidates >= CANDIDATES_MAX:
                return [found[offset] for offset in sorted(found)]
            candidates = CANDIDATES_MAX

    def _index_of(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of records that may have a key, newest first; at most count.

        The index has the words of a key with spaces: those of the rarest of the first ones.
        """
        words = list(dict.fromkeys(filter(None, key.split(" "))))[:WORDS_MAX] or [key]
        found = (self._index.find(topic, word, count, begin_ms, end_ms) for word in words)
        return min(found, key=len)

    def by_unique_key(self, topic: str, uniq_key: str) -> Record | None:
        """The record with a UNIQ_KEY; of several (a resend) the one stored first."""
        records = self.all_by_unique_key(topic, uniq_key)
        return min(records, key=lambda record: record.store_time, default=None)

    def all_by_unique_key(self, topic: str, uniq_key: str) -> list[Record]:
        """The records with a UNIQ_KEY, by offset: attempts of one message have the same."""
        return [
            record
            for record in self.by_key(topic, uniq_key)
            if record.properties.get("UNIQ_KEY") == uniq_key
        ]


def record_has_key(record: Record, topic: str, key: str) -> bool:
    """Whether a record belongs to a topic and has a key: hashes may collide."""
    if record.topic != topic:
        return False
    return key in keys_of(record.properties) or record.properties.get("UNIQ_KEY") == key
