"""python -m sim.mechanical: how many mechanical mutants do seeds and unit tests kill?

python -m sim.mechanical --budget 10              as many as ten minutes allow, drawn by --sample
python -m sim.mechanical --only ha/syncstate.py   those of one file
python -m sim.mechanical --mutant NAME            one of them, and what kills it

Each mutant runs in a process of its own, forked from one that has everything loaded: the code of
one function is replaced there. The unit tests of its file come first, then seeds; processor time
and memory are limited, so a mutant that never ends is killed as well. Mutants that change nothing
anybody could see are listed in sim/equivalent.toml, each with the reason.
"""

import argparse
import contextlib
import gc
import importlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from sim.cluster import run
from sim.mutation import Mechanical, mutants, mutated

ROOT = Path(__file__).parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
CPU_SECONDS = 90  # that a mutant may take, or SLOWER times what the code as it is took
SLOWER = 2
CPU_SECONDS_SOUND = 1800  # that the code as it is may take
MEMORY_BYTES = 6 << 30
GOAL = 0.9
LEAST_JUDGED = 40  # fewer mutants say little about the share
FILES = "t"  # of the tests that run now
BROKEN = "broken"  # said of a run that ended with an error of the judge
PIPE_BYTES = 2000  # of what a run says
PREFIX = "mechanical-"  # of a directory's name; the number of the process that made it follows
_LOG = ("_close_segment", "_go_back", "append_data", "is_boundary", "before_blank", "next_valid")
_CUTS = ("truncate", "hide_from", "_cut_queues")
_HA = "tests/ha"
_MASTERSHIPS = f"{_HA}/test_masterships.py"
_TRANSITIONS = f"{_HA}/test_transitions.py::test_the_page_shows_what_the_machines_do"
_ELECTIONS = (f"{_HA}/test_failover.py", f"{_HA}/test_oldercopies.py")
_KNOWN = (f"{_HA}/test_knowngroup.py", *_ELECTIONS)
_STORE_TESTS = "tests/store"
_RECOVERY = (f"{_STORE_TESTS}/test_commitlog.py", f"{_STORE_TESTS}/test_recovery.py")
_STARTS = (
    f"{_STORE_TESTS}/test_starts.py",
    f"{_STORE_TESTS}/test_recovery.py",
    f"{_STORE_TESTS}/test_damage.py",
    f"{_STORE_TESTS}/test_manyqueues.py",
)
# Tests that look at every byte or every file: a mutant is to be judged in seconds.
_LEFT_OUT = (
    f"{_STORE_TESTS}/test_recovery.py::test_a_log_cut_at_every_byte_of_its_last_records",
    f"{_STORE_TESTS}/test_recovery.py::test_a_flip_of_any_byte_loses_that_record",
    f"{_STORE_TESTS}/test_damage.py::test_any_damage_of_one_derived_file_hides_nothing",
)
# What is mutated: file, the functions of it (all where None), the tests that are near.
TARGETS: tuple[tuple[str, tuple[str, ...] | None, tuple[str, ...]], ...] = (
    ("ha/epochs.py", None, (f"{_HA}/test_epochs.py", f"{_HA}/test_masterships.py")),
    ("ha/failover.py", None, _ELECTIONS),
    ("ha/failoverdriver.py", None, (f"{_HA}/test_failoverdriver.py", *_ELECTIONS)),
    ("ha/frames.py", None, (f"{_HA}/test_frames.py",)),
    ("ha/groupchanges.py", None, _ELECTIONS),
    ("ha/groupstate.py", None, (f"{_HA}/test_groupstate.py", f"{_HA}/test_failover.py")),
    ("ha/waiters.py", None, (f"{_HA}/test_master.py", f"{_HA}/test_waiters.py")),
    ("ha/handshake.py", None, (f"{_HA}/test_handshake.py", f"{_HA}/test_masterships.py")),
    ("ha/identity.py", None, (f"{_HA}/test_identity.py",)),
    ("ha/knowngroup.py", None, _KNOWN),
    ("ha/mandate.py", None, (f"{_HA}/test_syncstate.py", f"{_HA}/test_master.py")),
    ("ha/master.py", None, (f"{_HA}/test_master.py", f"{_HA}/test_failover.py")),
    ("ha/membership.py", None, (f"{_HA}/test_membership.py", f"{_HA}/test_failover.py")),
    ("ha/mover.py", None, (f"{_HA}/test_mover.py", _TRANSITIONS)),
    ("ha/movetarget.py", None, (f"{_HA}/test_mover.py",)),
    ("ha/options.py", None, (f"{_HA}/test_options.py",)),
    ("ha/progress.py", None, (f"{_HA}/test_progress.py", f"{_HA}/test_master.py")),
    ("ha/provenance.py", None, _ELECTIONS),
    ("ha/registry.py", None, (f"{_HA}/test_registry.py",)),
    ("ha/slave.py", None, (f"{_HA}/test_slave.py", f"{_HA}/test_handshake.py", _MASTERSHIPS)),
    ("ha/succession.py", None, _ELECTIONS),
    ("ha/syncstate.py", None, (f"{_HA}/test_syncstate.py", f"{_HA}/test_failover.py")),
    ("store/crossing.py", None, (f"{_STORE_TESTS}/test_crossing.py",)),
    ("store/recovery.py", None, _STARTS),
    ("store/queuecheck.py", None, (f"{_STORE_TESTS}/test_queuecheck.py",)),
    ("store/queuenote.py", None, (f"{_STORE_TESTS}/test_queuenote.py", *_STARTS)),
    ("store/metadatarecovery.py", None, (f"{_STORE_TESTS}/test_metadatafiles.py",)),
    (
        "store/dispatch.py",
        None,
        tuple(f"{_STORE_TESTS}/test_{one}.py" for one in ("arrivedrows", "lightqueues"))
        + _RECOVERY,
    ),
    (
        "store/places.py",
        None,
        (f"{_STORE_TESTS}/test_places.py", f"{_STORE_TESTS}/test_lightqueues.py", *_RECOVERY),
    ),
    (
        "store/checkpoint.py",
        None,
        (f"{_STORE_TESTS}/test_checkpoint.py", f"{_STORE_TESTS}/test_confirmnote.py"),
    ),
    ("store/commitlog.py", _LOG, _RECOVERY),
    (
        "store/wholerecords.py",
        None,
        (f"{_STORE_TESTS}/test_wholerecords.py", f"{_HA}/test_slave.py"),
    ),
    ("store/cuts.py", _CUTS, (*_RECOVERY, f"{_HA}/test_masterships.py")),
    ("store/messagestore.py", _CUTS[:2], (*_RECOVERY, f"{_HA}/test_masterships.py")),
)
TESTS = {path: tests for path, _, tests in TARGETS}


class JudgeError(Exception):
    """A mutant could not be judged."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a mutant; killed_by: tests, seed, time or nothing."""

    mutant: Mechanical
    killed_by: str
    why: str


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="python -m sim.mechanical", description=__doc__)
    parser.add_argument("--budget", type=float, default=3.0, help="minutes")
    parser.add_argument("--sample", type=int, default=1, help="draws which mutants come first")
    parser.add_argument("--seeds", type=int, default=24, help="seeds that each mutant must pass")
    parser.add_argument("--only", default="", help="begins the names of the mutants")
    parser.add_argument("--mutant", default="", help="the name of one mutant")
    parser.add_argument("--list", action="store_true", help="print all names, and run nothing")
    return parser.parse_args(arguments)


@cache
def all_mutants() -> dict[str, Mechanical]:
    """Every mutant there is, by name."""
    found: dict[str, Mechanical] = {}
    for path, names, _ in TARGETS:
        source = (ROOT / path).read_text()
        for mutant in mutants(path, source, _wanted(names)):
            found[mutant.name] = mutant
    return found


def _wanted(names: tuple[str, ...] | None) -> Callable[[str], bool]:
    return lambda function: names is None or function.rpartition(".")[2] in names


def equivalent(known: dict[str, Mechanical], path: Path = EQUIVALENT) -> dict[str, str]:
    """Mutants that change nothing, and why. Raises LookupError for a name that is none any more."""
    rows: dict[str, str] = tomllib.loads(path.read_text())
    gone = sorted(set(rows) - set(known))
    if gone:
        raise LookupError(f"{path.name} names mutants that do not exist any more: {gone}")
    return rows


# -- one mutant ------------------------------------------------------------------------------------


def plant(mutant: Mechanical) -> None:
    """Put the change into this process, for good."""
    put_code(mutant, mutated(mutant, (ROOT / mutant.path).read_text()))


def put_code(mutant: Mechanical, code: CodeType) -> None:
    """Replace the code of a mutant's function."""
    module = f"duolog_server.{mutant.path.removesuffix('.py').replace('/', '.')}"
    module = module.replace("duolog_server.client.duolog.", "duolog.")  # a package of its own
    found: Any = importlib.import_module(module)
    for name in mutant.function.split("."):
        found = vars(found)[name]
    for wrapper in ("fget", "__func__", "__wrapped__"):
        found = getattr(found, wrapper, found)
    assert isinstance(found, FunctionType), f"{mutant.name} is a function"
    found.__code__ = code


def try_one(
    mutant: Mechanical | None,
    tests: tuple[str, ...],
    seeds: int,
    where: Path,
    cpu_seconds: int = CPU_SECONDS,
) -> tuple[str, str]:
    """Run tests and seeds in a process of its own; None: without a mutant.

    where: a directory for the tests' files, which are removed in the end. cpu_seconds: processor
    time after which the process is killed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(
            resource.RLIMIT_CPU, (_used_cpu(resource.RUSAGE_SELF) + cpu_seconds,) * 2
        )
        _in_child(mutant, tests, seeds, where, writer)
    os.close(writer)
    told, status = b"", -1
    try:
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        _, status = os.waitpid(child, 0)
    finally:
        if status < 0:  # this process is to end
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        shutil.rmtree(where / FILES, ignore_errors=True)
    if os.WIFSIGNALED(status):
        return (
            "time",
            f"ended by signal {os.WTERMSIG(status)}: it took too long, or too much memory",
        )
    by, _, why = told.decode(errors="replace").partition(" ")
    if by in ("", BROKEN):
        raise JudgeError(f"{mutant.name if mutant else 'the code as it is'}: {why}")
    return by, why


def _address_space() -> int:
    """Bytes of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _in_child(
    mutant: Mechanical | None, tests: tuple[str, ...], seeds: int, where: Path, writer: int
) -> None:  # pragma: no cover - in a process that ends here
    gc.freeze()  # what the parent had is not collected here: gRPC's objects end a forked process
    most = _address_space() + MEMORY_BYTES  # beside what the process was forked with
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        if mutant is not None:
            plant(mutant)
        told = _hunt(tests, seeds, where)
    except MemoryError:
        told = "time it took too much memory"
    except BaseException:  # the judge's own fault, not the mutant's
        told = f"{BROKEN} {traceback.format_exc(limit=-3)}"
    try:
        os.write(writer, told[:PIPE_BYTES].encode()[:PIPE_BYTES])
    finally:
        os._exit(0)


def _used_cpu(of: int) -> int:
    """Seconds of processor time, rounded up; of: this process, or its ended children."""
    used = resource.getrusage(of)
    return int(used.ru_utime + used.ru_stime) + 1


def _hunt(tests: tuple[str, ...], seeds: int, where: Path) -> str:
    failed = _failing_test(tests, where)
    if failed:
        return f"tests {failed}"
    for seed in range(seeds):
        try:
            violation = run(seed).violation
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            violation = repr(error)
        if violation:
            return f"seed {seed}: {violation}"
    return "nothing "


class _First:
    """A plugin that remembers the first test that failed."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest."""
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """Called by pytest."""
        if report.failed and not self.name:
            self.name = report.nodeid


def _failing_test(tests: tuple[str, ...], where: Path) -> str:
    if not tests:
        return ""
    import pytest

    first = _First()
    how = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={where / FILES}"]
    how += [f"--deselect={name}" for name in _LEFT_OUT]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*how, *tests], [first])
    return "" if code == 0 else first.name or f"pytest ends with {code}"


# -- the tests' files ------------------------------------------------------------------------------


@contextlib.contextmanager
def workspace(above: Path) -> Iterator[Path]:
    """A directory that is removed in the end, also where that is a SIGTERM.

    What a process left that was killed outright is removed by the next one.
    """
    _remove_stale(above)
    where = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=above))
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _remove_stale(above: Path) -> None:
    for path in above.glob(f"{PREFIX}*-*"):
        maker = path.name[len(PREFIX) :].partition("-")[0]
        if (
            maker.isdecimal()
            and path.stat().st_uid == os.getuid()
            and not Path("/proc", maker).exists()
        ):
            shutil.rmtree(path, ignore_errors=True)


def _memory() -> Path:
    """Where files cost no disk, if there is such a place."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


# -- many ------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """0 where enough are killed; 1 where too few are, 2 where the measure itself is wrong."""
    asked = parse(arguments)
    os.chdir(ROOT)
    known = all_mutants()
    try:
        spared = equivalent(known)
    except LookupError as error:
        print(error)
        return 2
    chosen = [m for name, m in sorted(known.items()) if name.startswith(asked.mutant or asked.only)]
    if asked.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    random.Random(asked.sample).shuffle(chosen)
    chosen = [mutant for mutant in chosen if mutant.name not in spared]
    with workspace(_memory()) as where:
        try:
            fates = _judge(chosen, asked, where)
        except JudgeError as error:
            print(f"the judge itself failed: {error}")
            return 2
    return 2 if fates is None else conclude(fates, len(known), len(spared))


def _judge(chosen: list[Mechanical], asked: argparse.Namespace, where: Path) -> list[Fate] | None:
    """As many as the budget allows; None where the code as it is fails already."""
    until = time.monotonic() + 60 * asked.budget
    sound: dict[str, int] = {}  # files whose tests pass on the code as it is, and a mutant's limit
    fates: list[Fate] = []
    for mutant in chosen:
        if time.monotonic() >= until:
            break
        if mutant.path not in sound:
            before = _used_cpu(resource.RUSAGE_CHILDREN)
            seeds = 0 if sound else asked.seeds
            by, why = try_one(None, TESTS[mutant.path], seeds, where, CPU_SECONDS_SOUND)
            if by != "nothing":
                print(f"the code as it is fails already: {by} {why}")
                return None
            took = _used_cpu(resource.RUSAGE_CHILDREN) - before
            sound[mutant.path] = max(CPU_SECONDS, SLOWER * took)
        tests, limit = TESTS[mutant.path], sound[mutant.path]
        fate = Fate(mutant, *try_one(mutant, tests, asked.seeds, where, limit))
        fates.append(fate)
        if asked.mutant or fate.killed_by == "nothing":
            print(f"{mutant.name}\n{mutant.diff()}\n{fate.killed_by} {fate.why}\n", flush=True)
    return fates


def conclude(fates: list[Fate], known: int, spared: int) -> int:
    """Print the score."""
    killed = [fate for fate in fates if fate.killed_by != "nothing"]
    by = Counter(fate.killed_by for fate in killed)
    share = len(killed) / len(fates) if fates else 1.0
    how = ", ".join(f"{name} {count}" for name, count in sorted(by.items()))
    print(
        f"killed {len(killed)} of {len(fates)} mechanical mutants ({share:.1%}: {how}); "
        f"there are {known}, {spared} of them equivalent"
    )
    return 1 if len(fates) >= LEAST_JUDGED and share < GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
