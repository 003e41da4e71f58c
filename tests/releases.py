"""Trees of earlier releases, from which tests start nodes beside today's.

A release is named by its commit, since tags do not travel to every clone. Its tree is in
build/releases, made once, with the packages of today's environment and compiled kernels of its own.
"""

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KERNELS = Path("store/kernels")
BUILD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Release:
    """A commit, and the module that is `duolog` there; any other module is today's."""

    commit: str
    program: str


RELEASES = {"v0.1.0": Release("d32f1c315707e3b293d01d84fc69f42d811a6285", "node.cli.main")}


def environment_of(release: str) -> dict[str, str]:
    """Variables by which processes run the programs of a release; fails where it is not here."""
    return {"PYTHONPATH": _path(_tree_of(release))}


def _tree_of(release: str) -> Path:
    """The directory of a release, which one process at a time makes."""
    commit = RELEASES[release].commit
    trees = ROOT / "build" / "releases"
    trees.mkdir(parents=True, exist_ok=True)
    tree = trees / f"{release}-{commit[:12]}"
    with (trees / f"{tree.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            unfinished = trees / f"{tree.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            _extract(release, commit, unfinished)
            _compile(unfinished)
            # Every start would compile all modules otherwise, where no process may write them.
            words = ("-m", "compileall", "-q", "-s", str(unfinished), "-p", str(tree))
            _run(unfinished, *words, "client/duolog", "store", "ha", "node")
            unfinished.rename(tree)
    return tree


def _extract(release: str, commit: str, tree: Path) -> None:
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.fail(
            f"cannot start nodes of {release}: this clone lacks its commit {commit} "
            f"({done.stderr.decode(errors='replace').strip()}); "
            "fetch it: git fetch --unshallow --tags"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(tree, filter="data")


def _compile(tree: Path) -> None:
    """Give it compiled kernels: today's where the sources are the same."""
    if _sources(tree) == _sources(ROOT):
        shutil.rmtree(tree / KERNELS)
        shutil.copytree(ROOT / KERNELS, tree / KERNELS)  # numba's cache goes by times of files
        return
    _run(tree, "tools/compile_kernels.py")
    _run(tree, "tools/kernel_library.py", "--where-possible")


def _run(tree: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": _path(tree)},
        capture_output=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr.decode(errors="replace")[-2000:])


def _path(tree: Path) -> str:
    return os.pathsep.join((str(tree), str(tree / "client")))


def _sources(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tree / KERNELS).glob("*.py")}
