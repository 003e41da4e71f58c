"""CRC-32C (Castagnoli) of frames and of the small files of ha/.

ISA-L computes it with the processor's own instructions, tens of bytes per nanosecond. crcmod takes
a byte at a time: it is for what is short, for which a call into ISA-L costs more.
"""

import contextlib
import ctypes
from collections.abc import Callable

import crcmod.predefined
import numpy as np

from duolog_server.store.kernels.jit import U8

SHORT_BYTES = 1024  # a call into ISA-L takes some µs, crcmod 3 to 4 ns a byte
_ALL = 0xFFFFFFFF
_short = crcmod.predefined.mkCrcFun("crc-32c")


def _isal() -> Callable[[int, int, int], int] | None:
    """ISA-L's function (address, size, CRC so far); None if it is missing or computes another CRC.

    Unlike its other CRCs, it inverts nothing: neither the CRC it continues nor the one it returns.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        from isal import isal_zlib

        found = ctypes.CDLL(isal_zlib.__file__).crc32_iscsi
        found.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
        found.restype = ctypes.c_uint32
        sample = bytes(range(256)) * 5
        address = np.frombuffer(sample, np.uint8).ctypes.data
        if all(found(address, k, _ALL) ^ _ALL == _short(sample[:k]) for k in range(0, 1280, 71)):
            return found
    return None


_long = _isal()
QUICK = _long is not None  # it may be computed of bulk data


def crc32c(data: bytes | U8, crc: int = 0) -> int:
    """CRC-32C of bytes, or of those behind others whose CRC-32C is known."""
    if _long is None or len(data) < SHORT_BYTES:
        return int(_short(data if isinstance(data, bytes) else data.tobytes(), crc))
    found = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return _long(found.__array_interface__["data"][0], len(found), crc ^ _ALL) ^ _ALL
