"""Starts a peer's servers, runs clients against them, and ends all of it, whatever happens.

Every wait has a deadline, and ends at once where a process that must live has died.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._process import ChildError, ChildProcess

from bench.peers.peer import Began, ClientProgram, Measured, Peer, PeerFailed, Server, Servers, Work

ROOT = Path(__file__).parent.parent.parent
DEADLINE_SECONDS = 90.0  # beside what a client is asked to measure
READ_SECONDS = 0.002  # interval at which the output of a client is read
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """A client's run, and the processor seconds of servers and client while it measured."""

    measured: Measured
    server_cpu: float
    client_cpu: float


class Serving:
    """The started servers of one peer; for one thread."""

    def __init__(self, root: Path, servers: Servers) -> None:
        self._root = root
        self._servers = servers
        self._clients = 0

    def run(self, work: Work) -> Run:
        """Run a client to its end. Raises PeerFailed."""
        with self.client(work) as client:
            client.until_began()
            before, mine = self.cpu_seconds(), cpu_seconds(client.process)
            measured = client.until_measured()
            # A client that has ended has no processor time left to read.
            after = max(client.cpu_seen, mine)
            return Run(measured, self.cpu_seconds() - before, after - mine)

    @contextmanager
    def client(self, work: Work) -> Iterator["Client"]:
        """A client that was started. Raises PeerFailed."""
        program = self._servers.client(work)
        self._clients += 1
        client = Client(self._root, f"client-{self._clients}", program, self)
        client.deadline = time.monotonic() + DEADLINE_SECONDS + work.seconds + work.warm_seconds
        try:
            client.process.start()
            yield client
        except OSError as error:
            raise PeerFailed(f"cannot start {program.command[0]}: {error}") from error
        finally:
            client.process.stop()

    def cpu_seconds(self) -> float:
        """Of all servers, since their start."""
        return sum(cpu_seconds(process) for process in self._servers.processes)

    def must_live(self) -> None:
        """Raises PeerFailed where a server has ended."""
        for process in self._servers.processes:
            if process.process is not None and not process.running:
                code = process.process.returncode
                raise PeerFailed(f"server {process.name} died ({code}):\n{process.log_tail()}")

    def kill(self) -> None:
        """SIGKILL to the server that holds the log."""
        try:
            self._servers.processes[-1].kill()
        except ChildError as error:
            raise PeerFailed(str(error)) from error
        self._servers.processes[-1].process = None

    def restart(self) -> None:
        """Start it again."""
        self._servers.processes[-1].start()


class Client:
    """A client process, and what it has said so far."""

    def __init__(self, root: Path, name: str, program: ClientProgram, serving: Serving) -> None:
        self.output = root / f"{name}.out"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = ChildProcess(
            name, program.command, root / f"{name}.log", output=self.output, environment=environment
        )
        self.process.kind = "client"
        self.process.stop_seconds = 5.0
        self.deadline = 0.0
        self.cpu_seen = 0.0
        self._read = program.read
        self._serving = serving
        self._seen = 0  # bytes of its output
        self._measured: Measured | None = None

    def until_began(self) -> None:
        """Wait until it measures; a short run says only what it measured. Raises PeerFailed."""
        found = self._said()
        if isinstance(found, Measured):
            self._measured = found

    def until_measured(self) -> Measured:
        """Wait for its figures. Raises PeerFailed."""
        while self._measured is None:
            found = self._said()
            if isinstance(found, Measured):
                self._measured = found
        return self._measured

    def _said(self) -> Began | Measured:
        while True:
            ended = not self.process.running  # before the read, which still gets its last output
            self.cpu_seen = max(self.cpu_seen, cpu_seconds(self.process))
            found = self._next()
            if found is not None:
                return found
            self._serving.must_live()
            if ended:
                raise PeerFailed(f"{self.process.name} failed:\n{self.process.log_tail()}")
            if time.monotonic() > self.deadline:
                raise PeerFailed(f"{self.process.name} was too late:\n{self.process.log_tail()}")
            time.sleep(READ_SECONDS)

    def _next(self) -> Began | Measured | None:
        """What the next whole lines say."""
        if self.output.stat().st_size == self._seen:
            return None
        with self.output.open("rb") as file:
            file.seek(self._seen)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                return None
            self._seen += len(line)
            found = self._read(line.decode(errors="replace"))
            if found is not None:
                return found
        return None


def cpu_seconds(process: ChildProcess) -> float:
    """User and system seconds of a process; 0 where it has ended."""
    if process.process is None:
        return 0.0
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def serving(peer: Peer, root: Path, replicated: bool) -> Iterator[Serving]:
    """Servers of a peer that acknowledge messages, below root. Raises PeerFailed."""
    servers = peer.servers(root, replicated)
    started = Serving(root, servers)
    with ExitStack() as stack:
        try:
            for process in servers.processes:
                stack.callback(_end, process)
                process.start()
                if isinstance(process, Server) and process.endpoint:
                    process.wait_listening(process.endpoint)
        except ChildError as error:
            raise PeerFailed(str(error)) from error
        except OSError as error:
            raise PeerFailed(f"cannot start {process.name}: {error}") from error
        yield started


def _end(process: ChildProcess) -> None:
    """Nothing is kept: there is no need to wait for a flush."""
    if process.running:
        process.process.kill()  # type: ignore[union-attr]
    process.stop()
