"""Nodes forked by a process that has loaded their program: a start costs no second of imports.

Each is a process as any other node is, with files, ports and signals of its own.
`python -m tests.process.nursery` reads one line of JSON for each node, its words and its log, and
forks it; it tells the node's id, and later its status. One node at a time.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

from tests.process.support import ROOT, NodeProcess, environment

START_SECONDS = 120.0  # on a slow machine the first line waits for the imports


class Forked:
    """A node's process, as far as ChildProcess asks for it."""

    def __init__(self, answers: int, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = line_of(self._answers)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout)
        status = self.poll()
        assert status is not None, "it was told"
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


def line_of(answers: int) -> int:
    """The number in the next line of a nursery."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(answers, 1)
        assert more, f"the nursery has ended: {line!r}"
        line += more
    return int(line)


class ForkedNode(NodeProcess):
    """A node whose starts are forks of one process; `close` ends that one, too."""

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, *flags)
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.process.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
        )

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Fork it."""
        nursery = self._nursery
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        words = self.command()[3:]  # those of `duolog`
        told = {"words": words, "log": str(self.log)}
        nursery.stdin.write(json.dumps(told).encode() + b"\n")
        nursery.stdin.flush()
        answers = nursery.stdout.fileno()
        assert select.select([answers], [], [], START_SECONDS)[0], "the nursery forks nothing"
        return cast("subprocess.Popen[bytes]", Forked(answers, line_of(answers)))

    def close(self) -> None:
        """Stop the node, and what forks it."""
        self.stop()
        for pipe in (self._nursery.stdin, self._nursery.stdout):
            assert pipe is not None
            pipe.close()
        self._nursery.wait(START_SECONDS)


def next_node() -> list[str]:
    """Fork nodes until nothing is asked for any more; in each of them, its words."""
    for line in sys.stdin.buffer:
        told = json.loads(line)
        assert threading.active_count() == 1, "a fork has one thread"
        pid = os.fork()
        if pid == 0:
            become(told["log"])
            return list(told["words"])
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return []


def become(log: str) -> None:
    """Have the files and the directory of a node that was started anew."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(Path(log).parent)


if __name__ == "__main__":
    import node.cli.node
    import node.logs
    import node.server  # noqa: F401
    from node.cli.main import main

    words = next_node()
    if words:
        sys.argv = ["duolog", *words]
        main()
