"""The program of a node that others wait for is loaded before it starts."""

import os
import subprocess
import sys
from pathlib import Path

from duolog.testing._ports import free_endpoint

ROOT = Path(__file__).parents[2]
STARTS = """
import asyncio, sys
from duolog_server.node.runtime.config import load
from duolog_server.serve.server import Node, load_program

async def main():
    where, remoting = sys.argv[1:]
    tree = {"node": {"data": where, "listen": "127.0.0.1:0"}, "remoting": {"listen": remoting}}
    node = Node(load(None, tree)[0])
    before = set(sys.modules)
    load_program(node.config)
    loaded = set(sys.modules)
    await node.start()
    await node.stop()
    for name in sorted(set(sys.modules) - loaded):
        print("start", name)
    print("before", len(loaded - before))

asyncio.run(main())
"""


def test_a_start_loads_no_protocol_that_is_not_loaded_already(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path / "data"), free_endpoint()],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in found.stdout.splitlines()]
    late = [
        row[1] for row in lines if row[0] == "start" and row[1].startswith("duolog_server.node.r")
    ]
    assert late == [], "remoting, rocketmq and what they need"
    assert int(next(row[1] for row in lines if row[0] == "before")) > 10
