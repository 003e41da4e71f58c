"""Mechanical mutants: their changes, their names, and how their fate is decided."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim import mechanical, rooms
from sim.mechanical import Fate, JudgeError, all_mutants, conclude, equivalent, try_one, workspace
from sim.mutation import Mechanical, mutants, mutated
from tests.until import wait_until

SOURCE = """
class C:
    def f(self, a, b):
        self.low = min(a, b)
        self.high = self.low + 1
        if not b:
            return True
        self.note(a)
        assert a < b
        return a < b
"""


def found(source: str = SOURCE) -> list[Mechanical]:
    return mutants("m.py", source, lambda function: True)


def test_each_change_is_one_line_of_a_function() -> None:
    changes = {(m.name.split(":")[2], m.before.strip(), m.after.strip()) for m in found()}
    assert changes == {
        ("sum", "min(a, b)", "max(a, b)"),
        ("sum", "self.low + 1", "self.low - 1"),
        ("number", "1", "2"),
        ("opposite", "if not b:", "if b:"),
        ("opposite", "True", "False"),
        ("boundary", "a < b", "a <= b"),
        ("opposite", "a < b", "a >= b"),
        ("drop", "self.low = min(a, b)", "(left out)"),
        ("drop", "self.high = self.low + 1", "(left out)"),
        ("drop", "if not b:\n        return True", "(left out)"),
        ("drop", "self.note(a)", "(left out)"),
        (
            "swap",
            "self.low = min(a, b)\n    self.high = self.low + 1",
            "self.high = self.low + 1\n    self.low = min(a, b)",
        ),
    }


@pytest.mark.parametrize(
    ("second", "swapped"),
    [
        ("self.b = 0", 0),
        ("self.b = Thing(x)", 0),
        ("self.b = self.a", 1),
        ("self.b = f(self)", 1),
        ("self.b = x.y", 1),
        ("self.a = 2", 1),
        ("self.f()", 1),
        ("x.b = 2", 0),
    ],
)
def test_independent_statements_are_not_swapped(second: str, swapped: int) -> None:
    source = f"def f(self, x):\n    self.a = 1\n    {second}\n"
    assert sum(":swap:" in mutant.name for mutant in found(source)) == swapped


@pytest.mark.parametrize(
    ("second", "swapped"),
    [
        ("self.b = x.y", 0),
        ("self.b = x.make(y=self.c)", 0),
        ("self.b = x.make(self.a)", 1),
        ("self.b = x.make(self)", 1),
        ("self.b = self.make(x)", 1),
        ("self.b = make(lambda: self)", 1),
        ("x.add(self)", 1),
    ],
)
def test_nobody_else_sees_an_object_that_is_being_made(second: str, swapped: int) -> None:
    source = f"class C:\n    def __init__(self, x):\n        self.a = 1\n        {second}\n"
    assert sum(":swap:" in mutant.name for mutant in found(source)) == swapped


def test_names_are_unique_and_do_not_move_with_other_code() -> None:
    names = [mutant.name for mutant in found()]
    assert len(set(names)) == len(names)
    later = "def other():\n    return 1 + 1\n" + SOURCE
    assert [m.name for m in found(later) if m.function == "C.f"] == names


def test_a_mutant_is_the_function_with_its_change() -> None:
    source = SOURCE.replace("assert a < b", "pass")
    boundary = next(m for m in found(source) if ":boundary:" in m.name)
    space: dict[str, type] = {}
    exec(compile(source, "m.py", "exec"), space)
    made = space["C"]()
    made.note = lambda a: None
    made.f.__func__.__code__ = mutated(boundary, source)
    assert made.f(2, 2)


def test_a_mutant_without_the_call_of_super_fits_the_function_that_it_replaces() -> None:
    source = (
        "class A:\n    def __init__(self):\n        self.a = 1\n"
        "class B(A):\n    def __init__(self):\n        super().__init__()\n        self.b = 2\n"
    )
    dropped = next(m for m in found(source) if m.before.strip() == "super().__init__()")
    space: dict[str, type] = {}
    exec(compile(source, "m.py", "exec"), space)
    vars(space["B"])["__init__"].__code__ = mutated(dropped, source)
    assert vars(space["B"]()) == {"b": 2}


def test_a_listed_mutant_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    known = all_mutants()
    equivalent(known)
    path = tmp_path / "equivalent.toml"
    path.write_text('"ha/master.py:Master.gone:drop:00000000" = "why"\n')
    with pytest.raises(LookupError, match="do not exist any more"):
        equivalent(known, path)


def test_a_mutant_is_killed_by_its_tests_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert try_one(None, ("tests/ha/test_syncstate.py",), 0, tmp_path) == ("nothing", "")
    mutant = next(
        m
        for m in all_mutants().values()
        if m.path == "ha/syncstate.py" and "least = min" not in m.before and ":sum:" in m.name
    )
    by, why = try_one(mutant, ("tests/ha/test_syncstate.py",), 0, tmp_path)
    assert by == "tests", (mutant.diff(), why)
    assert not list(tmp_path.iterdir())


def test_garbage_of_the_parent_is_not_collected_in_a_mutants_process(tmp_path: Path) -> None:
    """gRPC's objects are freed by threads that a forked process does not have."""

    class Garbage:
        def __init__(self) -> None:
            self.me = self
            self.owner = os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.owner:
                os.kill(os.getpid(), signal.SIGSEGV)

    Garbage()
    assert try_one(None, ("tests/ha/test_syncstate.py",), 0, tmp_path) == ("nothing", "")


def test_an_error_of_the_judge_does_not_count_as_a_kill(tmp_path: Path) -> None:
    mutant = replace(next(iter(all_mutants().values())), function="there_is_none")
    with pytest.raises(JudgeError, match=r"(?s)there_is_none"):
        try_one(mutant, (), 0, tmp_path)


def test_a_mutant_may_take_as_long_as_the_code_as_it_is_and_one_that_never_ends_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that need more than the usual limit are not a failure of the code."""
    test = tmp_path / "test_long.py"
    test.write_text(
        "import time\ndef test_it():\n    begun = time.process_time()\n"
        "    while time.process_time() < begun + 2.5:\n        pass\n"
    )
    files = mechanical.TESTS | {"ha/waiters.py": (str(test),)}
    monkeypatch.setattr(mechanical, "TESTS", files)
    monkeypatch.setattr(mechanical, "CPU_SECONDS", 1)
    mutant = next(m for m in all_mutants().values() if m.path == "ha/waiters.py")
    asked = mechanical.parse(["--seeds", "0"])
    fates = mechanical._judge([mutant], asked, tmp_path)
    assert fates == [Fate(mutant, "nothing", "")]
    by, why = try_one(None, (str(test),), 0, tmp_path, 1)
    assert (by, "too long" in why) == ("time", True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_ended_by_a_signal_leaves_neither_files_nor_a_child(
    tmp_path: Path, number: signal.Signals
) -> None:
    test = tmp_path / "test_forever.py"
    test.write_text(
        "import os, time\ndef test_it(tmp_path):\n"
        "    (tmp_path / 'file').touch()\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    program = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from sim.mechanical import try_one, workspace\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs ignore it
        f"with workspace(Path({str(tmp_path)!r})) as where:\n"
        f"    try_one(None, ({str(test)!r},), 0, where)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        child = tmp_path / "child"
        wait_until(lambda: child.exists() and child.read_text() != "")
        assert list(tmp_path.glob(f"{mechanical.PREFIX}*/**/file"))
        process.send_signal(number)
        assert process.wait() != 0
    assert not list(tmp_path.glob(f"{mechanical.PREFIX}*"))
    assert not Path("/proc", child.read_text()).exists()


def test_the_files_of_a_killed_process_are_removed_by_the_next_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    left = tmp_path / f"{mechanical.PREFIX}{process.pid}-x"
    used = tmp_path / f"{mechanical.PREFIX}{os.getppid()}-x"
    other = tmp_path / f"{mechanical.PREFIX}notes"
    for path in (left, used, other):
        path.mkdir()
    with workspace(tmp_path) as where:
        assert where.is_dir()
        assert not left.exists()
    assert used.exists()
    assert other.exists()
    assert not where.exists()


def test_the_score_is_printed_and_a_low_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = found()[0]
    dead, alive = Fate(mutant, "tests", "t"), Fate(mutant, "nothing", "")
    assert conclude([dead] * 9 + [alive], 100, 2) == 0
    assert "killed 9 of 10 mechanical mutants (90.0%: tests 9)" in capsys.readouterr().out
    enough = mechanical.LEAST_JUDGED
    assert conclude([dead] * enough + [alive] * enough, 100, 2) == 1


def test_listed_mutants_of_rooms_exist_and_every_function_can_tell_that_it_runs() -> None:
    known = rooms.all_mutants()
    equivalent(known, rooms.EQUIVALENT)
    for mutant in {(one.path, one.function): one for one in known.values()}.values():
        source = (mechanical.ROOT / mutant.path).read_text()
        assert rooms.noting(mutant.path, source, mutant.function).co_name in mutant.function


def test_awaited_calls_are_left_out_and_lines_of_the_log_are_left_as_they_are() -> None:
    source = "async def f(a):\n    await a.b()\n    log.info('c', d=1)\n    await a.e()\n"
    changes = {(m.name.split(":")[2], m.before.strip()) for m in found(source)}
    assert changes == {("drop", "await a.b()"), ("drop", "await a.e()")}


def test_a_mutant_of_a_room_is_killed_by_a_test_of_its_lines(tmp_path: Path) -> None:
    """In a process of its own: nothing of pytest's is started twice in this one."""
    name = "client/duolog/_backoff.py:BackOff.next:"
    test = "test_hints_are_followed_once_at_their_epoch_and_pauses_grow_with_jitter"
    tests = f"tests/client/test_following.py::{test}"
    judged = subprocess.run(
        [sys.executable, "-m", "sim.rooms", "client/duolog", "--mutant", name, "--tests", tests],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "mechanical mutants" in judged.stdout, judged.stderr
    assert judged.returncode == 0
    assert judged.stderr.count(f"tests {name}") >= 2, judged.stderr
