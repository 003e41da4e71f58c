"""Runs and planted bugs of the simulator that `make test` has: a few, drawn anew for each commit.

`make sim` runs all kept runs, `make sim-mutants` plants all bugs; CI and releases have those, too.
"""

import os
import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parent.parent


@cache
def number() -> int:
    """What they are drawn by: $SAMPLE, or the commit; 0 where there is none."""
    if given := os.environ.get("SAMPLE"):
        return int(given)
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(found.stdout[:8] or "0", 16)


def drawn(all_of_them: Sequence[T], count: int) -> list[T]:
    """Some, in their order: the same in every process."""
    places = random.Random(number()).sample(range(len(all_of_them)), count)
    return [all_of_them[place] for place in sorted(places)]


def said() -> str:
    """How to draw them again."""
    return f"drawn with SAMPLE={number()}"
