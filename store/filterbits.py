"""The Bloom filter bits by which a reader selects the messages of a group."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilterBits:
    """positions: all set if a message may match. bits: length of a bit map that counts.

    valid_from: log offset of the first message whose bits are known to be right.
    """

    positions: tuple[int, ...]
    bits: int
    valid_from: int

    def may_match(self, bit_map: bytes, physical_offset: int) -> bool:
        """False if a message certainly does not match."""
        if physical_offset < self.valid_from or len(bit_map) * 8 != self.bits:
            return True
        return all(bit_map[at // 8] >> (at % 8) & 1 for at in self.positions)
