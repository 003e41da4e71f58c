"""RocketMQ's Bloom filter: the bits in a message's bit map that represent a consumer group.

A rate f of false positives among n groups: k = ceil(log(f) / log(0.5)) hashes and m = ceil(n log(f)
/ log(0.5^ln 2)) bits, in whole bytes. Position i of a text is h1 + i h2 (32 bits, complemented
where negative) mod m, of the halves of the lower 64 bits of its murmur3 128. Source: RocketMQ,
filter.util.BloomFilter.
"""

import math
from dataclasses import dataclass

import mmh3

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
