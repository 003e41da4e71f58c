"""Histories through porcupine: right ones pass, each broken one fails."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.chaos import linearizable as chaos
from sim import linearizable
from sim.cluster import Cluster
from sim.linearizable import UNKNOWN, Operation, Skipped, build, check, of_simulation
from tests.cluster.test_checkers import a_history


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checker; where there is no Go, the tests are skipped and say so."""
    try:
        return build(tmp_path_factory.mktemp("porcupine"))
    except Skipped as why:
        pytest.skip(str(why))


def append(begin: int, end: int, offset: int, body: str) -> Operation:
    return Operation("T/0", "append", begin, end, offset, (body,))


def read(begin: int, end: int, offset: int, *bodies: str) -> Operation:
    return Operation("T/0", "read", begin, end, offset, bodies)


def offset_of(kind: str, begin: int, offset: int, group: str = "g") -> Operation:
    return Operation("T/0", kind, begin, begin + 1, offset, (), group)


WRITTEN = [append(0, 2, 0, "a"), append(1, 3, 1, "b"), append(4, UNKNOWN, UNKNOWN, "c")]


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ([read(5, 6, 0, "a", "b")], "Ok"),
        ([read(5, 6, 2, "c"), append(7, 8, 3, "d")], "Ok"),
        ([append(7, 8, 2, "d"), read(9, 9, 2, "d"), read(10, 11, 3, "c")], "Ok"),
        ([read(5, 6, 0, "b")], "Illegal"),
        ([read(5, 6, 1, "b", "x")], "Illegal"),
        ([append(7, 8, 1, "d")], "Illegal"),
        ([append(7, 8, 4, "d")], "Illegal"),
        ([read(2, 3, 2, "c")], "Illegal"),
        ([read(5, 6, 2, "c"), read(7, 8, 2, "d"), append(6, 7, 2, "d")], "Illegal"),
    ],
)
def test_a_log_is_what_was_appended_in_one_order(
    program: Path, more: list[Operation], result: str
) -> None:
    verdict = check([*WRITTEN, *more], program)
    assert (verdict.result, verdict.operations) == (result, len(WRITTEN) + len(more))
    assert verdict.queue == ("T/0" if result == "Illegal" else "")


def test_a_group_is_told_the_offset_that_it_committed(program: Path) -> None:
    good = [
        offset_of("committed", 0, -1),
        offset_of("commit", 2, 5),
        offset_of("commit", 4, 1, "other"),
        offset_of("committed", 6, 5),
    ]
    assert check(good, program).result == "Ok"
    assert check([*good, offset_of("committed", 8, 4)], program).result == "Illegal"
    assert check([*good, offset_of("committed", 8, -1)], program).result == "Illegal"


@pytest.mark.parametrize("elected", [False, True])
def test_simulated_histories_are_linearizable_and_broken_ones_are_not(
    program: Path, elected: bool
) -> None:
    for seed in range(4):
        cluster = Cluster(seed, elected=elected)
        assert cluster.run().violation == ""
        operations = of_simulation(cluster.history)
        assert check(operations, program).result == "Ok", seed
    answered = [k for k, o in enumerate(operations) if o.op == "append" and o.offset >= 0]
    for broken in (
        replace(operations[answered[3]], offset=operations[answered[3]].offset + 1),
        replace(operations[answered[3]], offset=0, bodies=("another",)),
    ):
        changed = [*operations]
        changed[answered[3]] = broken
        assert check(changed, program).result == "Illegal"


def test_a_chaos_history_is_checked_and_a_lost_message_found(program: Path) -> None:
    history = a_history()
    assert check(chaos.operations(history), program).result == "Ok"
    for queues in history.drains.values():
        queues["t", 0] = [(0, "m0"), (1, "m2")]
    verdict = check(chaos.operations(history), program)
    assert verdict.result == "Illegal"
    assert [found.kind for found in chaos.findings(verdict)] == ["not linearizable"]


def test_without_go_the_check_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    verdict = linearizable.check([])
    assert verdict.result == "Skipped"
    assert "needs Go" in verdict.reason
    assert chaos.findings(verdict) == []
