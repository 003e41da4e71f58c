"""Copying byte ranges inside kernels, with the C library's memcpy, and fetching them ahead.

A loop over bytes takes ten times as long: it is not vectorised, because the compiler cannot know
that the arrays do not overlap.

A batch and its records are more than a core's caches hold: kernels that go over them fetch what
comes next, and do not wait for it.
"""

from typing import Any

from duolog_server.store.kernels.jit import COMPILES, U8, inlined

SYMBOL = "duolog_memcpy"
LINE = 64  # bytes of a cache line
AHEAD = 2048  # bytes from what is used to what is fetched: the processor itself ends at a page
ROWS_AHEAD = 16  # records between the row in use and the one fetched

if COMPILES:
    import ctypes

    import llvmlite.binding
    import numpy as np
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

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

    def _fetching(_: Any, address: Any) -> Any:
        """The processor's instruction; of an address that is not mapped, it does nothing."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
            call = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
            # Read or written soon, in all caches, as data.
            builder.call(call, [pointer, *(number(value) for value in (0, 3, 1))])
            return context.get_dummy_value()

        return types.void(address), generate

    _fetch: Any = intrinsic(_fetching)

    @inlined
    def fetch(data: U8, at: int) -> None:
        """Have the cache line at a position soon; one past the array's end does no harm."""
        _fetch(data.ctypes.data + np.uintp(at))

    @inlined
    def fetch_ahead(data: U8, at: int, size: int) -> None:
        """Fetch the bytes that lie AHEAD of data[at:at + size].

        None for a longer range: a scan reads its ends only, and a copy reads it in order.
        """
        if size > AHEAD:
            return
        first = data.ctypes.data + np.uintp(at + AHEAD)
        for line in range(0, size, LINE):
            _fetch(first + np.uintp(line))

else:  # kernels as plain Python, as the fuzzers run them

    def copy_bytes(target: U8, at: int, source: U8, start: int, end: int) -> int:
        """Copy source[start:end] to target[at:]; return the position after it."""
        target[at : at + end - start] = source[start:end]
        return at + end - start

    def fetch(data: U8, at: int) -> None:
        """Do nothing: plain Python cannot prefetch."""

    def fetch_ahead(data: U8, at: int, size: int) -> None:
        """Do nothing: plain Python cannot prefetch."""
