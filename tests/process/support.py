"""Nodes as real processes."""

import subprocess
from pathlib import Path

import duolog.sync

from duolog_server.demo.childnode import ChildNode
from duolog_server.demo.childprocess import ChildProcess
from tests.late import told_where_late
from tests.process.forks import COMMANDS, PROGRAM, ROOT, environment

COMMAND_SECONDS = 600.0  # a second, on a machine that does nothing else
PATIENT = ("--timeout", "60")  # for the answer of a node; commands wait 10 s where not told

# A node reserves the disk of its files when it makes them: 1.4 GiB with the sizes of production.
INDEX_SLOTS, INDEX_ENTRIES = 50_000, 200_000
SMALL_FILES = (
    "--set", "store.mapped_file_size_commit_log=4194304",
    "--set", "store.mapped_file_size_consume_queue=300000",
    "--set", f"store.max_hash_slot_num={INDEX_SLOTS}",
    "--set", f"store.max_index_num={INDEX_ENTRIES}",
)  # fmt: skip


class NodeProcess(ChildNode):
    """A node with small files that answers once it is started."""

    stop_seconds = 90.0  # a disk that others use may take long to sync

    def __init__(self, data: Path, *flags: str, name: str = "", log: Path | None = None) -> None:
        super().__init__(data, *SMALL_FILES, *flags, name=name, log=log)

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until it answers, a user where it has users."""
        super().start()
        self.wait_port()
        with duolog.sync.Client(self.endpoint, timeout=60, user=user, password=password) as client:
            client.admin.node_status()


def run_cli(
    *arguments: str, stdin: str = "", timeout: float = COMMAND_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run `duolog ...`."""
    # A node prints gRPC's own lines, which forked commands cannot; jobs load Spark in any case.
    anew = arguments[:2] == ("node", "start") or arguments[:1] == ("pipeline",)
    with told_where_late():
        if not anew and COMMANDS.suit({"GRPC_VERBOSITY": "NONE", **environment()}):
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
