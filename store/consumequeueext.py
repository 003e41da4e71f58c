"""ConsumeQueueExt: units that hold what does not fit a queue entry.

| at | field | bytes |
|---:|-------|------:|
| 0 | unit size | 2 |
| 2 | tags code | 8 |
| 10 | store time | 8 |
| 18 | bit map size | 2, then the bit map |

A unit's address, kept in the queue entry's tags code, is its offset + Long.MIN_VALUE: never a hash.
A size of -1 ends a file. Source: Apache RocketMQ 4.9.8, ConsumeQueueExt.
"""

import struct
from dataclasses import dataclass

import numpy as np

from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.mappedfilequeue import MappedFileQueue
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuelayout import QueueLayout

_UNIT = struct.Struct(">hqqh")
_END = struct.pack(">h", -1)
END_RESERVE = 4
UNIT_BYTES_MAX = 32767
LONG_MIN = -(1 << 63)
MAX_ADDR = -(1 << 31) - 1


@dataclass(frozen=True, slots=True)
class CqExtUnit:
    """The content of a unit."""

    tags_code: int
    store_time: int
    filter_bit_map: bytes = b""


def is_ext_address(tags_code: int) -> bool:
    """Tell whether an entry's tags code is the address of a unit."""
    return tags_code <= MAX_ADDR


class ConsumeQueueExt:
    """The units of one queue."""

    def __init__(self, open_files: OpenFiles, key: QueueKey, layout: QueueLayout) -> None:
        self.files = MappedFileQueue(
            open_files.disk, layout.directory(key), layout.file_bytes, open_files=open_files
        )

    def put(self, unit: CqExtUnit) -> int:
        """Append a unit; its address, or 0 if it is too large. OSError on a full disk."""
        size = _UNIT.size + len(unit.filter_bit_map)
        if size > UNIT_BYTES_MAX:
            return 0
        self.files.check_room()
        last = self.files.last
        if last is None or last.wrote + size > last.size - END_RESERVE:
            if last is not None:
                last.allocate(last.wrote + END_RESERVE)
                last.memory[last.wrote : last.wrote + 2] = np.frombuffer(_END, np.uint8)
                last.wrote = last.committed = last.size
            last = self.files.roll()
        head = _UNIT.pack(size, unit.tags_code, unit.store_time, len(unit.filter_bit_map))
        data = np.frombuffer(head + unit.filter_bit_map, np.uint8)
        position = last.wrote
        last.allocate(position + size)
        last.memory[position : position + size] = data
        last.wrote = last.committed = position + size
        return last.start + position + LONG_MIN

    def get(self, address: int) -> CqExtUnit | None:
        """The unit at an address, or None if there is none."""
        if not is_ext_address(address):
            return None
        offset = address - LONG_MIN
        mapped = self.files.find(offset)
        if mapped is None:
            return None
        return self._read(
            mapped.memory[offset - mapped.start : mapped.wrote].tobytes()[:UNIT_BYTES_MAX]
        )

    @staticmethod
    def _read(data: bytes) -> CqExtUnit | None:
        if len(data) < _UNIT.size:
            return None
        size, tags_code, store_time, bits = _UNIT.unpack_from(data)
        if size != _UNIT.size + bits or bits < 0 or size > len(data):
            return None
        return CqExtUnit(tags_code, store_time, data[_UNIT.size : size])

    def recover(self) -> None:
        """After load: find how far the last file is written.

        Raises BadStoreDirectory where a file between them is missing, or holds no units.
        """
        last = self.files.last
        if last is None:
            return
        for start, _ in self.files.holes():
            raise BadStoreDirectory(self.files.path_of(start), "is missing")
        for mapped in self.files.files[:-1]:
            if self._read(mapped.memory[:UNIT_BYTES_MAX].tobytes()) is None:
                raise BadStoreDirectory(mapped.file.path, "holds bytes that are not units")
        data = last.memory[: last.held]
        position = 0
        while position + _UNIT.size <= len(data):
            unit = self._read(data[position : position + UNIT_BYTES_MAX].tobytes())
            if unit is None:
                break
            position += _UNIT.size + len(unit.filter_bit_map)
        self.files.truncate(last.start + position)

    def delete_before(self, address: int) -> None:
        """Remove files whose units all lie before an address."""
        offset = address - LONG_MIN
        while len(self.files.files) > 1 and self.files.files[0].end <= offset:
            self.files.remove(self.files.files[0])

    def destroy(self) -> None:
        """Remove the units' files."""
        self.files.destroy()


# The Bloom filter bits by which a reader selects the messages of a group.
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
