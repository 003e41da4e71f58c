"""Copying byte ranges inside kernels, with the C library's memcpy.

A loop over bytes takes ten times as long: it is not vectorised, because the compiler cannot know
that the arrays do not overlap.
"""

from duolog_server.store.kernels.jit import COMPILES, U8, inlined

SYMBOL = "duolog_memcpy"

if COMPILES:
    import ctypes

    import llvmlite.binding
    import numpy as np
    from numba import types

    llvmlite.binding.add_symbol(
        SYMBOL, ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value or 0
    )
    _memcpy = types.ExternalFunction(SYMBOL, types.uintp(types.uintp, types.uintp, types.uintp))

    @inlined
    def copy_bytes(target: U8, at: int, source: U8, start: int, end: int) -> int:
        """Copy source[start:end] to target[at:], without overlap; return the position after it."""
        size = end - start
        _memcpy(
            target.ctypes.data + np.uintp(at), source.ctypes.data + np.uintp(start), np.uintp(size)
        )
        return at + size

else:  # kernels as plain Python, as the fuzzers run them

    def copy_bytes(target: U8, at: int, source: U8, start: int, end: int) -> int:
        """Copy source[start:end] to target[at:]; return the position after it."""
        target[at : at + end - start] = source[start:end]
        return at + end - start
