"""The protocol of a queue's move holds within bounds, and every planted bug breaks it."""

import pytest

from duolog_server.ha.mover import State
from sim import crossmodel, movemodel
from sim.movemodel import SCENARIOS, explore, main
from sim.moveworld import Left, Scenario
from sim.mutants_moves import MOVES, Planted
from tests.sim.test_planted import (
    test_a_planted_bug_replaces_an_existing_function_of_its_signature as fits,
)

# What an exploration must have seen to say anything.
WHOLE = {"PREPARING", "RESERVING", "SEALING", "OPENING", "WITNESSING", "DONE"}
WHOLE |= {"put", "seal", "guest", "open"}
GIVEN_UP = WHOLE | {"REVOKING", "CLEARING", "ENDED", "revoke"}
# ASKING and RENEWING, in which puts wait for other groups, only where records were lost.
ASKED = GIVEN_UP | {"ASKING"}
SEEN = {
    "failovers": GIVEN_UP,
    "batches": GIVEN_UP,
    "zombies": GIVEN_UP,
    # RENEWING: a former master, whose move was revoked for the one that was elected uncleanly.
    "unclean": ASKED | {"RENEWING"},
    # No messages here and in rows: what counts is which queues take puts.
    "targets": (ASKED | {"RENEWING"}) - {"put"},
    "guests": WHOLE | {"RENEWING"},
    "both": (ASKED | {"RENEWING"}) - {"put"},
    "registry": ASKED,
    "rows": GIVEN_UP - {"put"},
    "aborts": GIVEN_UP,
    "back": GIVEN_UP,
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario.name))
def test_a_move_keeps_its_invariants_in_every_order_of_events(scenario: Scenario) -> None:
    outcome = explore(scenario)
    assert outcome.violation == "", "\n".join(outcome.trace)
    assert outcome.reached == SEEN[scenario.name]


def test_every_state_of_the_machine_is_explored() -> None:
    assert {state.value for state in State} <= set().union(*SEEN.values())


@pytest.mark.parametrize("ends", [(1, 2, 3), (0, 1, 2), (1, 1, 2)])
def test_a_group_crosses_the_seams_in_order_and_none_is_skipped(
    ends: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossmodel, "FIRSTS", (0, *ends[:-1]))
    monkeypatch.setattr(crossmodel, "ENDS", ends)
    outcome = crossmodel.explore()
    assert outcome.violation == "", "\n".join(outcome.trace)
    assert outcome.states > 500


@pytest.mark.parametrize("planted", MOVES, ids=lambda planted: str(planted.mutant.name))
def test_every_planted_bug_is_found_with_a_trace(planted: Planted) -> None:
    fits(planted.mutant)
    outcome = planted.hunt()
    assert outcome.violation
    assert outcome.trace
    assert "too many" not in outcome.violation


def test_a_trace_is_printed_event_by_event() -> None:
    inside = next(one for one in MOVES if one.mutant.name == "move-row-inside")
    outcome = inside.hunt()
    assert outcome.violation == "a pause waits for the registry"
    printed = movemodel.report(SCENARIOS[0], outcome, 0.0)
    assert printed.count("\n") == len(outcome.trace)
    assert "a-1-1 of" in printed.splitlines()[1]


def test_a_bound_on_states_is_not_a_proof() -> None:
    assert explore(Scenario("small", Left()), states_max=10).violation == "too many states"


def test_the_command_explores_one_scenario(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movemodel, "SCENARIOS", (Scenario("quick", Left()),))
    assert main(["--only", "quick"]) == 0
    assert "no violation" in capsys.readouterr().out
