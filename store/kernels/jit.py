"""Declaration of kernels: a decorator, and the array types used in signatures.

Kernels are compiled at import by numba, with a cache on disk, which takes half a minute of CPU once
and is reported on stderr; or they come from a library that was compiled ahead of time
(`store/kernels/library.py`), and numba is not imported.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from duolog_server.store.kernels import library

F = TypeVar("F", bound=Callable[..., Any])

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

LIBRARY = library.load()
COMPILES = False  # numba compiles kernels here: they are neither a library's nor plain Python
KERNELS: list[tuple[str, Any, Callable[..., Any]]] = []  # name, signature, function of every kernel

# Numba types. The `ro_` ones also take read-only arrays (bytes, read-only mappings).
i64: Any = None
boolean: Any = None
u8s: Any = None
u32s: Any = None
i64s: Any = None
i64_table: Any = None
ro_u8s: Any = None
ro_u32s: Any = None
ro_i64_table: Any = None
ro_i64s: Any = None

if LIBRARY is None:
    import numba
    from numba import types

    COMPILES = not numba.config.DISABLE_JIT
    i64 = types.int64
    boolean = types.boolean
    u8s = types.Array(types.uint8, 1, "C")
    u32s = types.Array(types.uint32, 1, "C")
    i64s = types.Array(types.int64, 1, "C")
    i64_table = types.Array(types.int64, 2, "C")
    ro_u8s = types.Array(types.uint8, 1, "C", readonly=True)
    ro_u32s = types.Array(types.uint32, 1, "C", readonly=True)
    ro_i64_table = types.Array(types.int64, 2, "C", readonly=True)
    ro_i64s = types.Array(types.int64, 1, "C", readonly=True)


def kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Compile a function for these numba types, or take it from the library; it needs no GIL."""

    def found(function: F) -> F:
        name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
        if LIBRARY is not None:
            taken: F = LIBRARY.kernel(name)
            return taken
        signature = result(*arguments)
        KERNELS.append((name, signature, function))
        _report_compiling()
        try:
            compiled = numba.njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:
            # No directory for a cache can be written, as in a home that is not there.
            global _cached
            _cached = False
            compiled = numba.njit(signature, nogil=True)(function)
        if COMPILES and compiled.stats.cache_misses:
            _report_compiling(missed=True)
        of_numba: F = compiled
        return of_numba

    return found


_compiling = False  # the cache lacked a kernel: it lacks those of later modules, too
_cached = True


def _report_compiling(missed: bool = False) -> None:
    """Say on stderr which kernel is compiled, from the first one on that the cache lacks."""
    global _compiling
    if missed == _compiling or sys.stderr is None:
        return
    _compiling = True
    sources = Path(__file__).parent.glob("*.py")
    total = sum(source.read_text().count("\n@kernel(") for source in sources)
    often = "once" if _cached else "at every start: NUMBA_CACHE_DIR names no writable directory"
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"compiling kernels {len(KERNELS)} of {total} ({often})", end=end, file=sys.stderr)


def inlined(function: F) -> F:
    """Compile a helper that kernels call; numba specialises it at each use.

    A helper allocates nothing. Without numba's runtime it does not count references either, which
    took a third of a scan's time: two atomic additions for each array of each call.
    """
    if LIBRARY is not None:
        return function
    compiled: F = numba.njit(inline="never", forceinline=True, nogil=True, _nrt=False)(function)
    return compiled


EMPTY_U8: U8 = np.empty(0, np.uint8)
EMPTY_I64: I64 = np.empty(0, np.int64)
