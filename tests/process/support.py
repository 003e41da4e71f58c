"""Nodes as real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import duolog.sync

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    """The test's environment without duolog's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DUOLOG_")}


class NodeProcess:
    """`duolog node start` in a child process."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.log = data.parent / f"{data.name}.log"
        self.flags = ("--name", data.name, *flags)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start, wait until it answers; seconds that took."""
        began = time.monotonic()
        command = [sys.executable, "-m", "node.cli.main", "node", "start"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--data", str(self.data), "--listen", self.endpoint, *self.flags],
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=environment(),
            )
        while time.monotonic() - began < 60:
            if self.process.poll() is not None:
                raise RuntimeError(f"the node ended:\n{self.log.read_text()[-3000:]}")
            try:
                with socket.create_connection(("127.0.0.1", int(self.endpoint[10:])), 0.2):
                    pass
                with duolog.sync.Client(self.endpoint, timeout=1) as client:
                    client.admin.node_status()
                return time.monotonic() - began
            except (OSError, duolog.DuologError):
                time.sleep(0.01)
        raise RuntimeError("the node does not answer")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(60)


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
