"""How a kernel is declared: one decorator, and the array types the signatures are written in."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

# Numba types. The `ro_` ones also take read-only arrays (bytes, read-only mappings).
i64 = types.int64
boolean = types.boolean
u8s = types.Array(types.uint8, 1, "C")
i64s = types.Array(types.int64, 1, "C")
i64_table = types.Array(types.int64, 2, "C")
ro_u8s = types.Array(types.uint8, 1, "C", readonly=True)
ro_u32s = types.Array(types.uint32, 1, "C", readonly=True)
ro_i64_table = types.Array(types.int64, 2, "C", readonly=True)
ro_i64s = types.Array(types.int64, 1, "C", readonly=True)


def kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Compile a function for these numba types, at import, cached on disk, without the GIL."""
    signature = result(*arguments)

    def compile_it(function: F) -> F:
        compiled: F = numba.njit(signature, cache=True, nogil=True)(function)
        return compiled

    return compile_it


def inlined(function: F) -> F:
    """Compile a helper that kernels call; it is specialised where it is used."""
    compiled: F = numba.njit(inline="never", nogil=True)(function)
    return compiled


EMPTY_U8: U8 = np.empty(0, np.uint8)
EMPTY_I64: I64 = np.empty(0, np.int64)
