"""The machine code of kernels: a library of the same sources, or what numba compiles."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from duolog_server.store.kernels import jit, library


class OfDigest:
    """Stands for a library that was found."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __call__(self, module: object) -> "OfDigest":
        return self


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"duolog_server.store.kernels.{library.NAME}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)


def test_a_library_of_the_same_sources_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = OfDigest(library.sources_digest())
    monkeypatch.setattr(library, "KernelLibrary", made)
    assert library.load() is made  # type: ignore[comparison-overlap]


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KernelLibrary", OfDigest("0" * library.DIGEST_DIGITS))
    assert library.load() is None


def test_kernels_are_compiled_if_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"duolog_server.store.kernels.{library.NAME}", None)
    assert library.load() is None


def test_a_library_for_another_numpy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ModuleType:
        raise RuntimeError("module was compiled against NumPy C-API version 0x10")

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert library.load() is None


@pytest.mark.long
def test_compiled_kernels_agree_with_their_plain_twins() -> None:
    """The other tests of this run use the library if there is one."""
    root = Path(__file__).parent.parent.parent
    code = (
        f"import sys; sys.modules['duolog_server.store.kernels.{library.NAME}'] = None\n"
        "import pytest\n"
        "status = pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/store/test_kernels.py'])\n"
        "assert 'numba' in sys.modules\n"
        "sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


COMPILES = f"""
import sys
sys.modules['duolog_server.store.kernels.{library.NAME}'] = None
import numba.core.caching as caching
if sys.argv[1:] == ["uncached"]:
    caching.CacheImpl._locator_classes = []
import duolog_server.store.kernels.crc
"""


def test_a_process_without_stderr_compiles_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_compiling", False)
    monkeypatch.setattr(sys, "stderr", None)
    jit._report_compiling(missed=True)


def test_compiling_is_reported_once(tmp_path: Path) -> None:
    """A node's first start without a library would be silent for half a minute."""
    first, second, uncached = (
        subprocess.run(
            [sys.executable, "-c", COMPILES, *words],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        ).stderr.splitlines()
        for words in ((), (), ("uncached",))
    )
    total = sum(
        source.read_text().count("\n@kernel(")
        for source in Path(library.__file__).parent.glob("*.py")
    )
    assert first == [f"compiling kernels 1 of {total} (once)"]
    assert second == []
    assert uncached[0].startswith(
        f"compiling kernels 1 of {total} (at every start: NUMBA_CACHE_DIR"
    )


def test_fuzzers_run_kernels_as_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KernelLibrary", OfDigest(library.sources_digest()))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert library.load() is None
