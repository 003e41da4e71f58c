"""Make the kernels' library (store/kernels/_compiled.*.so): python tools/kernel_library.py [CPU].

Needs numba, a C and a C++ compiler and Python's headers; what it makes needs none of them. CPU: as
LLVM names it (x86-64-v2, ...); any of this architecture where it is left out.
"""

import contextlib
import importlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from compile_kernels import KERNELS as FOLDER
from compile_kernels import MODULES

SHIM = """
#include <stdint.h>
#include <string.h>
/* What kernels call in C. The CRC's address is set when the library is loaded. */
typedef uint64_t (*crc32_function)(uint64_t, uintptr_t, uint64_t);
crc32_function {crc_symbol} = 0;
const char {digest_symbol}[] = "{digest}";
uint64_t duolog_crc32(uint64_t crc, uintptr_t data, uint64_t size) {{
  return {crc_symbol}(crc, data, size);
}}
uintptr_t duolog_memcpy(uintptr_t target, uintptr_t source, uintptr_t size) {{
  return (uintptr_t)memcpy((void *)target, (const void *)source, size);
}}
"""


@contextlib.contextmanager
def without_gil() -> Iterator[None]:
    """Wrappers that release the GIL, which numba's compiler of modules has no option for."""
    from numba.pycc import compiler

    made = compiler.Flags

    def flags() -> Any:
        found = made()
        found.release_gil = True
        return found

    with mock.patch.object(compiler, "Flags", flags):
        yield


def main(cpu: str = "") -> None:
    """Compile every kernel into one extension module, beside their sources."""
    sys.path.insert(0, str(FOLDER.parent.parent))
    for old in FOLDER.glob("_compiled.*"):
        old.unlink()
    warnings.simplefilter("ignore")  # numba says that it will move this part to another package
    for module in MODULES:
        importlib.import_module(f"store.kernels.{module}")
    from numba.pycc import CC

    from store.kernels import jit, library

    with tempfile.TemporaryDirectory() as scratch, without_gil():
        shim = Path(scratch) / "shim.c"
        shim.write_text(
            SHIM.format(
                crc_symbol=library.CRC_SYMBOL,
                digest_symbol=library.DIGEST_SYMBOL,
                digest=library.sources_digest(),
            )
        )

        class Library(CC):  # type: ignore[misc]
            """One with the shim in it."""

            _mixin_sources: ClassVar[list[str]] = [*CC._mixin_sources, str(shim)]

        maker = Library(library.NAME, jit)
        maker.output_dir = str(FOLDER)
        maker.target_cpu = cpu
        for name, signature, function in jit.KERNELS:
            maker.export(name, signature)(function)
        maker.compile()
    print(f"made {FOLDER / maker.output_file}: {len(jit.KERNELS)} kernels", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
