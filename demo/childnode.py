"""A node in a child process: demo, measurements, fault runs and tests drive real nodes with it."""

import asyncio
import os
import sys
import time
from pathlib import Path

import duolog

from duolog_server.demo.childprocess import POLL_SECONDS, ChildError, ChildProcess
from duolog_server.demo.ports import free_endpoint

__all__ = ["ChildError", "ChildNode"]


class ChildNode(ChildProcess):
    """One node, started and stopped any number of times, with flags of `duolog node start`."""

    kind = "node"
    program = "duolog_server.ops.cli.main"  # the module that is run

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        """name: the directory's where not given. log: beside the directory where not given."""
        name = name or data.name
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DUOLOG_")}
        super().__init__(name, [], log or data.parent / f"{name}.log", environment=environment)
        self.endpoint = free_endpoint()
        self.enter: tuple[str, ...] = ()  # words before its command, such as another network's
        self.data = data
        self.flags = flags

    def command(self) -> list[str]:
        """The command line, with current flags."""
        command = [
            *self.enter,
            sys.executable,
            "-m",
            self.program,
            "node",
            "start",
            "--name",
            self.name,
        ]
        return [*command, "--data", str(self.data), "--listen", self.endpoint, *self.flags]

    # -- readiness -----------------------------------------------------------------------------

    def wait_port(self) -> float:
        """Seconds until the node listens. Raises ChildError."""
        return self.wait_listening(self.endpoint)

    async def wait_ready(self, client: duolog.Client) -> float:
        """Seconds until the node answers. Raises ChildError."""
        began = time.monotonic()
        # A plain connect first: gRPC would back off while the port is not open yet.
        await asyncio.to_thread(self.wait_port)
        while True:
            self.must_live(began)
            try:
                await client.admin.node_status()
                return time.monotonic() - began
            except duolog.DuologError:
                await asyncio.sleep(POLL_SECONDS)
