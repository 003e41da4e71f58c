"""A node in a child process: tests of users, and demo, measurements and fault runs, drive it."""

import asyncio
import time
from pathlib import Path

import duolog
import duolog.sync
from duolog.testing._forks import environment
from duolog.testing._ports import free_endpoint
from duolog.testing._process import POLL_SECONDS, ChildProcess
from duolog.testing._server import server_python

# A node reserves the disk of its files when it makes them: 1.4 GiB with the sizes of production.
INDEX_SLOTS, INDEX_ENTRIES = 50_000, 200_000
SMALL_FILES = (
    "--set", "store.mapped_file_size_commit_log=4194304",
    "--set", "store.mapped_file_size_consume_queue=300000",
    "--set", f"store.max_hash_slot_num={INDEX_SLOTS}",
    "--set", f"store.max_index_num={INDEX_ENTRIES}",
)  # fmt: skip


class ChildNode(ChildProcess):
    """One node, started and stopped any number of times, with flags of `duolog node start`."""

    kind = "node"
    program = "duolog_server.ops.cli.main"  # the module that is run

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        """name: the directory's where not given. log: beside the directory where not given."""
        name = name or data.name
        log = log or data.parent / f"{name}.log"
        super().__init__(name, [], log, environment=environment())
        self.endpoint = free_endpoint()
        self.enter: tuple[str, ...] = ()  # words before its command, such as another network's
        self.data = data
        self.flags = flags

    def command(self) -> list[str]:
        """The command line, with current flags."""
        return [*self.enter, server_python(), "-m", self.program, *self.words()]

    def words(self) -> list[str]:
        """The words of `duolog` in it."""
        words = ["node", "start", "--name", self.name, "--data", str(self.data)]
        return [*words, "--listen", self.endpoint, *self.flags]

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


class SmallNode(ChildNode):
    """A node with small files that answers once it is started."""

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        super().__init__(data, *SMALL_FILES, *flags, name=name, log=log)

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until it answers, a user where it has users. Raises ChildError."""
        super().start()
        self.wait_port()
        with duolog.sync.Client(
            self.endpoint, timeout=self.ready_seconds, user=user, password=password
        ) as client:
            client.admin.node_status()
