"""What a reader goes by who asks for a group's messages: the bits of its Bloom filter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilterBits:
    """positions: all set where a message may be wanted. bits: length of a bit map that counts.

    valid_from: log offset of the first message whose bits are known to be right.
    """

    positions: tuple[int, ...]
    bits: int
    valid_from: int

    def may_match(self, bit_map: bytes, physical_offset: int) -> bool:
        """False if a message is surely not wanted."""
        if physical_offset < self.valid_from or len(bit_map) * 8 != self.bits:
            return True
        return all(bit_map[at // 8] >> (at % 8) & 1 for at in self.positions)
