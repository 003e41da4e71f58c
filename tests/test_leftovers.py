"""A test that fails takes its processes with it, and tells their logs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PASSES = "def test_that_follows():\n    gc.collect()\n"
BEGINS = (
    "import gc, pathlib, subprocess, sys\n"
    "import pytest\n"
    "from duolog.testing._process import ChildProcess\n"
    "SLEEPS = [sys.executable, '-ISc', 'import time; print(\"it is here\", flush=True); '\n"
    "          'time.sleep(600)']\n"
    "def begun():\n"
    "    pipe = subprocess.Popen(SLEEPS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
    "    child = ChildProcess('one', SLEEPS, pathlib.Path('one.log').absolute())\n"
    "    child.start()\n"
    "    while 'here' not in child.log_tail():\n"
    "        pass\n"
    "    pathlib.Path('pids').write_text(f'{pipe.pid} {child.pid}')\n"
    "    return pipe, child\n"
)


def run(directory: Path, text: str, *words: str) -> str:
    """What pytest prints of tests, all of whose warnings are errors; none of its ways are ours."""
    (directory / "test_some.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    plugins = ("-p", "no:cacheprovider", "-p", "no:asyncio")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *words, "."]
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def alive(directory: Path) -> list[str]:
    return [pid for pid in (directory / "pids").read_text().split() if Path("/proc", pid).exists()]


@pytest.mark.parametrize(
    "fails",
    [
        "def test_that_fails():\n    kept = begun()\n    assert not kept\n",
        "@pytest.fixture\ndef kept():\n    found = begun()\n    assert not found\n"
        "    yield found\n    found[0].kill()\ndef test_that_fails(kept):\n    pass\n",
    ],
    ids=["test", "fixture"],
)
def test_what_fails_takes_its_processes_with_it_and_tells_their_logs(
    tmp_path: Path, fails: str
) -> None:
    told = run(tmp_path, BEGINS + fails + PASSES, "-p", "tests.leftovers")
    assert "1 failed, 1 passed" in told or "1 passed, 1 error" in told, told
    assert alive(tmp_path) == []
    assert "log of process one" in told
    assert "it is here" in told


def test_what_passes_keeps_the_processes_of_its_fixtures(tmp_path: Path) -> None:
    text = (
        BEGINS
        + "@pytest.fixture(scope='module')\ndef kept():\n    pipe, child = begun()\n"
        + "    yield child\n    child.stop()\n    pipe.kill()\n    pipe.communicate()\n"
        + "def test_that_fails(kept):\n    assert not kept.running\n"
        + "def test_that_passes(kept):\n    assert kept.running\n"
    )
    told = run(tmp_path, text, "-p", "tests.leftovers")
    assert "1 failed, 1 passed" in told, told
    assert "log of process one" in told
    assert alive(tmp_path) == []
