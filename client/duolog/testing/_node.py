"""A node in a child process: tests of users, and demo, measurements and fault runs, drive it."""

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import duolog
import duolog.sync
from duolog._checks import checked_number, checked_text
from duolog.testing._forks import NODES, environment
from duolog.testing._lifetime import Lifetime
from duolog.testing._ports import free_endpoint
from duolog.testing._process import POLL_SECONDS, READY_SECONDS, ChildError, ChildProcess
from duolog.testing._server import server_python

# A node reserves the disk of its files as it needs them, of production's sizes by the gigabyte.
INDEX_SLOTS, INDEX_ENTRIES = 50_000, 200_000
SMALL_FILES = (
    "--set", "store.mapped_file_size_commit_log=4194304",
    "--set", "store.mapped_file_size_consume_queue=300000",
    "--set", f"store.max_hash_slot_num={INDEX_SLOTS}",
    "--set", f"store.max_index_num={INDEX_ENTRIES}",
)  # fmt: skip
SKIP_SECONDS_MAX = 10 * 365 * 86_400


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
            try:
                client.admin.node_status()
            except duolog.Retryable as error:
                raise ChildError(
                    f"{self.kind} {self.name} does not answer ({error}); the end of its log:\n"
                    f"{self.log_tail()}"
                ) from error


def settings_flags(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Flags of `duolog node start` for settings such as `{"node.durability": "power"}`."""
    if not isinstance(settings, Mapping):
        raise duolog.BadRequest(f'settings is {settings!r}, not a dict as {{"section.key": value}}')
    return tuple(
        word for key, value in settings.items() for word in ("--set", f"{key}={_text(value)}")
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ForkedNode(SmallNode):
    """A node that ends with this process, and can be killed and paused. Made by `Cluster`."""

    def __init__(self, name: str, *flags: str) -> None:
        super().__init__(Path(name), *flags, name=name)
        self._paused = False
        self._clock: Path | None = None  # has the nanoseconds by which its clocks are ahead

    def place(self, directory: Path) -> None:
        """Have data and log in a directory."""
        self.data, self.log = directory / self.name, directory / f"{self.name}.log"

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until it answers. Raises ChildError, with the end of its log."""
        if self.running:
            raise ChildError(f"{self.kind} {self.name} is running already")
        super().start(user, password)

    @property
    def answering(self) -> bool:
        """Whether it runs and is not paused."""
        return self.running and not self._paused

    def spawn(self) -> "subprocess.Popen[bytes]":
        """The process, just forked."""
        self._paused = False
        forked = NODES.start(self.words(), self.log, clock=self._clock)
        return cast("subprocess.Popen[bytes]", forked)

    def pause(self) -> None:
        """SIGSTOP: it hangs, with its connections open. Raises ChildError where it has ended."""
        self.signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT. Raises ChildError where it has ended."""
        self.signal(signal.SIGCONT)
        self._paused = False


class Node(ForkedNode, Lifetime):
    """A node with an empty store on a free port of this machine, for the time of a test.

    with Node() as node, duolog.sync.Client(node.endpoint) as client:
        client.admin.create_topic("orders", 4)

    `async with` does the same without blocking the event loop. `kill`, `pause` and `resume` make
    it fail; `start` starts a node that was killed or stopped again, with its data. When the block
    ends, or this process ends in any way, the node ends and its data are removed.

    Attributes:
        endpoint: HOST:PORT of its clients.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        name: str = "node",
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """Args:
        settings: of its configuration, such as `{"node.durability": "power"}`.
        name: its name in `cluster status` and in errors.
        ready_seconds: longest start.

        Raises ServerMissing where no server is installed.
        """
        if "/" in checked_text("name", name):
            raise duolog.BadRequest(f"name is {name!r}; it must have no /")
        server_python()
        super().__init__(name, *settings_flags(settings or {}))
        self.ready_seconds = checked_number("ready_seconds", ready_seconds, 0)
        self._lock = threading.RLock()  # a cancelled start still runs in its thread
        self._directory: Path | None = None

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until it answers. Raises ChildError, with the end of its log."""
        with self._lock:
            if self._directory is None:
                self._directory = NODES.directory()
                self.place(self._directory)
                self._clock = self._directory / "clock"
                self._clock.write_bytes(bytes(8))
            super().start(user, password)

    def skip(self, seconds: float) -> None:
        """Put the node's clocks forward: what is due by then happens now. Raises DuologError.

        The clocks of clients stay: a delay that a client gives later counts from its own time.
        """
        checked_number("seconds", seconds, 0, SKIP_SECONDS_MAX)
        if self._clock is None or not self.running:
            raise ChildError(f"{self.kind} {self.name} is not running")
        ahead = int.from_bytes(self._clock.read_bytes(), sys.byteorder) + int(seconds * 1e9)
        with self._clock.open("r+b") as file:
            file.write(ahead.to_bytes(8, sys.byteorder))
        with duolog.sync.Client(self.endpoint) as client:
            client.admin.node_status()  # its event loop looks at its timers

    def close(self) -> None:
        """End the node and remove its data; a later start begins with an empty store.

        In a child that was forked from this process, it does nothing.
        """
        if NODES.inherited:
            return
        with self._lock:
            self.end()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = self._clock = None
