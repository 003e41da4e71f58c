"""Planted bugs replace functions that exist, by others that are called in the same way."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from duolog_server.store.messagestore import MessageStore
from sim import hunting
from sim.cluster import Outcome
from sim.hunting import MUTANTS_IN, Catch, hunt, read_notes, stale, write_notes
from sim.mutants import MUTANTS
from sim.planted import Mutant

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def function_of(found: Any) -> Any:
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def counts(function: Any) -> tuple[int, float]:
    """So many arguments it must, and may, be given by place."""
    parameters = inspect.signature(function).parameters.values()
    placed = [p for p in parameters if p.kind in POSITIONAL]
    open_end = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    must = sum(p.default is p.empty for p in placed)
    return must, float("inf") if open_end else len(placed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name))
def test_a_planted_bug_replaces_an_existing_function_of_its_signature(mutant: Mutant) -> None:
    for target, name, planted in mutant.patches():
        known = inspect.getattr_static(target, name, None)
        assert known is not None, f"{target} has no {name}"
        if not callable(function_of(known)) or not callable(function_of(planted)):
            continue
        must, may = counts(function_of(known))
        least, most = counts(function_of(planted))
        assert least <= must, f"{name} is called with {must} arguments, the bug needs {least}"
        assert most >= must, f"{name} is called with {must} arguments, the bug takes {most}"
        assert may >= least


def test_a_planted_bug_that_fails_by_itself_is_not_caught() -> None:
    code: dict[str, Any] = {}
    failing = "def put(*_, **__):\n    raise KeyError('of its own')\n"
    exec(compile(failing, f"{MUTANTS_IN}of_a_test.py", "exec"), code)
    catch = hunt(Mutant("broken", "", lambda: [(MessageStore, "put", code["put"])]))
    assert catch.seed == -1
    assert "KeyError: 'of its own'" in catch.violation


HARMLESS = Mutant("harmless", "", list)


def seeds_tried(monkeypatch: pytest.MonkeyPatch, caught_by: int) -> list[int]:
    """The seeds that a hunt tries from now on; one of them catches the bug."""
    tried: list[int] = []

    def run(seed: int, *_: object, **__: object) -> Outcome:
        tried.append(seed)
        return Outcome(seed, "", 0, violation="broken" if seed == caught_by else "")

    monkeypatch.setattr(hunting, "run", run)
    return tried


def test_a_hunt_begins_with_the_noted_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = seeds_tried(monkeypatch, 7)
    assert hunt(HARMLESS, 7) == Catch("harmless", 7, "broken")
    assert tried == [7]


def test_a_stale_note_costs_one_seed_and_no_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = seeds_tried(monkeypatch, 3)
    assert hunt(HARMLESS, 2).seed == 3
    assert tried == [2, 0, 1, 3]


def test_a_bug_that_no_seed_catches_is_missed_whatever_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hunting, "MUTANT_SEEDS", 5)
    tried = seeds_tried(monkeypatch, -1)
    assert hunt(HARMLESS, 4) == Catch("harmless", -1, "")
    assert tried == [4, 0, 1, 2, 3]


def test_notes_are_read_as_they_were_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hunting, "NOTES", tmp_path / "caught.toml")
    assert read_notes() == {}
    catches = [Catch("one", 3, "broken"), Catch("missed", -1, ""), Catch("two", 0, "broken")]
    write_notes(catches)
    assert read_notes() == {"one": 3, "two": 0}
    assert stale(catches, read_notes()) == []
    moved = [Catch("one", 4, "broken"), Catch("new", 1, "broken")]
    assert stale(moved, read_notes()) == ["new", "one", "two"]


def test_notes_are_of_planted_bugs_and_of_seeds_that_a_hunt_tries() -> None:
    notes = read_notes()
    assert notes.keys() <= {mutant.name for mutant in MUTANTS}
    assert set(notes.values()) <= set(range(hunting.MUTANT_SEEDS))
