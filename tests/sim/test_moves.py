"""Runs with two replica groups, between which queues move; the checks see what is wrong."""

from pathlib import Path

import pytest

from duolog_server.store.moves import Guest, Moves, Place, Seal
from sim import movechain
from sim.__main__ import OF_MOVES, run_kept
from sim.drawn import drawn, said
from sim.faults import Fault
from sim.movechain import Span, chain
from sim.movehistory import TOPIC, MoveHistory, Sent
from sim.moverun import run
from sim.witness import Violation

QUIET: list[Fault] = []


def test_queues_move_back_and_forth_and_a_run_is_repeatable() -> None:
    first, again = run(3, QUIET), run(3, QUIET)
    assert (first.violation, again.violation) == ("", "")
    assert first.digest == again.digest
    for what in ("moves_done", "moves_sent_ok", "moves_sent_delayed", "moves_given"):
        assert first.counts[what] > 0, what
    assert first.counts["spans"] > 4


def test_nothing_is_lost_doubled_or_out_of_order_under_faults() -> None:
    (seed,) = drawn(range(1 << 16), 1)
    outcome = run(seed)
    assert outcome.violation == "", f"{said()}: python -m sim --moves --seed {seed} --trace"


@pytest.mark.parametrize(
    "path", drawn(sorted(OF_MOVES.glob("*.json")), 1), ids=lambda path: path.stem
)
def test_a_run_that_failed_once_never_fails_again(path: Path) -> None:
    assert run_kept(path).violation == "", f"{said()}: python -m sim --moves --replay {path}"


# -- the checks ------------------------------------------------------------------------------------

LEFT, RIGHT = Place("left", 0), Place("right", 2)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Moves]:
    """A queue that has moved once: the tables of both groups."""
    tables = {"left": Moves(), "right": Moves()}
    tables["left"].seals[TOPIC] = {0: Seal(5, RIGHT, "m")}
    tables["right"].guests[TOPIC] = {2: Guest(LEFT, LEFT, "m", 5)}
    monkeypatch.setattr(movechain, "moves_of", lambda node: tables[node])
    return tables


MASTERS = {"left": "left", "right": "right"}  # nodes, as `moves_of` is asked for their tables


def spans() -> list[Span]:
    return chain(MASTERS, LEFT)  # type: ignore[arg-type]


def test_the_spans_of_a_name_follow_each_other(moves: dict[str, Moves]) -> None:
    assert spans() == [Span(LEFT, 0, 5), Span(RIGHT, 5, None)]
    chains = {LEFT: spans()}
    assert movechain.others_take_puts(MASTERS, chains) == ""  # type: ignore[arg-type]
    moves["left"].guests[TOPIC] = {3: Guest(LEFT, RIGHT, "n", 9)}
    assert movechain.others_take_puts(MASTERS, chains).startswith("M1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("guest", "rule"),
    [
        (Guest(LEFT, LEFT, "m"), "M1"),
        (Guest(LEFT, LEFT, "m", None, True), "M1"),
        (Guest(LEFT, LEFT, "m", 4), "M2"),
        (Guest(LEFT, Place("left", 1), "m", 5), "M2"),
        (Guest(Place("left", 1), LEFT, "m", 5), "M2"),
    ],
)
def test_a_span_that_does_not_follow_is_found(
    moves: dict[str, Moves], guest: Guest, rule: str
) -> None:
    moves["right"].guests[TOPIC] = {2: guest}
    with pytest.raises(Violation, match=rule):
        spans()


AT = {b"a": [(LEFT, LEFT, 3)], b"b": [(LEFT, RIGHT, 7)]}


@pytest.mark.parametrize(
    ("one", "rule"),
    [
        (Sent(b"c", outcome="ok"), "M5"),
        (Sent(b"c", outcome="ok", delayed=True), "M9"),
        (Sent(b"a", outcome="refused"), "M5"),
        (Sent(b"a", outcome="ok", place=RIGHT, offset=3), "M5"),
        (Sent(b"a", outcome="ok", place=LEFT, offset=4), "M5"),
    ],
)
def test_a_receipt_that_does_not_hold_is_found(one: Sent, rule: str) -> None:
    history = MoveHistory([one, *(Sent(body) for body in AT if body != one.body)])
    with pytest.raises(Violation, match=rule):
        movechain.check_once(history, AT)


def test_what_is_there_twice_or_nobody_sent_is_found() -> None:
    right = MoveHistory(
        [Sent(b"a", outcome="ok", place=LEFT, offset=3), Sent(b"b", outcome="info")]
    )
    movechain.check_once(right, AT)
    with pytest.raises(Violation, match="M5: nobody sent"):
        movechain.check_once(MoveHistory(right.sent[:1]), AT)
    with pytest.raises(Violation, match="M5"):
        movechain.check_once(right, {**AT, b"a": [*AT[b"a"], (LEFT, RIGHT, 9)]})


@pytest.mark.parametrize("outcome", ["ok", "info"])
def test_a_message_before_an_earlier_one_of_its_key_is_found(outcome: str) -> None:
    sent = [Sent(b"a", "k", 1, outcome=outcome), Sent(b"b", "k", 2, outcome="ok")]
    movechain.check_order(sent, AT)
    with pytest.raises(Violation, match="M6"):
        movechain.check_order(sent, {**AT, b"b": [(LEFT, LEFT, 2)]})
    with pytest.raises(Violation, match="M6"):
        movechain.check_order(sent, {**AT, b"b": [(Place("right", 0), RIGHT, 9)]})


def test_messages_are_given_in_their_order_and_as_they_were() -> None:
    history = MoveHistory()
    history.gave("m", RIGHT, 5, b"x", 5)
    history.gave("m", RIGHT, 5, b"x", 5)
    assert (history.deliveries, history.repeats) == (2, 1)
    with pytest.raises(Violation, match="nobody"):
        history.gave("m", RIGHT, 7, b"z", 5)
    with pytest.raises(Violation, match="was"):
        history.gave("m", RIGHT, 5, b"y", 5)
