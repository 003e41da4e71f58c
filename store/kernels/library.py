"""The kernels' library: their machine code, compiled ahead of time.

`tools/kernel_library.py` writes it next to these files. If it exists and was compiled from exactly
these sources, kernels are called from it and numba is not imported: a process starts 0.4 s earlier
and uses 110 MiB less memory, and an image needs neither numba nor LLVM. Otherwise `jit` compiles.
"""

import ctypes
import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

NAME = "_compiled"
# Symbols of the library: the digest of its sources, and the address of the CRC function it calls.
DIGEST_SYMBOL, CRC_SYMBOL = "duolog_kernels_digest", "duolog_crc32_address"
DIGEST_DIGITS = 64


def sources_digest() -> str:
    """SHA-256 over the sources of all kernels, as hex text."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


class KernelLibrary:
    """Machine code of every kernel, under the name MODULE_FUNCTION."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._symbols = ctypes.CDLL(module.__file__)

    @property
    def digest(self) -> str:
        """Digest of the sources that the library was compiled from."""
        text = (ctypes.c_char * DIGEST_DIGITS).in_dll(self._symbols, DIGEST_SYMBOL)
        return text.value.decode()

    def kernel(self, name: str) -> Any:
        """A kernel by its name. Raises AttributeError."""
        return getattr(self._module, name)

    def bind_crc(self, address: int) -> None:
        """Make kernels call this function for CRCs."""
        ctypes.c_void_p.in_dll(self._symbols, CRC_SYMBOL).value = address


def load() -> KernelLibrary | None:
    """The library next to these files; None if it does not exist or is of other sources.

    Also None if kernels are to run as plain Python (NUMBA_DISABLE_JIT).
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    try:
        library = KernelLibrary(importlib.import_module(f"duolog_server.store.kernels.{NAME}"))
    except (ImportError, RuntimeError):  # RuntimeError: it was compiled for another NumPy
        return None
    return library if library.digest == sources_digest() else None
