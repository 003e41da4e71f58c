"""Which machine code the kernels run: a library of these very sources, or what numba compiles."""

import sys
from types import ModuleType

import pytest

from store.kernels import library


class OfDigest:
    """Stands for a library that was found."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __call__(self, module: object) -> "OfDigest":
        return self


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"store.kernels.{library.NAME}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)


def test_a_library_of_these_sources_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = OfDigest(library.sources_digest())
    monkeypatch.setattr(library, "KernelLibrary", made)
    assert library.load() is made  # type: ignore[comparison-overlap]


def test_a_library_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KernelLibrary", OfDigest("0" * library.DIGEST_DIGITS))
    assert library.load() is None


def test_where_there_is_no_library_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"store.kernels.{library.NAME}", None)
    assert library.load() is None


def test_fuzzers_run_kernels_as_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KernelLibrary", OfDigest(library.sources_digest()))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert library.load() is None
