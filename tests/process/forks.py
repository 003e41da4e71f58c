"""Processes of `duolog` as forks of one that has loaded its modules.

A start costs about a second of imports; a fork, milliseconds. Each is a process as any other is,
with files, ports and signals of its own. A nursery lives as long as the tests of its worker, and
what it forked ends with it, however the tests end.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from duolog_server.demo.childnode import ChildNode

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 120.0  # on a slow machine the first fork waits for the imports
PROGRAM = [sys.executable, "-m", ChildNode.program]
ABORT_SECONDS = 10.0  # until a process has told its stack, and ended
OF_THE_TEST = "PYTEST_CURRENT_TEST"  # a variable that changes, and that no program of ours reads
OF_SPARK = ("SPARK_", "PYSPARK_")  # a session sets some, and only jobs read them
# What nodes load before they serve, and on their way where they are told to.
NODE_MODULES = (
    "duolog_server.ops.cli.node",
    "duolog_server.node.runtime.logs",
    "duolog_server.serve.server",
    "duolog_server.node.election.etcd",
    "duolog_server.node.metrics.server",
    "duolog_server.compat.remoting.guarding.authenticator",
    "duolog_server.compat.remoting.port.server",
    "duolog_server.compat.remoting.service",
)


def environment() -> dict[str, str]:
    """The test's environment without duolog's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DUOLOG_")}


def _readable(number: int, seconds: float | None) -> bool:
    """Whether something can be read, or its end, within so long; None waits."""
    waits = select.poll()  # select.select takes no number above 1023
    waits.register(number, select.POLLIN)
    return bool(waits.poll(None if seconds is None else max(seconds, 0) * 1000))


class Forked:
    """A forked process, as far as tests ask a `subprocess.Popen`."""

    def __init__(self, told: int) -> None:
        """told: where the nursery writes its id, and later its status."""
        self.returncode: int | None = None
        self._told = told
        weakref.finalize(self, os.close, told)
        self._looking = threading.Lock()
        assert _readable(told, START_SECONDS), "the nursery forks nothing"
        self.pid = _line_of(told)

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        with self._looking:
            if self.returncode is None and _readable(self._told, 0):
                self.returncode = _line_of(self._told)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if not _readable(self._told, timeout):
            assert timeout is not None, "without one it waits"
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        status = self.poll()
        assert status is not None, "it was told"
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and is told in a moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _line_of(told: int) -> int:
    """The number in the next line of a nursery."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(told, 1)
        assert more, f"the nursery has ended: {line!r}"
        line += more
    return int(line)


class Nursery(subprocess.Popen[bytes]):
    """The process that forks: it is of all tests of a worker."""


class Forks:
    """Forks of one process, which is started at the first of them."""

    def __init__(self, *modules: str, **more: str) -> None:
        """modules: what it loads. more: of its environment, beside what the tests have."""
        self._modules = modules
        self._starting = threading.Lock()
        self._asks: socket.socket | None = None
        self._nursery: Nursery | None = None
        self._more = more
        self.settle()

    def settle(self) -> None:
        """Have the environment of now: what a test sets for itself later is not of all."""
        self._environment = _lasting({**self._more, **environment()})

    def suit(self, given: Mapping[str, str]) -> bool:
        """Whether they have this environment."""
        return _lasting(given) == self._environment

    def fork(self, words: Sequence[str], directory: Path, files: tuple[int, int, int]) -> Forked:
        """`duolog` with words, in a directory, with standard files."""
        asks = self._started()
        told, tells = os.pipe()
        try:
            request = json.dumps(
                {"words": list(words), "directory": str(directory.absolute())}
            ).encode()
            socket.send_fds(asks, [request], [*files, tells])
        finally:
            os.close(tells)
        return Forked(told)

    def run(
        self, words: Sequence[str], directory: Path, stdin: str, timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """As `subprocess.run` with captured output does. Raises subprocess.TimeoutExpired."""
        status: int | None = None
        (reads, says), (out, writes_out), (errors, writes_errors) = os.pipe(), os.pipe(), os.pipe()
        try:
            process = self.fork(words, directory, (reads, writes_out, writes_errors))
        finally:
            for number in (reads, writes_out, writes_errors):
                os.close(number)
        with ThreadPoolExecutor(3) as pool:
            given = pool.submit(_write, says, stdin.encode())
            found = [pool.submit(_read, number) for number in (out, errors)]
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it says where it stands
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ABORT_SECONDS)
            finally:
                process.kill()
        given.result()
        output, complaints = (one.result().decode() for one in found)
        if status is None:
            raise subprocess.TimeoutExpired(list(words), timeout, output, complaints)
        return subprocess.CompletedProcess(list(words), status, output, complaints)

    def close(self) -> None:
        """End the process, and what it has forked. Another fork starts it again."""
        with self._starting:
            if self._asks is not None and self._nursery is not None:
                self._asks.close()
                self._nursery.wait(START_SECONDS)
                self._asks = self._nursery = None

    def _started(self) -> socket.socket:
        with self._starting:
            if self._asks is None:
                self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                number = asked.fileno()
                program = [sys.executable, "-m", "tests.process.nursery", str(number)]
                with asked:
                    self._nursery = Nursery(
                        [*program, *self._modules],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[number],
                        cwd=ROOT,
                        env=self._environment,
                    )
            return self._asks


def _write(number: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(number, "wb") as file:  # its end writes, too
        file.write(data)


def _read(number: int) -> bytes:
    with open(number, "rb") as file:
        return file.read()


def _lasting(given: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in given.items()
        if name != OF_THE_TEST and not name.startswith(OF_SPARK)
    }


NODES = Forks(*NODE_MODULES)
# What most commands load beside their own modules, which each of them still loads itself.
# gRPC's own lines are off: that is settled when it is loaded.
COMMANDS = Forks(
    "duolog.sync", "duolog_server.ops.cli.output", "pydantic.type_adapter", "typer.rich_utils",
    GRPC_VERBOSITY="NONE",
)  # fmt: skip


@contextlib.contextmanager
def nodes_are_forked() -> Iterator[None]:
    """Meanwhile a node that is started is a fork, unless its program or environment is another."""
    started_anew = ChildNode.spawn

    def spawn(node: ChildNode) -> "subprocess.Popen[bytes]":
        command, given = node.command(), node.environment or os.environ
        if command[: len(PROGRAM)] != PROGRAM or not NODES.suit(given):
            return started_anew(node)
        with open(os.devnull, "rb") as nothing, node.log.open("ab") as log:
            files = nothing.fileno(), log.fileno(), log.fileno()
            forked = NODES.fork(command[len(PROGRAM) :], node.log.parent, files)
        return cast("subprocess.Popen[bytes]", forked)

    for forks in (NODES, COMMANDS):
        forks.settle()  # modules that tests import have set variables of gRPC's
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChildNode, "spawn", spawn)
            yield
    finally:
        NODES.close()
        COMMANDS.close()
