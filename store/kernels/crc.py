"""CRC-32 of a byte range (zlib's polynomial), for kernels.

Kernels call a C function through a symbol that is bound when this module is imported: ISA-L's CRC
from the `isal` package (carry-less multiplication, ten times as fast as zlib's), else libz's, else
a function compiled here (`slicing`). A record stores the CRC `& 0x7FFFFFFF`.
"""

import contextlib
import ctypes
import ctypes.util
import zlib

import numpy as np

from duolog_server.store.kernels.jit import COMPILES, LIBRARY, U8, i64, inlined, kernel, ro_u8s

SYMBOL = "duolog_crc32"


def isal_address() -> int:
    """Address of ISA-L's crc32; 0 if it is not installed, or computes something else."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        from isal import isal_zlib

        crc32_gzip_refl = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
        crc32_gzip_refl.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
        crc32_gzip_refl.restype = ctypes.c_uint32
        sample = bytes(range(256)) * 5
        if all(crc32_gzip_refl(0, sample, k) == zlib.crc32(sample[:k]) for k in range(0, 1280, 71)):
            return ctypes.cast(crc32_gzip_refl, ctypes.c_void_p).value or 0
    return 0


def zlib_address() -> int:
    """Address of libz's crc32; 0 if there is no libz."""
    for name in ("libz.so.1", ctypes.util.find_library("z") or "libz.so"):
        try:
            library = ctypes.CDLL(name)
            return ctypes.cast(library.crc32, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


def portable_address() -> int:
    """Address of the function that is compiled here."""
    from duolog_server.store.kernels import slicing

    return slicing.portable_address()


def crc32_address() -> int:
    """Address of the fastest CRC available. Raises ImportError if numba is needed and missing."""
    return isal_address() or zlib_address() or portable_address()


if LIBRARY is not None:
    LIBRARY.bind_crc(crc32_address())

if COMPILES:
    import llvmlite.binding
    from numba import types

    llvmlite.binding.add_symbol(SYMBOL, crc32_address())
    # ISA-L takes a 64-bit size and returns 32 bits, zlib the other way round: this fits both.
    _crc32 = types.ExternalFunction(SYMBOL, types.uint64(types.uint64, types.uintp, types.uint64))

    @inlined
    def crc32_range(data: U8, start: int, end: int) -> int:
        """CRC-32 of data[start:end], all 32 bits."""
        address = data.ctypes.data + np.uintp(start)
        crc = _crc32(np.uint64(0), address, np.uint64(end - start))
        return np.int64(crc) & np.int64(0xFFFFFFFF)

else:  # kernels as plain Python, as the fuzzers run them

    def crc32_range(data: U8, start: int, end: int) -> int:
        """CRC-32 of data[start:end], all 32 bits."""
        return zlib.crc32(data[start:end].tobytes())


@kernel(i64, ro_u8s, i64, i64)
def crc32(data: U8, start: int, end: int) -> int:
    """CRC-32 (zlib) of data[start:end]. The caller has checked the bounds."""
    return crc32_range(data, start, end)
