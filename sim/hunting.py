"""Hunts for the seed that catches a planted bug, beginning with the one that did so last time.

Rules: a note only shortens the hunt. Where its seed catches nothing any more, all seeds are tried,
and the bug is missed only if none of them catches it.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sim import moverun
from sim.cluster import run
from sim.mutants import MUTANTS, Mutant

NOTES = Path(__file__).parent / "caught.toml"
MUTANT_SEEDS = 400
MUTANTS_IN = "mutants_"  # how the names of files with planted bugs begin
HEAD = "# The seed that caught each planted bug last (python -m sim --mutants --keep).\n"


class Catch(NamedTuple):
    """The end of a hunt: the mutant's name, the seed or -1, the violation."""

    name: str
    seed: int
    violation: str


def hunt(mutant: Mutant, noted: int | None = None) -> Catch:
    """Look for a seed that catches a planted bug. noted: the seed that is tried first."""
    with mutant.planted():
        for seed in _order(noted):
            planned = mutant.weather(seed) if mutant.weather is not None else None
            make = moverun.run if mutant.moves else run
            outcome = make(seed, planned, elected=mutant.elected)
            if outcome.failed_in.startswith(MUTANTS_IN):
                return Catch(mutant.name, -1, outcome.violation)  # the planted code failed itself
            if outcome.violation:
                return Catch(mutant.name, seed, outcome.violation)
    return Catch(mutant.name, -1, "")


def _order(noted: int | None) -> Iterator[int]:
    if noted is not None:
        yield noted
    yield from (seed for seed in range(MUTANT_SEEDS) if seed != noted)


def hunt_named(name: str) -> Catch:
    """`hunt` in a process of a pool."""
    return hunt(next(mutant for mutant in MUTANTS if mutant.name == name), read_notes().get(name))


# -- notes -----------------------------------------------------------------------------------------


def read_notes() -> dict[str, int]:
    """The seed that caught each mutant last, by name; none where nothing is noted."""
    return tomllib.loads(NOTES.read_text()) if NOTES.exists() else {}


def stale(catches: Iterable[Catch], notes: Mapping[str, int]) -> list[str]:
    """The mutants of which the notes say another seed, or nothing, and those that are gone."""
    seeds = {catch.name: catch.seed for catch in catches if catch.seed >= 0}
    return sorted(
        name for name in seeds.keys() | notes.keys() if seeds.get(name) != notes.get(name)
    )


def write_notes(catches: Iterable[Catch]) -> None:
    """Note the seeds of these catches, and of no others."""
    rows = [f"{catch.name} = {catch.seed}\n" for catch in catches if catch.seed >= 0]
    NOTES.write_text(HEAD + "".join(rows))
