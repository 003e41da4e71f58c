"""Big-endian integers inside byte arrays, the byte order of everything on disk.

Positions are converted to unsigned: a signed index may be negative and then counts from the array's
end, and the test for that at every byte keeps LLVM from merging the bytes into one load or store.
"""

import numpy as np

from duolog_server.store.kernels.jit import U8, inlined

ONE, TWO, THREE = np.uint64(1), np.uint64(2), np.uint64(3)


@inlined
def get16(data: U8, at: int) -> int:
    """Load an unsigned 16-bit integer."""
    low = np.uint64(at)
    return (np.int64(data[low]) << 8) | np.int64(data[low + ONE])


@inlined
def get32(data: U8, at: int) -> int:
    """Load an unsigned 32-bit integer."""
    low = np.uint64(at)
    return (
        (np.int64(data[low]) << 24)
        | (np.int64(data[low + ONE]) << 16)
        | (np.int64(data[low + TWO]) << 8)
        | np.int64(data[low + THREE])
    )


@inlined
def get32s(data: U8, at: int) -> int:
    """Load a signed 32-bit integer."""
    value = get32(data, at)
    if value >= np.int64(0x80000000):
        return value - np.int64(0x100000000)
    return value


@inlined
def get64(data: U8, at: int) -> int:
    """Load a signed 64-bit integer."""
    return (get32(data, at) << 32) | get32(data, at + 4)


@inlined
def put16(data: U8, at: int, value: int) -> None:
    """Store the low 16 bits."""
    low = np.uint64(at)
    data[low] = (value >> 8) & 0xFF
    data[low + ONE] = value & 0xFF


@inlined
def put32(data: U8, at: int, value: int) -> None:
    """Store the low 32 bits."""
    low = np.uint64(at)
    data[low] = (value >> 24) & 0xFF
    data[low + ONE] = (value >> 16) & 0xFF
    data[low + TWO] = (value >> 8) & 0xFF
    data[low + THREE] = value & 0xFF


@inlined
def put64(data: U8, at: int, value: int) -> None:
    """Store 64 bits."""
    put32(data, at, (value >> 32) & 0xFFFFFFFF)
    put32(data, at + 4, value & 0xFFFFFFFF)


@inlined
def same_bytes(data: U8, at: int, other: int, size: int) -> bool:
    """Whether data[at:at + size] and data[other:other + size] hold the same, 8 bytes at a time."""
    k = np.int64(0)
    while k + 8 <= size:
        if get64(data, at + k) != get64(data, other + k):
            return False
        k += 8
    while k < size:
        if data[np.uint64(at + k)] != data[np.uint64(other + k)]:
            return False
        k += 1
    return True
