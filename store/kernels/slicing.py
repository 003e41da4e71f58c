"""CRC-32 by slicing-by-16, compiled here, for systems that have neither ISA-L nor libz.

crcmod generates its tables from the named polynomial (0x104C11DB7, reflected; table k holds the CRC
of a byte followed by k zero bytes).
"""

import crcmod.predefined
import numba
import numpy as np
from numba import carray, types

SLICES = 16
_kept: list[object] = []  # keeps the functions alive whose addresses are in use


def _tables() -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    crc32 = crcmod.predefined.mkCrcFun("crc-32")
    # crcmod's function undoes the final XOR of the start value and repeats it at the end, so the
    # bare table entry of byte b is crc(b, start), where start is the XOR-out of a zero register.
    bare = 0xFFFFFFFF
    tables = np.zeros((SLICES, 256), np.uint32)
    for byte in range(256):
        for k in range(SLICES):
            tables[k, byte] = crc32(bytes([byte]) + bytes(k), bare) ^ bare
    return tables


def portable_address() -> int:
    """Address of the function, which has the signature of zlib's."""
    tables = _tables()

    @numba.cfunc(types.uint64(types.uint64, types.CPointer(types.uint8), types.uint64))
    def crc32_slicing(start: int, pointer: object, size: int) -> int:
        data = carray(pointer, size)
        crc = np.uint32(start) ^ np.uint32(0xFFFFFFFF)
        position = 0
        while position + SLICES <= size:
            first = crc ^ (
                np.uint32(data[position])
                | (np.uint32(data[position + 1]) << np.uint32(8))
                | (np.uint32(data[position + 2]) << np.uint32(16))
                | (np.uint32(data[position + 3]) << np.uint32(24))
            )
            crc = (
                tables[15, first & np.uint32(0xFF)]
                ^ tables[14, (first >> np.uint32(8)) & np.uint32(0xFF)]
                ^ tables[13, (first >> np.uint32(16)) & np.uint32(0xFF)]
                ^ tables[12, first >> np.uint32(24)]
            )
            for k in range(4, SLICES):
                crc ^= tables[15 - k, data[position + k]]
            position += SLICES
        while position < size:
            crc = tables[0, (crc ^ np.uint32(data[position])) & np.uint32(0xFF)] ^ (
                crc >> np.uint32(8)
            )
            position += 1
        return np.uint64(crc ^ np.uint32(0xFFFFFFFF))

    _kept.append(crc32_slicing)
    return int(crc32_slicing.address)
