"""What a node's process does beside its work, from its start to its stop."""

import subprocess
import sys
from pathlib import Path

import pytest
from duolog.testing._ports import free_endpoint

from tests.process.support import ROOT, environment

pytestmark = pytest.mark.process

# A node that is stopped once all of it has begun.
TOLD = """
import asyncio, os, signal, sys
from duolog_server.serve import server
from duolog_server.node.runtime.config import Config

async def trims():
    print("trim begins", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.Event().wait()
    finally:
        print("trim ends", flush=True)

class Node(server.Node):
    async def stop(self):
        print("the node stops", flush=True)
        await super().stop()

server.keep_trimmed, server.Node = trims, Node
config = Config.model_validate(
    {
        "node": {"data": sys.argv[1], "listen": sys.argv[2]},
        "store": {"mapped_file_size_commit_log": 4 << 20},
    }
)
sys.exit(asyncio.run(server.serve(config)))
"""


def test_memory_is_trimmed_until_the_node_stops(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD, str(tmp_path / "data"), free_endpoint()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    told = [line for line in done.stdout.splitlines() if line.endswith(("begins", "ends", "stops"))]
    assert told == ["trim begins", "trim ends", "the node stops"]
