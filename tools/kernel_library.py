"""Make the kernels' library (store/kernels/_compiled.*.so): python tools/kernel_library.py.

Needs numba, a C and a C++ compiler and Python's headers; what it makes needs none of them, and runs
on any CPU of this architecture. With --where-possible a machine that lacks one of them keeps what
numba compiles: a node is then as fast, but starts later and takes more memory.
"""

import argparse
import contextlib
import importlib
import shutil
import sys
import sysconfig
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
#if defined(__x86_64__)
/* Code for AVX (ISA-L's, NumPy's) may leave the registers' upper halves in use, which slows down
   all code for SSE that runs afterwards: the interpreter, by a tenth. Kernels that numba compiles
   for this very CPU clear them; those here are for any CPU and would not. */
__attribute__((target("avx"))) static uint64_t clean_crc32(
    uint64_t crc, uintptr_t data, uint64_t size) {{
  uint64_t found = {crc_symbol}(crc, data, size);
  __builtin_ia32_vzeroupper();
  return found;
}}
uint64_t duolog_crc32(uint64_t crc, uintptr_t data, uint64_t size) {{
  return __builtin_cpu_supports("avx") ? clean_crc32(crc, data, size)
                                       : {crc_symbol}(crc, data, size);
}}
#else
uint64_t duolog_crc32(uint64_t crc, uintptr_t data, uint64_t size) {{
  return {crc_symbol}(crc, data, size);
}}
#endif
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


def lacking() -> str:
    """What this machine lacks for a library, as Debian names it; empty for nothing."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    needs = {
        "gcc": any(map(shutil.which, ("cc", "gcc", "clang"))),
        "g++": any(map(shutil.which, ("c++", "g++", "clang++"))),
        "python3-dev": headers.exists(),
    }
    return " ".join(name for name, there in needs.items() if not there)


def make() -> None:
    """Compile every kernel into one extension module, beside their sources.

    An older one stays until the new one takes its place; nodes that run keep what they opened.
    """
    sys.path.insert(0, str(FOLDER.parent.parent.parent))
    # Kernels that come from an older library are functions without a source to compile.
    sys.modules["duolog_server.store.kernels._compiled"] = None  # type: ignore[assignment]
    warnings.simplefilter("ignore")  # numba says that it will move this part to another package
    for module in MODULES:
        importlib.import_module(f"duolog_server.store.kernels.{module}")
    from numba.pycc import CC

    from duolog_server.store.kernels import jit, library

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
        maker.output_dir = scratch
        maker.target_cpu = ""
        for name, signature, function in jit.KERNELS:
            maker.export(name, signature)(function)
        maker.compile()
        # Beside its place first, maybe on another file system: then it appears as a whole.
        target = FOLDER / maker.output_file
        beside = Path(shutil.copy(Path(scratch) / maker.output_file, f"{target}.new"))
        beside.replace(target)
    print(f"made {target}: {len(jit.KERNELS)} kernels", file=sys.stderr)


def main() -> None:
    """Make it; --where-possible: or say why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where-possible", action="store_true")
    missing = lacking() if parser.parse_args().where_possible else ""
    if missing:
        print(
            "no library of kernels: a node starts about 0.5 s later and takes 100 MiB more "
            f"(apt-get install {missing}, then make venv)",
            file=sys.stderr,
        )
        return
    make()


if __name__ == "__main__":
    main()
