"""The kernels' library: their machine code, made ahead of time; numba is not imported then.

`tools/kernel_library.py` makes it beside these files. Where it is there and was made of these very
sources, kernels are called from it: a process starts 0.4 s earlier and takes 110 MiB less, and an
image needs neither numba nor LLVM. Elsewhere `jit` compiles.
"""

import ctypes
import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

NAME = "_compiled"
# Symbols of the library: the digest of its sources, and the address of the CRC that it calls.
DIGEST_SYMBOL, CRC_SYMBOL = "duolog_kernels_digest", "duolog_crc32_address"
DIGEST_DIGITS = 64


def sources_digest() -> str:
    """SHA-256 over the sources of all kernels, as hex text."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


class KernelLibrary:
    """Machine code of every kernel, under MODULE_FUNCTION."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._symbols = ctypes.CDLL(module.__file__)

    @property
    def digest(self) -> str:
        """Of the sources that it was made of."""
        text = (ctypes.c_char * DIGEST_DIGITS).in_dll(self._symbols, DIGEST_SYMBOL)
        return text.value.decode()

    def kernel(self, name: str) -> Any:
        """One kernel. Raises AttributeError."""
        return getattr(self._module, name)

    def bind_crc(self, address: int) -> None:
        """Let kernels call this function for CRCs."""
        ctypes.c_void_p.in_dll(self._symbols, CRC_SYMBOL).value = address


def load() -> KernelLibrary | None:
    """The library beside these files; None where there is none, or one of other sources.

    None as well where kernels shall run as plain Python (NUMBA_DISABLE_JIT).
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    try:
        library = KernelLibrary(importlib.import_module(f"store.kernels.{NAME}"))
    except (ImportError, RuntimeError):  # the latter: it was made for another NumPy
        return None
    return library if library.digest == sources_digest() else None
