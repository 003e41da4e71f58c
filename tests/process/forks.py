"""Processes of `duolog` as forks of one that has loaded its modules: see `duolog.testing._forks`.

A nursery lives as long as the tests of its worker, and what it forked ends with it, however the
tests end.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from duolog.testing._forks import NODES, Forked, Forks, Nursery, environment
from duolog.testing._node import ChildNode

from duolog_server.demo import nursery

ROOT = Path(__file__).parent.parent.parent
PROGRAM = [sys.executable, "-m", ChildNode.program]
# What nodes load, and on their way where they are told to.
NODE_MODULES = (
    *nursery.NODE_MODULES,
    "duolog_server.node.election.etcd",
    "duolog_server.node.metrics.server",
    "duolog_server.compat.remoting.guarding.authenticator",
    "duolog_server.compat.remoting.port.server",
    "duolog_server.compat.remoting.service",
)
ABORT_SECONDS = 10.0  # until a process has told its stack, and ended
OF_THE_TEST = "PYTEST_CURRENT_TEST"  # a variable that changes, and that no program of ours reads
OF_SPARK = ("SPARK_", "PYSPARK_")  # a session sets some, and only jobs read them
_OFTEN_RUN = (
    "acl", "cluster", "config", "doctor", "group",
    "msgresend", "msgsearch", "node", "topic", "user",
)  # fmt: skip


class Commands(Forks):
    """Forks of commands, which are run to their end."""

    def asks(self) -> int:
        """The socket that takes requests, for programs that a test starts."""
        return self._started().fileno()

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


def _write(number: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(number, "wb") as file:  # its end writes, too
        file.write(data)


def _read(number: int) -> bytes:
    with open(number, "rb") as file:
        return file.read()


def suits(forks: Forks, given: Mapping[str, str]) -> bool:
    """Whether forks have this environment."""
    if forks.environment is None:
        forks.settle()
    assert forks.environment is not None, "settled"
    return _lasting(given) == _lasting(forks.environment)


def _lasting(given: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in given.items()
        if name != OF_THE_TEST and not name.startswith(OF_SPARK)
    }


# What most commands load; their modules load no kernels, whose numpy has threads.
# gRPC's own lines are off: that is settled when it is loaded.
COMMANDS = Commands(
    "duolog.sync", "duolog_server.ops.cli.output", "pydantic.fields", "typer.rich_utils",
    *(f"duolog_server.ops.cli.{name}" for name in _OFTEN_RUN),
    GRPC_VERBOSITY="NONE",
)  # fmt: skip


@contextlib.contextmanager
def nodes_are_forked() -> Iterator[None]:
    """Meanwhile a node that is started is a fork, unless its program or environment is another."""
    started_anew = ChildNode.spawn

    def spawn(node: ChildNode) -> "subprocess.Popen[bytes]":
        command, given = node.command(), node.environment or os.environ
        if command[: len(PROGRAM)] != PROGRAM or not suits(NODES, given):
            return started_anew(node)
        forked = NODES.start(command[len(PROGRAM) :], node.log)
        return cast("subprocess.Popen[bytes]", forked)

    NODES.modules = NODE_MODULES
    for forks in (NODES, COMMANDS):
        forks.settle()  # modules that tests import have set variables of gRPC's
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChildNode, "spawn", spawn)
            yield
    finally:
        NODES.close()
        COMMANDS.close()


__all__ = [
    "COMMANDS",
    "NODES",
    "PROGRAM",
    "ROOT",
    "Commands",
    "Forked",
    "Forks",
    "Nursery",
    "environment",
    "nodes_are_forked",
    "suits",
]
