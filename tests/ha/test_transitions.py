"""docs/transitions.md is what the machines do, and they do nothing else in the simulator."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest

from duolog_server.ha import failoverevents, frames, masterevents, moverevents, slaveevents
from duolog_server.ha.failover import Failover
from duolog_server.ha.frames import BadFrame
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Received
from sim.cluster import run
from tests.ha.scenes import names
from tools.transitions import FAILOVER, MOVE, SESSION, SLAVE, TARGET, Machine, played, render


def test_the_page_shows_what_the_machines_do() -> None:
    assert TARGET.read_text() == render(), "run make docs"


@pytest.mark.parametrize(
    ("machine", "types"),
    [
        (SLAVE, slaveevents.Event | slaveevents.Effect),
        (SESSION, masterevents.Effect),
        (FAILOVER, failoverevents.Event | failoverevents.Effect),
        (MOVE, moverevents.Event | moverevents.Effect),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_every_event_happens_and_every_effect_is_seen(machine: Machine, types: Any) -> None:
    shown = {
        name.partition(" ")[0] for scene in played(machine) for name in (scene.kind, *scene.said)
    }
    assert {kind.__name__ for kind in get_args(types)} <= shown


class Watched:
    """What machines of one class do: state, event, effect or next state."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, machine: Any, state: Callable[[Any], str]
    ) -> None:
        self.seen: set[tuple[str, str, str]] = set()
        step = machine.step

        def watched(this: Any, event: Any, now_ms: int) -> Sequence[object]:
            before = state(this)
            effects: Sequence[object] = step(this, event, now_ms)
            for followed in (*names(effects), f"→ {state(this)}"):
                self.seen.add((before, kind_of(event), followed))
            return effects

        monkeypatch.setattr(machine, "step", watched)


def kind_of(event: object) -> str:
    """As the page names it."""
    name = type(event).__name__
    if not isinstance(event, Received):
        return name
    try:
        return f"{name} {type(frames.decode(event.data)).__name__}"
    except BadFrame:
        return name


def shown(machine: Machine) -> set[tuple[str, str, str]]:
    return {
        (scene.state, scene.kind, followed)
        for scene in played(machine)
        for followed in (*(name.partition(" ")[0] for name in scene.said), f"→ {scene.after}")
    }


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_the_page_shows_what_the_machines_do_in_the_simulator(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slaves = Watched(monkeypatch, Slave, lambda machine: machine.state.value)
    voters = Watched(monkeypatch, Failover, lambda machine: machine.role.value)
    assert run(seed, elected=True).violation == ""
    assert slaves.seen - shown(SLAVE) == set()
    # It decides after every event: whatever may follow from the passing of time alone.
    known = shown(FAILOVER)
    decided = {(state, followed) for state, event, followed in known if event == "Tick"}
    unknown = voters.seen - known
    assert {row for row in unknown if (row[0], row[-1]) not in decided} == set()
