"""The SDK in programs of its users."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.support import NodeProcess, environment

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

CLIENTS = """
import os, sys
import duolog.sync

for turn in range(30):
    with duolog.sync.Client(sys.argv[1], timeout=30) as client:
        if not turn:
            client.admin.create_topic("T", 2)
        with client.producer() as producer:
            for _ in range(4):
                producer.send_batch("T", [b"x" * 1000] * 3000)
    try:
        client.pull("T", 0, 0)
        sys.exit("a closed client answers")
    except duolog.Unavailable:
        pass
    with duolog.sync.Client(sys.argv[1]) as client:
        assert client.pull("T", turn % 2, 0).count
"""


def test_clients_that_come_and_go_say_nothing(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", CLIENTS, node.endpoint],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment(),
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        node.stop()
