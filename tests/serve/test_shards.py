"""The supervisor of shards: what it decides, and how small it is."""

import asyncio
import subprocess
import sys

import pytest

from duolog_server.serve.shards import FINAL, Shard, cores_of, said, status_of

SMALL = """
import sys
import duolog_server.serve.shards
print(*(name for name in ("grpc", "numpy", "duolog", "pydantic", "typer") if name in sys.modules))
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(line.split()[1])
"""
KIB_MAX = 30 << 10


def test_the_supervisor_imports_little_and_is_small() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
    imported, kib = done.stdout.splitlines()
    assert imported == ""
    assert int(kib) <= KIB_MAX


@pytest.mark.parametrize(
    ("shards", "cores", "shares"),
    [
        (2, [0, 1], [[0], [1]]),
        (2, [7, 4, 5, 6], [[4, 5], [6, 7]]),
        (2, [0, 1, 2], [[0], [1, 2]]),
        (3, [0, 1], [[], [], []]),
    ],
)
def test_cores_are_shared_out_where_there_are_enough(
    shards: int, cores: list[int], shares: list[list[int]]
) -> None:
    assert cores_of(shards, cores) == shares


def test_the_exit_status_is_that_of_a_disk_before_that_of_a_kill() -> None:
    assert status_of([0, -15]) == 0
    assert status_of([0, -9]) == 1
    assert status_of([1, 74, 0]) == 74
    assert said(-9) == "killed by SIGKILL"
    assert said(-35) == "killed by signal 35", "one of real time"


@pytest.mark.parametrize("status", FINAL)
async def test_a_shard_whose_disk_or_configuration_is_at_fault_is_not_started_again(
    status: int,
) -> None:
    program = [sys.executable, "-ISc", f"raise SystemExit({status})"]
    assert await Shard(0, program, []).keep() == status


async def test_a_shard_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.serve.shards.STOP_SECONDS", 0.01)
    program = [
        sys.executable,
        "-ISc",
        "import os, signal; signal.signal(15, 1); os.write(1, b'.'); signal.pause()",
    ]
    shard = Shard(0, program, [])
    async with asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(shard.keep())
        await asyncio.sleep(0)
        shard.stop()
    assert kept.result() in (-9, -15)  # before its program ignores it, SIGTERM ends it
