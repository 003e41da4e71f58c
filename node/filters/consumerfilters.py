"""The SQL filters of groups, and the bit map of a message that tells which of them may match it.

The expressions are a metadata table (consumerFilter.json). With enable_calc_filter_bit_map, the
extension unit of every message gets a Bloom filter of the groups whose expressions match, and a
reader of such a group skips other messages without opening their records. Bits are trusted from the
offset at which this node began to set them. Before that, and if all bits are set, the expression
decides.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mmh3
import structlog

from duolog_server.node.core.core import Core
from duolog_server.node.filters.sqlfilter import Expression, SqlFilter, evaluated
from duolog_server.node.filters.tagfilter import BadFilter, MessageFilter
from duolog_server.store.consumequeueext import FilterBits
from duolog_server.store.metadata import Json
from duolog_server.store.record import decode_properties

log = structlog.get_logger("duolog.node")

FILTERS_MAX = 256  # of one topic
ALL_MAX = 4096  # of all topics; each may have 8 KiB
BitMapOf = Callable[[str, bytes], bytes]  # of a topic and the properties of a message


@dataclass(frozen=True, slots=True)
class _Entry:
    filter: SqlFilter
    evaluate: Expression
    bits: FilterBits


class ConsumerFilters:
    """The expressions of groups, as parsed by this node."""

    def __init__(self, core: Core, calculate: Callable[[BitMapOf], None]) -> None:
        """calculate: from then on, dispatch notes the bit map of every message."""
        self._core = core
        self._calculate = calculate
        self._bloom = BloomFilter.of()
        self._seen = -1
        self._entries: dict[str, dict[str, _Entry]] = {}

    @property
    def _enabled(self) -> bool:
        options = self._core.options
        return options.enable_calc_filter_bit_map and options.enable_consume_queue_ext

    def start(self) -> None:
        """Set bits from now on."""
        if self._enabled:
            self._calculate(self.bit_map_of)

    def register(self, group: str, topic: str, wanted: MessageFilter) -> None:
        """Register the expression of a group; on the master, once for each expression."""
        tables = self._core.metadata.tables
        if not isinstance(wanted, SqlFilter) or not group:
            return
        if topic not in self._core.metadata.topics:
            return
        rows = tables.filters.get(topic, {})
        if rows.get(group, {}).get("expression") == wanted.expression:
            return
        full = len(rows) >= FILTERS_MAX or sum(map(len, tables.filters.values())) >= ALL_MAX
        if full and group not in rows:
            log.warning("too many groups filter by SQL: no bits left for this one", group=group)
            return
        now = self._core.times.wall_ms()
        positions = self._bloom.positions(f"{group}#{topic}")
        row = {
            "bloomFilterData": {"bitNum": self._bloom.bits, "bitPos": list(positions)},
            "bornTime": now,
            "clientVersion": now,
            "consumerGroup": group,
            "deadTime": 0,
            "expression": wanted.expression,
            "expressionType": "SQL92",
            "topic": topic,
        }
        self._core.metadata.note({"op": "filter", "filter": row})

    def _follow(self) -> None:
        """Take over the entries of the table; bits of new ones count from here on."""
        tables = self._core.metadata.tables
        if tables.filter_changes == self._seen:
            return
        self._seen = tables.filter_changes
        old = self._entries
        self._entries = {}
        for topic, rows in tables.filters.items():
            for group, row in rows.items():
                entry = old.get(topic, {}).get(group)
                if entry is None or entry.filter.expression != row.get("expression"):
                    entry = self._entry(row)
                if entry is not None:
                    self._entries.setdefault(topic, {})[group] = entry

    def _entry(self, row: Json) -> _Entry | None:
        try:
            positions = self._bloom.positions(f"{row['consumerGroup']}#{row['topic']}")
            reached = self._core.store.dispatched_offset
            bits = FilterBits(positions, self._bloom.bits, reached)
            expression = str(row["expression"])
            return _Entry(SqlFilter.parse(expression), evaluated(expression), bits)
        except (BadFilter, KeyError, TypeError) as error:
            log.warning("cannot parse the filter of a group", reason=str(error))
            return None

    def bit_map_of(self, topic: str, properties: bytes) -> bytes:
        """A message's bit map; empty if no group filters its topic by SQL."""
        self._follow()
        entries = self._entries.get(topic)
        if not entries:
            return b""
        made = bytearray(self._bloom.bits // 8)
        found = decode_properties(properties.decode(errors="replace"))
        for entry in entries.values():
            if entry.evaluate(found) is True:
                for position in entry.bits.positions:
                    made[position // 8] |= 1 << (position % 8)
        return bytes(made)

    def bits(self, group: str, topic: str, wanted: MessageFilter) -> FilterBits | None:
        """The bits that a reader of a group may use; None if there are none."""
        if not group or not isinstance(wanted, SqlFilter) or not self._enabled:
            return None
        self._follow()
        entry = self._entries.get(topic, {}).get(group)
        if entry is None or entry.filter.expression != wanted.expression:
            return None
        return entry.bits


# RocketMQ's Bloom filter: the bits in a message's bit map that represent a consumer group.
#
# A rate f of false positives among n groups: k = ceil(log(f) / log(0.5)) hashes and m = ceil(n
# log(f) / log(0.5^ln 2)) bits, in whole bytes. Position i of a text is h1 + i h2 (32 bits,
# complemented where negative) mod m, of the halves of the lower 64 bits of its murmur3 128. Source:
# RocketMQ, filter.util.BloomFilter.
ERROR_PERCENT = 20  # maxErrorRateOfBloomFilter
GROUPS_EXPECTED = 32  # expectConsumerNumUseFilter


def _signed32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """hashes: k; bits: m."""

    hashes: int
    bits: int

    @staticmethod
    def of(error_percent: int = ERROR_PERCENT, expected: int = GROUPS_EXPECTED) -> "BloomFilter":
        """The filter for an error rate and a number of groups."""
        rate = error_percent / 100
        hashes = math.ceil(math.log(rate, 0.5))
        bits = math.ceil(expected * math.log(rate) / math.log(0.5 ** math.log(2)))
        return BloomFilter(hashes, -(-bits // 8) * 8)

    def positions(self, text: str) -> tuple[int, ...]:
        """The bits of a text."""
        low = mmh3.hash64(text.encode(), signed=False)[0]
        first, second = _signed32(low), _signed32(low >> 32)
        mixed = (_signed32(first + k * second) for k in range(1, self.hashes + 1))
        return tuple((~number if number < 0 else number) % self.bits for number in mixed)
