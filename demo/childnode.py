"""A node in a child process: demo, measurements, fault runs and tests drive real nodes with it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import duolog

from demo.ports import free_endpoint

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
LOG_TAIL = 3000


class ChildError(Exception):
    """The child did not start, or is not in the expected state."""


class ChildNode:
    """One node, started and stopped any number of times, with flags of `duolog node start`."""

    ready_seconds = READY_SECONDS  # longest start
    stop_seconds = STOP_SECONDS  # longest clean stop, then SIGKILL

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        """name: the directory's where not given. log: beside the directory where not given."""
        self.name = name or data.name
        self.endpoint = free_endpoint()
        self.data = data
        self.flags = flags
        self.log = log or data.parent / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self.process is not None, "start comes first"
        return self.process.pid

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; it listens when `wait_port` or `wait_ready` returns."""
        command = [sys.executable, "-m", "node.cli.main", "node", "start", "--name", self.name]
        command += ["--data", str(self.data), "--listen", self.endpoint, *self.flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DUOLOG_")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, cwd=self.log.parent
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ChildError where the process has ended."""
        if not self.running:
            raise ChildError(f"node {self.name} is not running")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL: no flush, no goodbye. Raises ChildError where the process has ended."""
        self.signal(signal.SIGKILL)
        assert self.process is not None, "it ran"
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that takes too long; the exit status (0: never started)."""
        if self.process is None:
            return 0
        if self.running:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(self.stop_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait(STOP_SECONDS)

    # -- readiness -----------------------------------------------------------------------------

    def _must_live(self, began: float) -> None:
        if not self.running:
            tail = self.log.read_text(errors="replace")[-LOG_TAIL:]
            raise ChildError(f"node {self.name} exited during startup:\n{tail}")
        if time.monotonic() - began > self.ready_seconds:
            raise ChildError(
                f"node {self.name} was not ready within {self.ready_seconds:g} s; see {self.log}"
            )

    def wait_port(self) -> float:
        """Seconds until the node listens. Raises ChildError."""
        began = time.monotonic()
        host, _, port = self.endpoint.rpartition(":")
        while True:
            self._must_live(began)
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex((host, int(port))) == 0:
                    return time.monotonic() - began
            time.sleep(POLL_SECONDS)

    async def wait_ready(self, client: duolog.Client) -> float:
        """Seconds until the node answers. Raises ChildError."""
        began = time.monotonic()
        # A plain connect first: gRPC would back off while nobody listens yet.
        await asyncio.to_thread(self.wait_port)
        while True:
            self._must_live(began)
            try:
                await client.admin.node_status()
                return time.monotonic() - began
            except duolog.DuologError:
                await asyncio.sleep(POLL_SECONDS)
