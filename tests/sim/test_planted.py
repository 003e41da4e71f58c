"""Planted bugs replace functions that exist, by others that are called in the same way."""

import inspect
from typing import Any

import pytest

from sim.__main__ import MUTANTS_IN, hunt
from sim.mutants import MUTANTS
from sim.planted import Mutant
from store.messagestore import MessageStore

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
    _, seed, told = hunt(Mutant("broken", "", lambda: [(MessageStore, "put", code["put"])]))
    assert seed == -1
    assert "KeyError: 'of its own'" in told
