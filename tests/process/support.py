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


# A node reserves the disk of its files when it makes them: 1.4 GiB with the sizes of production.
INDEX_SLOTS, INDEX_ENTRIES = 50_000, 200_000
SMALL_FILES = (
    "--set", "store.mapped_file_size_commit_log=4194304",
    "--set", "store.mapped_file_size_consume_queue=300000",
    "--set", f"store.max_hash_slot_num={INDEX_SLOTS}",
    "--set", f"store.max_index_num={INDEX_ENTRIES}",
)  # fmt: skip


class NodeProcess(ChildNode):
    """A node with small files that answers once it is started."""

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        super().__init__(data, *SMALL_FILES, *flags, name=name, log=log)

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until it answers, a user where it has users."""
        super().start()
        self.wait_port()
        with duolog.sync.Client(self.endpoint, timeout=60, user=user, password=password) as client:
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
