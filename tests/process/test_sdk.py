"""The SDK in programs of its users."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.support import NodeProcess, environment

pytestmark = [pytest.mark.process]

CLIENTS = """
import asyncio, sys
import duolog.sync

async def look(endpoint):
    async with duolog.Client(endpoint) as client:
        assert (await client.pull("T", 0, 0)).count

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
        asyncio.run(look(sys.argv[1]))  # a loop that is closed while others go on
"""


def test_clients_that_are_opened_and_closed_log_nothing(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", CLIENTS, node.endpoint],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        node.stop()
