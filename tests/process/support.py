"""Nodes as real processes."""

import os
import subprocess
import sys
from pathlib import Path

import duolog.sync

from demo.childnode import ChildNode

ROOT = Path(__file__).parent.parent.parent


def environment() -> dict[str, str]:
    """The test's environment without duolog's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DUOLOG_")}


class NodeProcess(ChildNode):
    """A node that answers once it is started."""

    def start(self) -> None:
        """Start, and wait until it answers."""
        super().start()
        self.wait_port()
        with duolog.sync.Client(self.endpoint, timeout=60) as client:
            client.admin.node_status()


def run_cli(
    *arguments: str, stdin: str = "", timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """Run `duolog ...`."""
    return subprocess.run(
        [sys.executable, "-m", "node.cli.main", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
