"""python -m sim.rooms ROOM: how many mechanical mutants of a room do its unit tests kill?

python -m sim.rooms node/pop --count 60 --sample 7    sixty of them, drawn by a number
python -m sim.rooms node/pop --mutant NAME            one of them, and the test that kills it

The rooms are code that waits for others: nodes and clients in one event loop, which seeds drive as
a whole (`sim.mechanical` judges the code below by tests and seeds). pytest collects their tests
once; one run of the code as it is notes which test runs which line; then a forked process for each
mutant runs those of the mutant's lines, the fastest first, up to the first that fails. Mutants
without an observable effect are listed in sim/equivalent_rooms.toml.
"""

import argparse
import ast
import builtins
import gc
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from sim.mechanical import (
    BROKEN,
    FILES,
    ROOT,
    Fate,
    JudgeError,
    _memory,
    conclude,
    equivalent,
    plant,
    put_code,
    workspace,
)
from sim.mutation import BODIES, Mechanical, alone, code_of, functions, mutants

# The tests of each room; its files are those of its directory.
ROOMS: dict[str, tuple[str, ...]] = {
    "client/duolog": (
        "tests/client",
        "tests/node/consuming",
        "tests/node/deferred",
        "tests/node/net/test_tls.py",
        "tests/node/net/frames/test_transport.py",
    ),
    "node/consuming": (
        "tests/node/consuming",
        "tests/node/api/test_messages.py",
        "tests/compat/grpc/test_pulling.py",
        "tests/compat/remoting/test_consuming.py",
    ),
    "node/deferred": (
        "tests/node/deferred",
        "tests/compat/grpc/test_transactions.py",
        "tests/compat/remoting/test_transactions.py",
        "tests/client/test_transactions.py",
        "tests/node/runtime/test_clocks.py",
    ),
    "node/pop": (
        "tests/node/pop",
        "tests/compat/grpc/test_consuming.py",
        "tests/compat/grpc/test_lite.py",
    ),
}
EQUIVALENT = ROOT / "sim" / "equivalent_rooms.toml"
LEFT_OUT = "process or long or spark or browser or interop or containers or privileged"
# Tests of memory, which the notes take too, and of deadlines of seconds.
_DESELECTED = (
    "tests/client/test_posting_limits.py::test_posted_messages_take_no_more_than_the_buffer",
    "tests/client/test_posting_limits.py::test_unread_errors_take_no_memory_per_message",
    "tests/node/net/frames/test_transport.py::test_a_node_that_reads_nothing_meets_deadlines",
)
WAITING = 0.2  # what a second of waiting counts beside one of processor time
SECONDS_MAX = 20.0  # of processor time, of tests for one mutant
WAIT_SECONDS = 15.0  # that a test may take beside its own time, before it never ends
SLOWER = 8  # than the run that noted the lines, on a machine that others use
# Errors of a neighbour's ports, or of a busy machine: they count where they come again.
AGAIN = ("ListenError", "EADDRINUSE", "DEADLINE_EXCEEDED")
BEGINS = b"\0"  # said of a test
_HIT = "_sim_rooms_hit"  # a name that all modules see


@dataclass(slots=True)
class Noted:
    """What a run of the code as it is says of one test.

    seconds: of processor time. wall: of any. of_file: how many lines of each file it runs.
    """

    seconds: float
    wall: float
    lines: set[str]
    of_file: Counter[str]


@dataclass(slots=True)
class Running:
    """A process that judges a mutant. allowed: seconds for each of its tests, of which the child
    reports that it begins."""

    mutant: Mechanical
    process: int
    reader: int
    until: float
    allowed: float
    where: Path
    told: bytes = b""


def room_mutants(room: str) -> dict[str, Mechanical]:
    """The mutants of a room, by name."""
    found: dict[str, Mechanical] = {}
    for path in sorted((ROOT / room).glob("*.py")):
        name = str(path.relative_to(ROOT))
        for mutant in mutants(name, path.read_text(), lambda function: True):
            found[mutant.name] = mutant
    return found


@cache
def all_mutants() -> dict[str, Mechanical]:
    """The mutants of all rooms, by name."""
    return {name: mutant for room in ROOMS for name, mutant in room_mutants(room).items()}


class Judge:
    """A plugin of pytest's: runs some of the tests for each mutant, instead of all once."""

    def __init__(self, chosen: list[Mechanical], where: Path, jobs: int) -> None:
        self.chosen = chosen
        self.jobs = jobs
        self.fates: list[Fate] = []
        self.wrong = ""
        self._where = where
        self._notes: dict[str, Noted] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Called by pytest: examples that fail are not made smaller."""
        from hypothesis import HealthCheck, Phase, settings  # pytest must see it first

        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", deadline=None, database=None, phases=phases, suppress_health_check=checks
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest, once all tests are collected."""
        try:
            self._notes = self._note(session.items)
            self._judge(session.items)
        except JudgeError as error:
            self.wrong = str(error)
        return True

    # -- which test runs which line ----------------------------------------------------------------

    def _note(self, items: list[pytest.Item]) -> dict[str, Noted]:
        found: dict[str, Noted] = {}
        path = self._where / "notes"
        child = os.fork()
        if child == 0:
            _in_child(lambda: _note_lines(items, path, self._where / "sound", self.chosen))
        _, status = os.waitpid(child, 0)
        shutil.rmtree(self._where / "sound", ignore_errors=True)
        if status or not path.exists():
            said = path.with_suffix(".failed")
            raise JudgeError(
                f"the code as it is fails already: {said.read_text() if said.exists() else status}"
            )
        for row in path.read_text().splitlines():
            name, seconds, wall, lines = json.loads(row)
            of_file = Counter(line.rpartition(":")[0] for line in lines)
            found[name] = Noted(seconds, wall, set(lines), of_file)
        return found

    def _near(
        self, mutant: Mechanical, items: list[pytest.Item]
    ) -> tuple[list[pytest.Item], float]:
        """The tests of its lines, and the seconds that the longest takes."""
        wanted = {f"{mutant.path}:{line}" for line in range(mutant.line, mutant.end + 1)}
        near: list[tuple[float, int, float, float]] = []
        for at, item in enumerate(items):
            noted = self._notes.get(item.nodeid)
            if noted is not None and noted.lines & wanted:
                cost = noted.seconds + WAITING * noted.wall
                near.append((cost / noted.of_file[mutant.path], at, noted.seconds, noted.wall))
        chosen: list[pytest.Item] = []
        total = longest = 0.0
        # Those first that run much of the file in little time.
        for _, at, seconds, wall in sorted(near):
            if not chosen or total + seconds <= SECONDS_MAX:
                chosen.append(items[at])
                total, longest = total + seconds, max(longest, wall)
        return chosen, longest

    # -- one mutant --------------------------------------------------------------------------------

    def _judge(self, items: list[pytest.Item]) -> None:
        waiting = list(reversed(self.chosen))
        running: list[Running] = []
        again: set[str] = set()
        gc.freeze()  # what the children share is not looked through, and copied, in each of them
        while waiting or running:
            while waiting and len(running) < self.jobs:
                running.append(self._start(waiting.pop(), items))
            ready, _, _ = select.select([one.reader for one in running], [], [], 1.0)
            for one in list(running):
                fate = self._look(one, one.reader in ready)
                if fate is None:
                    continue
                running.remove(one)
                if any(word in fate.why for word in AGAIN) and one.mutant.name not in again:
                    again.add(one.mutant.name)
                    waiting.append(one.mutant)
                    continue
                self.fates.append(fate)
                print(f"{fate.killed_by} {fate.mutant.name} {fate.why}", file=sys.stderr)
                if fate.killed_by == "nothing":
                    print(fate.mutant.diff(), file=sys.stderr)
                sys.stderr.flush()

    def _start(self, mutant: Mechanical, items: list[pytest.Item]) -> Running:
        near, seconds = self._near(mutant, items)
        reader, writer = os.pipe()
        where = self._where / f"{FILES}{reader}"
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.setpgid(0, 0)
            limit = int(WAIT_SECONDS + SLOWER * SECONDS_MAX)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            _in_child(lambda: _try(mutant, near, where, writer))
        os.close(writer)
        allowed = WAIT_SECONDS + SLOWER * seconds
        return Running(mutant, child, reader, time.monotonic() + allowed, allowed, where)

    def _look(self, one: Running, ready: bool) -> Fate | None:
        """Its fate, once it has ended."""
        if ready:
            told = os.read(one.reader, 4096)
            one.told += told.replace(BEGINS, b"")
            one.until = time.monotonic() + one.allowed
            if told:
                return None
        elif time.monotonic() < one.until:
            return None
        else:
            os.killpg(one.process, signal.SIGKILL)  # with the programs that its test started
        os.close(one.reader)
        os.waitpid(one.process, 0)
        shutil.rmtree(one.where, ignore_errors=True)
        by, _, why = one.told.decode(errors="replace").partition(" ")
        if by == BROKEN:
            raise JudgeError(f"{one.mutant.name}: {why}")
        return Fate(one.mutant, by or "time", why.strip())


def _in_child(run: Any) -> None:  # pragma: no cover - in a process that ends here
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        run()
        status = 0
    finally:
        os._exit(status)


def _run(items: Sequence[pytest.Item], where: Path, before: Any = None) -> str:
    """Run tests; the first that fails, and why."""
    factory = items[0].config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = where, None
    failed = _First()
    items[0].config.pluginmanager.register(failed)
    for at, item in enumerate(items):
        if before is not None:
            before(item)
        following = items[at + 1] if at + 1 < len(items) else None
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except KeyboardInterrupt as error:  # pytest passes it on
            return f"{item.nodeid} {error!r}"
        if failed.name:
            return f"{failed.name} {failed.why}"
    return ""


@dataclass(slots=True, eq=False)
class _First:
    """A plugin that remembers the first test that failed."""

    name: str = ""
    why: str = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest."""
        if report.failed and not self.name:
            self.name = report.nodeid
            crash = getattr(report.longrepr, "reprcrash", None)
            self.why = " ".join((crash.message if crash else str(report.longrepr)).split())[:300]


def _try(mutant: Mechanical, items: list[pytest.Item], where: Path, writer: int) -> None:
    try:
        plant(mutant)
        failed = _run(items, where, lambda _: os.write(writer, BEGINS)) if items else ""
        told = f"tests {failed}" if failed else f"nothing of {len(items)} tests"
    except MemoryError:
        told = "time it took too much memory"
    except BaseException as error:
        told = f"{BROKEN} {error!r}"
    os.write(writer, told[:2000].encode()[:2000])


def _note_lines(
    items: list[pytest.Item], path: Path, where: Path, chosen: list[Mechanical]
) -> None:
    """Run the tests of the code as it is, and write for each which lines it runs."""
    lines: set[str] = set()
    setattr(builtins, _HIT, lines.update)
    for mutant in {(one.path, one.function): one for one in chosen}.values():
        put_code(mutant, noting(mutant.path, (ROOT / mutant.path).read_text(), mutant.function))
    with path.with_suffix(".new").open("w") as notes:
        last: list[Any] = []

        def note(item: pytest.Item | None) -> None:
            used, now = time.process_time(), time.monotonic()
            if last:
                before, used_before, began = last
                row = before.nodeid, used - used_before, now - began, sorted(lines)
                json.dump(row, notes)
                notes.write("\n")
            lines.clear()
            last[:] = [item, used, now]

        failed = _run(items, where, note)
        note(None)
    if failed:
        path.with_suffix(".failed").write_text(failed)
        raise JudgeError(failed)
    path.with_suffix(".new").rename(path)


def noting(path: str, source: str, function: str) -> CodeType:
    """The code of a function, whose statements tell that they run."""
    tree = alone(source, function)
    for node in ast.walk(dict(functions(tree))[function]):
        for field in BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                setattr(node, field, [one for at in body for one in (_hit(path, at), at)])
    return code_of(tree, path, function)


def _hit(path: str, statement: ast.stmt) -> ast.stmt:
    inner = getattr(statement, "body", None)
    end = inner[0].lineno - 1 if inner else statement.end_lineno or statement.lineno
    lines = [f"{path}:{line}" for line in range(statement.lineno, max(end, statement.lineno) + 1)]
    call = ast.parse(f"{_HIT}({lines!r})").body[0]
    return ast.copy_location(call, statement)


# -- many ------------------------------------------------------------------------------------------


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="python -m sim.rooms", description=__doc__)
    parser.add_argument("room", choices=sorted(ROOMS))
    parser.add_argument("--count", type=int, default=300, help="mutants that are drawn")
    parser.add_argument("--sample", type=int, default=1, help="draws which mutants come first")
    parser.add_argument("--mutant", default="", help="begins the names of the mutants")
    parser.add_argument("--jobs", type=int, default=3, help="processes at a time: most wait")
    parser.add_argument("--tests", nargs="+", help="instead of all tests of the room")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """0 where enough are killed; 1 where too few are, 2 where the measure itself is wrong."""
    asked = parse(arguments)
    os.chdir(ROOT)
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    known = room_mutants(asked.room)
    spared = equivalent(all_mutants(), EQUIVALENT)
    chosen = [m for name, m in sorted(known.items()) if name.startswith(asked.mutant)]
    random.Random(asked.sample).shuffle(chosen)
    chosen = [mutant for mutant in chosen if mutant.name not in spared][: asked.count]
    with workspace(_memory()) as where:
        judge = Judge(chosen, where, asked.jobs)
        # Errors as Python tells them: pytest's own way reads the sources of each again.
        how = ["-q", "-s", "--tb=native", "-p", "no:cacheprovider", "-m", f"not ({LEFT_OUT})"]
        how += [f"--deselect={name}" for name in _DESELECTED]
        pytest.main([*how, *(asked.tests or ROOMS[asked.room])], [judge])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{asked.room}: {used.ru_utime + used.ru_stime:.0f} s of processor time")
    if judge.wrong:
        print(f"the judge itself failed: {judge.wrong}")
        return 2
    return conclude(judge.fates, len(known), len(spared.keys() & known))


if __name__ == "__main__":
    sys.exit(main())
