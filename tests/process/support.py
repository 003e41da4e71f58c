"""Nodes as real processes."""

import subprocess
from pathlib import Path

from duolog.testing._node import INDEX_ENTRIES, INDEX_SLOTS, SMALL_FILES, SmallNode
from duolog.testing._process import ChildProcess

from tests.late import told_where_late
from tests.process.forks import COMMANDS, PROGRAM, ROOT, environment, suits

COMMAND_SECONDS = 600.0  # a second, on a machine that does nothing else
PATIENT = ("--timeout", "60")  # for the answer of a node; commands wait 10 s where not told


class NodeProcess(SmallNode):
    """A node with small files that answers once it is started."""

    stop_seconds = 90.0  # a disk that others use may take long to sync


def run_cli(
    *arguments: str, stdin: str = "", timeout: float = COMMAND_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run `duolog ...`."""
    # A node prints gRPC's own lines, which forked commands cannot; jobs load Spark in any case.
    anew = arguments[:2] == ("node", "start") or arguments[:1] == ("pipeline",)
    with told_where_late():
        if not anew and suits(COMMANDS, {"GRPC_VERBOSITY": "NONE", **environment()}):
            return COMMANDS.run(arguments, ROOT, stdin, timeout)
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=ROOT,
            env=environment(),
            check=False,
        )


def refused(done: "subprocess.CompletedProcess[str]", *said: str, status: int = 1) -> None:
    """A command has ended with an error that says why."""
    assert done.returncode == status, done.stderr
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def migrating(data: Path, *words: str, sizes: tuple[str, ...]) -> ChildProcess:
    """`duolog migrate ...` as a process."""
    command = [*PROGRAM, "migrate", *words, "--data", str(data), *sizes]
    return ChildProcess(
        words[0], command, data.parent / f"{words[0]}.log", environment=environment()
    )


__all__ = [
    "INDEX_ENTRIES",
    "INDEX_SLOTS",
    "PATIENT",
    "ROOT",
    "SMALL_FILES",
    "NodeProcess",
    "environment",
    "migrating",
    "refused",
    "run_cli",
]
