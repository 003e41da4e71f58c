"""An independent checker: histories are checked by porcupine (Go), which shares no code with this
project.

The model is a log per queue: an append takes the next offset, a read sees what stands at an offset,
a commit is what the next question answers. Queues are independent, so each is checked by itself.
The program is in sim/porcupine; where Go is missing, or cannot fetch the module, the check is
skipped, and says why.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.clients import History

PROGRAM = Path(__file__).parent / "porcupine"
BUILD_SECONDS = 300
CHECK_SECONDS = 300
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one queue. Times are integers; end -1: nobody was told how it ended."""

    queue: str
    op: str
    begin: int
    end: int
    offset: int
    bodies: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """result: Ok, Illegal, Unknown (out of time), or Skipped, for a reason."""

    result: str
    operations: int = 0
    queue: str = ""
    reason: str = ""


class Skipped(Exception):
    """There is no checker here; the text says why."""


def build(into: Path) -> Path:
    """Compile the checker. Raises Skipped."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise Skipped("porcupine needs Go, and there is no `go` here")
    made = into / "porcupine"
    command = [go, "build", "-o", str(made), "."]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            command,
            cwd=PROGRAM,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"go build took longer than {BUILD_SECONDS} s") from None
    if done.returncode:
        raise Skipped(f"go build failed: {done.stderr.strip()[-300:]}")
    return made


def check(operations: Iterable[Operation], program: Path | None = None) -> Verdict:
    """Run the checker, built for this call where no program is given."""
    if program is None:
        with tempfile.TemporaryDirectory(prefix="porcupine-") as made:
            try:
                return check(operations, build(Path(made)))
            except Skipped as why:
                return Verdict("Skipped", reason=str(why))
    lines = "".join(json.dumps(asdict(operation)) + "\n" for operation in operations)
    done = subprocess.run(
        [program], input=lines, capture_output=True, text=True, timeout=CHECK_SECONDS, check=True
    )
    told = json.loads(done.stdout)
    return Verdict(told["result"], told["operations"], told["queue"])


def of_simulation(history: "History") -> list[Operation]:
    """What a simulated cluster's clients did and were told, in whole microseconds.

    A batch becomes one append for each message: a crash may keep the beginning of one that was not
    answered. What surely failed is left out, so whoever reads it makes the history illegal.
    """
    found: list[Operation] = []
    for send in history.sends:
        if send.outcome == "ok":
            for body, (key, offset) in zip(send.bodies, send.offsets, strict=True):
                times = _micros(send.begin), _micros(send.end)
                found.append(Operation(_queue(key), "append", *times, offset, (body.decode(),)))
        elif send.outcome != "fail":
            for body in send.bodies:
                times = _micros(send.begin), UNKNOWN
                found.append(Operation(_queue(send.key), "append", *times, -1, (body.decode(),)))
    for read in history.reads:
        bodies = tuple(body.decode() for body in read.bodies)
        times = _micros(read.begin), _micros(read.end)
        found.append(Operation(_queue(read.key), "read", *times, read.first, bodies))
    return found


def _queue(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"


def _micros(ms: float) -> int:
    return int(ms * 1000)
