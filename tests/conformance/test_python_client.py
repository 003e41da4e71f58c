"""Apache's Python client: the tests of isolated/python_client.py.

They run in a process of their own: what the client leaves behind in gRPC ends the process when
it is collected, some tests later.
"""

import ast
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.long]

FILE = Path(__file__).parent / "isolated" / "python_client.py"
ROOT = Path(__file__).parent.parent.parent
NAMES = [
    node.name
    for node in ast.parse(FILE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]
SHARES = 2  # processes at the same time: most tests wait for a poll, or for a lease
SECONDS_MAX = 420.0


def is_complete(report: Path) -> bool:
    """Whether all of it is written."""
    return report.exists() and report.read_bytes().rstrip().endswith(b"</testsuites>")


def outcomes(directory: Path, names: list[str]) -> dict[str, str]:
    """What each of these tests came to: nothing where it passed, else why not."""
    directory.mkdir()
    report, log = directory / "report.xml", directory / "log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
                f"--junitxml={report}", f"--basetemp={directory / 'tmp'}",
                *(f"{FILE}::{name}" for name in names),
            ],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )  # fmt: skip
        until = time.monotonic() + SECONDS_MAX
        while not is_complete(report) and child.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        child.kill()  # all that it started has ended, but threads of the client may linger
        child.wait()
    if not is_complete(report):
        pytest.fail(log.read_text(errors="replace")[-3000:])
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problems = [part.get("message", "") + (part.text or "") for part in case]
        found[case.get("name", "")] = "\n".join(problems)[-3000:]
    return found


def test_every_behaviour_of_the_python_client(tmp_path: Path) -> None:
    shares = [NAMES[first::SHARES] for first in range(SHARES)]
    with ThreadPoolExecutor(SHARES) as pool:
        parts = pool.map(outcomes, [tmp_path / str(share) for share in range(SHARES)], shares)
        found = {name: problem for part in parts for name, problem in part.items()}
    assert sorted(found) == sorted(NAMES)
    failed = {name: problem for name, problem in found.items() if problem}
    if failed:
        pytest.fail("\n\n".join(f"{name}:\n{text}" for name, text in failed.items()), pytrace=False)
