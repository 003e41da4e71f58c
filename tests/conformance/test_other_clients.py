"""Apache's clients for Java, Go and Node.js: a program of each sends every kind of message and
consumes it again."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import SMALL, make_topics
from tests.process.support import NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

PROGRAMS = Path(__file__).parent / "programs"
JAVA_CLIENT = "org.apache.rocketmq:rocketmq-client-java:5.1.0"
GO_CLIENT = "github.com/apache/rocketmq-clients/golang/v5@v5.1.4"
NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
FIFO = [f"fifo{k}" for k in range(5)]


def need(*tools: str) -> None:
    """Skip where a language is not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def fetch(*command: str, cwd: Path) -> None:
    """Get a client from its registry."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def outcome(*command: str, **more: str) -> Any:
    """What a program printed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **more},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", "transactions.timeout_ms=1000", "--set", "transactions.check_interval_ms=1000",
    )  # fmt: skip
    node.start()
    make_topics(node.endpoint)
    yield node.endpoint
    assert node.stop() == 0


NORMAL = ["normal0", "normal1", "normal2"]
ALL = ["asked", "async", "committed", "delayed", *NORMAL]


def test_the_java_client(endpoint: str, tmp_path: Path) -> None:
    """Send, async send, FIFO with a failing message, delay, transactions with checker, SQL92."""
    need("java", "mvn")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    fetch("mvn", "-q", copy, f"-Dartifact={JAVA_CLIENT}", "-DoutputDirectory=lib", cwd=tmp_path)
    (jar,) = (tmp_path / "lib").glob("*.jar")
    found = outcome(
        "java",
        f"-Duser.home={tmp_path}",
        "-cp",
        str(jar),
        str(PROGRAMS / "RoundTrip.java"),
        endpoint,
    )
    assert found["received"] == ALL
    assert list(dict.fromkeys(found["ordered"])) == FIFO
    assert found["ordered"].count("fifo2") == 2


def test_the_go_client(endpoint: str, tmp_path: Path) -> None:
    """Send, async send, FIFO, delay, transactions with checker, simple consumers."""
    need("go")
    shutil.copy(PROGRAMS / "roundtrip.go", tmp_path / "main.go")
    fetch("go", "mod", "init", "conformance", cwd=tmp_path)
    fetch("go", "get", GO_CLIENT, cwd=tmp_path)
    fetch("go", "build", "-o", "roundtrip", ".", cwd=tmp_path)
    assert outcome(str(tmp_path / "roundtrip"), endpoint) == {"received": ALL, "ordered": FIFO}


def test_the_nodejs_client(endpoint: str, tmp_path: Path) -> None:
    """Send, FIFO, delay, transactions, simple consumers (it polls queue 0 only)."""
    need("node", "npm")
    (tmp_path / "package.json").write_text('{"private": true}')
    fetch("npm", "install", "--silent", "--no-audit", "--no-fund", NODE_CLIENT, cwd=tmp_path)
    program = str(PROGRAMS / "round_trip.mjs")
    found = outcome("node", program, endpoint, CLIENT_HOME=str(tmp_path))
    assert found == {"received": ["committed", "delayed", *NORMAL], "ordered": FIFO}
