"""A move step by step; every order of steps is explored in tests/sim/test_movemodel.py."""

from dataclasses import replace
from typing import Any

import pytest

from duolog_server.ha.mover import (
    HOLDING,
    Span,
    Start,
    State,
    began_in,
    begin,
    move_id,
    resume,
)
from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Append,
    Ask,
    Call,
    Carries,
    Commit,
    Committed,
    Conflict,
    Event,
    Held,
    Hold,
    Left,
    Lost,
    Nothing,
    NotSealed,
    Open,
    Opened,
    Passed,
    Refused,
    Release,
    Reply,
    Report,
    Reserve,
    Reserved,
    Retry,
    Revoke,
    Revoked,
    Row,
    Sealed,
    Seen,
    Settled,
    Unknown,
    joined,
)
from duolog_server.ha.movetarget import is_absence, records_for, reply_to, row_of, to_publish
from duolog_server.store.moves import Moves, Place, Seal
from tests.ha.moverscenes import (
    CLEAR,
    DONE,
    DOUBTED,
    HERE,
    LATER,
    OPENING,
    PREPARED,
    RENEWING,
    RESERVING,
    SEAL,
    SEALING,
    SPAN,
    THERE,
    TOPIC,
    WITNESSING,
    after,
    resumed,
    sealed,
)


def test_a_move_from_its_first_step_to_its_last() -> None:
    assert after()[1] == (Commit(PREPARED, 0),)
    assert after(*RESERVING)[1] == (Call(Reserve("a-2-1", HERE, HERE)),)
    mover, effects = after(*SEALING[:-1])
    assert effects == (Hold(),)
    assert mover.holds
    assert mover.moved_to is None
    assert after(*SEALING)[1] == (Append(Seal(10, THERE, "a-2-1")),)
    assert after(*OPENING)[1] == (Call(Open("a-2-1", 10)),)
    mover, effects = after(*WITNESSING)
    assert effects == (Release(THERE), Commit(DONE, 7))
    assert not mover.holds
    assert mover.moved_to == THERE
    mover, effects = mover.step(Committed(DONE, 8))
    assert (mover.state, effects, mover.moved_to) == (State.DONE, (), THERE)


@pytest.mark.parametrize("events", [(), RESERVING, OPENING, WITNESSING])
def test_what_was_not_answered_is_sent_again(events: tuple[Event, ...]) -> None:
    mover, effects = after(*events)
    again, repeated = mover.step(Retry())
    assert again == mover
    assert repeated == tuple(one for one in effects if not isinstance(one, Release))


def test_moves_of_different_sources_have_different_ids() -> None:
    ids = {move_id(group, 2, 1) for group in ("a", "b", "shop-2")}
    assert len(ids) == 3
    assert {began_in(move) for move in ids} == {2}


def test_a_seal_is_stored_once() -> None:
    mover, _ = after(*SEALING)
    assert mover.step(Retry()) == (mover, ())


def test_nothing_is_opened_before_its_seal_is_confirmed() -> None:
    mover, _ = after(*SEALING)
    assert mover.step(Answered(Opened("a-2-1", THERE, 10))) == (mover, ())


def test_an_abort_before_anything_is_reserved_clears_the_row() -> None:
    mover, effects = after(Abort())
    assert effects == (Commit(CLEAR, 0),)
    mover, effects = mover.step(Conflict(Seen(PREPARED, 7)))  # it was written nevertheless
    assert effects == (Commit(CLEAR, 7),)
    assert mover.step(Committed(CLEAR, 8))[0].state is State.ENDED


def test_an_abort_before_the_seal_waits_for_the_targets_word() -> None:
    mover, effects = after(*RESERVING, Abort())
    assert effects == (Call(Revoke("a-2-1", HERE, HERE)),)
    assert not mover.holds
    mover, effects = mover.step(Answered(Revoked("a-2-1")))
    assert effects == (Commit(CLEAR, mover.seen.revision),)
    assert mover.step(Committed(CLEAR, 9))[0].state is State.ENDED


@pytest.mark.parametrize("events", [SEALING, OPENING, WITNESSING])
def test_no_abort_after_the_seal(events: tuple[Event, ...]) -> None:
    mover, _ = after(*events)
    assert mover.step(Abort()) == (mover, ())


def test_a_refused_reservation_is_revoked() -> None:
    mover, effects = after(*RESERVING, Answered(Refused("a-2-1", "its topic is of type LITE")))
    assert mover.state is State.REVOKING
    assert effects == (Call(Revoke("a-2-1", HERE, HERE)),)


def test_answers_to_other_moves_change_nothing() -> None:
    for events in (RESERVING, OPENING):
        mover, _ = after(*events)
        for reply in (Reserved("a-2-0", THERE), Unknown("a-2-0"), Revoked("a-2-0")):
            assert mover.step(Answered(reply)) == (mover, ())


def test_a_move_is_aborted_while_no_seal_of_it_may_be_stored() -> None:
    mover, effects = after(*SEALING, NotSealed(), Abort())
    assert effects == (Release(None), Call(Revoke("a-2-1", HERE, HERE)))
    assert (mover.state, mover.holds) == (State.REVOKING, False)


# -- a target that was set back --------------------------------------------------------------------


@pytest.mark.parametrize("reply", [Unknown("a-2-1"), Revoked("a-2-1")])
def test_a_guest_that_the_target_lost_is_reserved_anew_and_the_seal_replaced(reply: Reply) -> None:
    mover, effects = after(*OPENING, Answered(reply))
    assert (mover.state, mover.holds) == (State.RENEWING, True)
    assert effects == (Call(Reserve("a-2-1.1", HERE, HERE)),)
    mover, effects = mover.step(Answered(Reserved("a-2-1.1", Place("b", 5))))
    assert effects == (Hold(),)
    mover, effects = mover.step(Held(10))
    assert effects == (Append(Seal(10, Place("b", 5), "a-2-1.1"), "a-2-1"),)
    mover, effects = mover.step(Sealed())
    assert effects == (Call(Open("a-2-1.1", 10)),)
    mover, effects = mover.step(Answered(Opened("a-2-1.1", Place("b", 5), 10)))
    assert effects == (Release(Place("b", 5)), Commit(Row(HERE, Place("b", 5)), 7))


def test_a_guest_that_was_lost_again_or_whose_new_id_was_used_up_gets_the_next_id() -> None:
    mover, effects = after(*RENEWING, Answered(Revoked("a-2-1.1")))
    assert effects == (Call(Reserve("a-2-1.2", HERE, HERE)),)
    assert mover.replaces == "a-2-1"


@pytest.mark.parametrize("events", [OPENING, RENEWING])
def test_another_guest_that_has_begun_is_taken_and_the_seal_replaced(
    events: tuple[Event, ...],
) -> None:
    found = Opened("a-2-0", Place("b", 9), 8)
    mover, effects = after(*events, Answered(found))
    assert effects == (Hold(),)
    _, effects = mover.step(Held(10))
    assert effects == (Append(Seal(10, Place("b", 9), "a-2-0", 8), "a-2-1"),)


def test_a_target_that_turns_out_to_be_lost_is_asked_again_and_puts_wait() -> None:
    mover, effects = after(*WITNESSING, Lost())
    assert effects == (Call(Open("a-2-1", 10)),)
    assert mover.holds


# -- the row ---------------------------------------------------------------------------------------


def test_a_lost_answer_of_the_registry_is_told_by_the_row() -> None:
    assert after(Conflict(Seen(PREPARED, 7)))[0].state is State.RESERVING
    assert after(*WITNESSING, Conflict(Seen(DONE, 8)))[0].state is State.DONE


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (replace(PREPARED, move="a-2-0"), "it moves already: try again"),
        (DONE, f"it is at {DONE.at} by the registry: try again"),
    ],
)
def test_a_queue_that_moves_already_does_not_move_again(row: Row, told: str) -> None:
    mover, effects = begin(SPAN, "b", "a-2-1", Seen(row, 3))
    assert mover.state is State.ENDED
    assert effects == (Report(told),)
    assert after(Conflict(Seen(row, 3)))[0].state is State.ENDED


def test_a_row_that_was_lost_is_written_anew() -> None:
    _, effects = after(*WITNESSING, Conflict(Seen()))
    assert effects == (Commit(DONE, 0),)


def test_a_row_written_late_ends_no_later_state() -> None:
    mover, _ = after(Abort())
    mover, effects = mover.step(Committed(PREPARED, 7))
    assert (mover.state, effects) == (State.CLEARING, ())
    mover, effects = mover.step(Retry())
    assert effects == (Commit(CLEAR, 7),)


def test_a_row_of_another_move_is_not_cleared() -> None:
    other = replace(PREPARED, move="a-2-2")
    mover, effects = after(Abort(), Conflict(Seen(other, 9)))
    assert (mover.state, effects) == (State.ENDED, ())


# -- the next master of the source -----------------------------------------------------------------


@pytest.mark.parametrize("row", [None, PREPARED])
def test_a_sealed_queue_is_opened_once_the_log_is_confirmed(row: Row | None) -> None:
    mover = resumed(sealed(), row)
    assert mover.holds
    assert mover.step(Retry()) == (mover, ())
    assert mover.step(Answered(Opened("a-2-1", THERE, 10))) == (mover, ())
    mover, effects = mover.step(Settled())
    assert effects == (Call(Open("a-2-1", 10)),)
    _, effects = mover.step(Answered(Opened("a-2-1", THERE, 10)))
    assert effects == (Release(THERE), Commit(DONE, 5 if row else 0))


def test_what_is_witnessed_needs_no_call() -> None:
    mover = resumed(sealed(), DONE)
    assert (mover.state, mover.moved_to) == (State.DONE, THERE)


def test_a_queue_that_never_moved_has_no_move() -> None:
    assert resume(Start(3, Moves(), Seen()), TOPIC, HERE) is None
    assert resume(Start(3, Moves(), Seen(CLEAR, 4)), TOPIC, HERE) is None


def test_a_move_that_was_not_sealed_is_revoked_and_no_put_waits_for_the_target() -> None:
    mover = resumed(Moves(), PREPARED)
    assert (mover.state, mover.holds) == (State.REVOKING, False)
    assert mover.step(Retry()) == (mover, ())  # a later master may still have the seal
    assert mover.step(Answered(Revoked("a-2-1"))) == (mover, ())
    mover, effects = mover.step(Settled())
    assert effects == (Call(Revoke("a-2-1", HERE, HERE)),)
    assert mover.step(Answered(Revoked("a-2-1")))[1] == (Commit(CLEAR, 5),)


def test_a_lost_seal_is_made_again_where_the_queue_ends_now() -> None:
    mover = resumed(Moves(), DONE)
    assert mover.state is State.ASKING
    assert mover.holds
    assert mover.step(Retry()) == (mover, ())  # a later master may still have the seal
    mover, effects = mover.step(Settled())
    assert effects == (Call(Ask(HERE, HERE, THERE)),)
    begun, effects = mover.step(Answered(Opened("a-2-1", THERE, 10)))
    assert effects == (Hold(),)
    for end in (8, 10, 11):
        sealing, effects = begun.step(Held(end))
        assert effects == (Append(Seal(end, THERE, "a-2-1", 10)),)
        sealed_, effects = sealing.step(Sealed())
        assert effects == (Call(Open("a-2-1", 10)),)
        done, effects = sealed_.step(Answered(Opened("a-2-1", THERE, 10)))
        assert (done.state, effects) == (State.DONE, (Release(THERE),))


def test_where_the_places_between_are_lost_the_one_that_the_row_names_follows() -> None:
    mover, _ = resumed(Moves(), DOUBTED).step(Settled())
    mover, _ = mover.step(Answered(Carries("b-5-1", LATER, 20)))
    _, effects = mover.step(Held(8))
    assert effects == (Append(Seal(8, LATER, "b-5-1", 20)),)


def test_where_nobody_has_what_the_row_says_puts_are_stored_and_the_row_is_written_anew() -> None:
    mover, _ = resumed(Moves(), DOUBTED).step(Settled())
    mover, effects = mover.step(Answered(Nothing()))
    assert effects == (Release(None), Commit(CLEAR, 5))
    ended, _ = mover.step(Conflict(Seen(Row(HERE, Place("d", 1)), 6)))
    assert ended.state is State.ENDED  # that row is asked about by itself


def test_a_row_that_is_older_than_the_log_concerns_no_later_place() -> None:
    moves = target("guest", "open")
    assert resume(Start(3, moves, Seen(PREPARED, 5)), TOPIC, THERE) is None
    moves.apply_seal({**SEAL, "queue": 4, "end": 20, "group": "a", "to": 9, "move": "b-5-1"})
    guest = {"topic": TOPIC, "queue": 6, "group": "a", "of": 3, "from": ["a", 9], "move": "a-6-1"}
    moves.apply_guest(guest)
    moves.apply_open({**guest, "first": 30})
    assert resume(Start(3, moves, Seen(DONE, 5)), TOPIC, Place("b", 6)) is None


def test_a_source_that_lost_its_seal_has_what_is_reserved_revoked_by_its_name() -> None:
    mover, _ = resumed(Moves(), DOUBTED).step(Settled())
    mover, effects = mover.step(Answered(Reserved("a-1-1", THERE)))
    assert effects == (Call(Revoke("a-1-1", HERE, HERE)),)
    assert mover.target == "b"
    mover, effects = mover.step(Answered(Revoked("a-1-1")))
    assert effects == (Call(Ask(HERE, HERE, LATER)),)
    assert mover.step(Answered(Reserved("a-1-1", THERE))) == (mover, ())  # an old answer
    assert mover.step(Answered(Reserved("a-3-1", THERE))) == (mover, ())  # a later master's move
    assert mover.holds


def test_what_has_begun_counts_before_what_is_reserved_and_that_before_the_rows_place() -> None:
    begun, reserved = Opened("m", THERE, 5), Reserved("n", Place("c", 2))
    carries = Carries("o", LATER, 7)
    assert joined([Nothing(), reserved, begun, carries]) == begun
    assert joined([carries, Nothing(), reserved]) == reserved
    assert joined([Nothing(), carries]) == carries


def test_a_guest_that_is_not_witnessed_yet_takes_puts() -> None:
    moves = target("guest", "open")
    assert resume(Start(3, moves, Seen(PREPARED, 5)), TOPIC, THERE) is None
    assert moves.closed(TOPIC, 4) is None


def test_every_state_that_holds_waits_for_no_registry() -> None:
    for state in HOLDING:
        mover = replace(after(*SEALING)[0], state=state)
        assert not [one for one in mover.step(Retry())[1] if isinstance(one, Commit)]


# -- the target ------------------------------------------------------------------------------------

RESERVE, OPEN, REVOKE = Reserve("a-2-1", HERE, HERE), Open("a-2-1", 10), Revoke("a-2-1", HERE, HERE)
OF = {"guest": RESERVE, "open": OPEN, "revoke": REVOKE}


def store(moves: Moves, request: Any, next_id: int = 4) -> list[str]:
    """Apply what a request makes the target store; the kinds of records."""
    records = records_for(moves, TOPIC, request, next_id)
    for change in records:
        getattr(moves, f"apply_{change['op']}")(change)
    return [change["op"] for change in records]


def target(*requests: str) -> Moves:
    moves = Moves()
    for request in requests:
        store(moves, OF[request])
    return moves


def test_a_guest_is_reserved_then_opened() -> None:
    moves = Moves()
    assert reply_to(moves, TOPIC, "b", RESERVE) is None
    assert store(moves, RESERVE) == ["guest"]
    assert reply_to(moves, TOPIC, "b", RESERVE) == Reserved("a-2-1", THERE)
    assert moves.closed(TOPIC, 4) is not None
    assert Span.of(moves, TOPIC, THERE) == Span(HERE, THERE, HERE)
    assert reply_to(moves, TOPIC, "b", OPEN) is None
    assert store(moves, OPEN) == ["open"]
    assert reply_to(moves, TOPIC, "b", OPEN) == Opened("a-2-1", THERE, 10)
    assert moves.closed(TOPIC, 4) is None
    assert Span.of(moves, TOPIC, THERE) == Span(HERE, THERE, HERE)


def test_what_has_begun_does_not_begin_again_elsewhere_nor_under_another_move() -> None:
    moves = target("guest", "open")
    begun = Opened("a-2-1", THERE, 10)
    assert reply_to(moves, TOPIC, "b", Open("a-2-1", 11)) == begun
    assert reply_to(moves, TOPIC, "b", Reserve("a-2-2", HERE, HERE)) == begun
    moves = target("guest")
    store(moves, Reserve("a-2-1.1", HERE, HERE), 5)
    store(moves, OPEN)
    assert reply_to(moves, TOPIC, "b", Open("a-2-1.1", 10)) == begun
    assert store(moves, Open("a-2-1.1", 10)) == ["open"]
    assert moves.first_of(TOPIC, 5) is None


def test_what_has_begun_is_told_to_who_would_revoke_it() -> None:
    moves = target("guest", "open")
    for move in ("a-2-1", "a-2-2"):
        assert reply_to(moves, TOPIC, "b", Revoke(move, HERE, HERE)) == Opened("a-2-1", THERE, 10)


def test_what_is_revoked_never_begins() -> None:
    moves = target("guest")
    assert reply_to(moves, TOPIC, "b", REVOKE) is None
    assert store(moves, REVOKE) == ["revoke"]
    for request in (RESERVE, OPEN, REVOKE):
        assert reply_to(moves, TOPIC, "b", request) == Revoked("a-2-1")
    assert moves.closed(TOPIC, 4) is not None


def test_a_reservation_that_comes_after_its_revocation_finds_the_id_used() -> None:
    moves = Moves()
    assert reply_to(moves, TOPIC, "b", REVOKE) is None
    assert store(moves, REVOKE) == ["guest", "revoke"]
    assert reply_to(moves, TOPIC, "b", RESERVE) == Revoked("a-2-1")


def test_a_move_that_is_revoked_unreserved_leaves_no_name_that_never_was() -> None:
    moves = Moves()
    guest, _ = records_for(moves, TOPIC, Revoke("a-2-1", HERE, Place("b", 4)), 5)
    moves.apply_guest(guest)
    assert row_of(moves, TOPIC, Place("a", 5)) == Row(HERE, Place("b", 4), "a-2-1", "a")


def test_a_source_that_knows_no_move_is_told_what_there_is() -> None:
    asked = Ask(HERE, HERE, HERE)
    assert reply_to(Moves(), TOPIC, "b", asked) == Nothing()
    assert reply_to(target("guest"), TOPIC, "b", asked) == Reserved("a-2-1", THERE)
    assert reply_to(target("guest", "open"), TOPIC, "b", asked) == Opened("a-2-1", THERE, 10)
    assert reply_to(target("guest", "revoke"), TOPIC, "b", asked) == Nothing()
    other = replace(asked, came_from=Place("a", 4))
    assert reply_to(target("guest"), TOPIC, "b", other) == Nothing()


def test_what_the_tables_lack_is_told_apart_from_what_they_say() -> None:
    lacking: list[Reply] = [
        Nothing(),
        Unknown("a-2-1"),
        Refused("a-2-1", "it is of type LITE"),
        Carries("a-2-1", THERE, 10),
    ]
    known_there: list[Reply] = [
        Reserved("a-2-1", THERE),
        Opened("a-2-1", THERE, 10),
        Revoked("a-2-1"),
    ]
    assert all(map(is_absence, lacking))
    assert not any(map(is_absence, known_there))


def test_a_revocation_ends_no_other_move() -> None:
    moves = target("guest")
    store(moves, Revoke("a-2-0", HERE, HERE), next_id=5)
    assert reply_to(moves, TOPIC, "b", RESERVE) == Reserved("a-2-1", THERE)


def test_a_move_that_nothing_is_reserved_for_is_unknown() -> None:
    assert reply_to(Moves(), TOPIC, "b", OPEN) == Unknown("a-2-1")


def test_the_place_that_a_row_names_is_told_if_it_takes_the_puts_of_the_name() -> None:
    before = Place("c", 9)
    moves, asked = target("guest", "open"), Ask(HERE, before, THERE)
    assert reply_to(moves, TOPIC, "b", asked) == Carries("a-2-1", THERE, 10)
    assert reply_to(moves, TOPIC, "b", replace(asked, name=before)) == Nothing()
    assert reply_to(moves, TOPIC, "c", asked) == Nothing()
    assert reply_to(target("guest"), TOPIC, "b", asked) == Nothing()
    moves.apply_seal({**SEAL, "queue": 4, "end": 20, "group": "a", "to": 9, "move": "b-5-1"})
    assert reply_to(moves, TOPIC, "b", asked) == Nothing()


def test_a_registry_that_lost_its_rows_is_told_by_the_logs() -> None:
    assert row_of(sealed(), TOPIC, HERE) == PREPARED
    assert row_of(target("guest"), TOPIC, THERE) == PREPARED
    assert row_of(target("guest", "open"), TOPIC, THERE) == DONE
    assert row_of(target("guest", "revoke"), TOPIC, THERE) is None
    assert row_of(Moves(), TOPIC, HERE) is None
    moved_on = target("guest", "open")
    moved_on.apply_seal({**SEAL, "queue": 4, "end": 20, "group": "a", "to": 9, "move": "a-5-1"})
    assert row_of(moved_on, TOPIC, THERE) == Row(HERE, THERE, "a-5-1", "a")


def test_a_row_that_is_there_is_only_told_of_a_beginning_it_waits_for() -> None:
    opened = target("guest", "open")
    assert to_publish(opened, TOPIC, THERE, None) == DONE
    assert to_publish(opened, TOPIC, THERE, PREPARED) == DONE
    assert to_publish(opened, TOPIC, THERE, CLEAR) == DONE
    assert to_publish(opened, TOPIC, THERE, Row(HERE, Place("c", 1))) is None
    assert to_publish(sealed(), TOPIC, HERE, DONE) is None


def test_a_row_without_a_move_is_told_of_one_that_the_target_still_has_to_revoke() -> None:
    assert to_publish(target("guest"), TOPIC, THERE, CLEAR) == PREPARED
    assert to_publish(target("guest"), TOPIC, THERE, replace(PREPARED, move="a-2-2")) is None
    assert to_publish(target("guest"), TOPIC, THERE, Row(HERE, Place("c", 1))) is None
    assert to_publish(target("guest", "revoke"), TOPIC, THERE, CLEAR) is None


def test_a_move_ends_where_the_queue_has_moved_on_from_a_target_without_a_master() -> None:
    later = Row(HERE, Place("c", 1))
    mover, effects = resumed(sealed(), None).step(Passed(Seen(later, 9)))
    assert (mover.state, effects) == (State.DONE, (Release(later.at),))


def test_a_move_that_is_revoked_ends_with_the_group_of_its_target() -> None:
    mover = resumed(Moves(), PREPARED)
    assert mover.step(Left()) == (mover, ())  # what this log lacks, a later master may have
    mover, effects = mover.step(Settled())[0].step(Left())
    assert (mover.state, [type(one).__name__ for one in effects]) == (State.CLEARING, ["Commit"])
