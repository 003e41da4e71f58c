"""Big-endian integers inside byte arrays: everything on disk is stored this way."""

import numpy as np

from store.kernels.jit import U8, inlined


@inlined
def get16(data: U8, at: int) -> int:
    """Unsigned 16 bits."""
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@inlined
def get32(data: U8, at: int) -> int:
    """Unsigned 32 bits."""
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@inlined
def get32s(data: U8, at: int) -> int:
    """Signed 32 bits."""
    value = get32(data, at)
    if value >= np.int64(0x80000000):
        return value - np.int64(0x100000000)
    return value


@inlined
def get64(data: U8, at: int) -> int:
    """Signed 64 bits."""
    return (get32(data, at) << 32) | get32(data, at + 4)


@inlined
def put16(data: U8, at: int, value: int) -> None:
    """Store the low 16 bits."""
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@inlined
def put32(data: U8, at: int, value: int) -> None:
    """Store the low 32 bits."""
    data[at] = (value >> 24) & 0xFF
    data[at + 1] = (value >> 16) & 0xFF
    data[at + 2] = (value >> 8) & 0xFF
    data[at + 3] = value & 0xFF


@inlined
def put64(data: U8, at: int, value: int) -> None:
    """Store 64 bits."""
    put32(data, at, (value >> 32) & 0xFFFFFFFF)
    put32(data, at + 4, value & 0xFFFFFFFF)
