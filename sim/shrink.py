"""Making a failing run small: leave faults out as long as it still fails."""

from collections.abc import Callable

from sim.faults import Fault

Fails = Callable[[list[Fault]], str]


def shrink(faults: list[Fault], fails: Fails) -> tuple[list[Fault], str]:
    """The fewest faults found that still make the run fail, and how it fails then.

    fails: runs with these faults; empty where nothing fails. Halves first, single faults then,
    until nothing more can be left out.
    """
    why = fails(faults)
    assert why, "only a failing run can be shrunk"
    size = max(1, len(faults) // 2)
    while size:
        at = 0
        while at < len(faults):
            fewer = faults[:at] + faults[at + size :]
            found = fails(fewer)
            if found:
                faults, why = fewer, found
            else:
                at += size
        size //= 2
    return faults, why
