"""Who must hold a put, while the SyncStateSet changes."""

from dataclasses import replace
from typing import Any

from duolog_server.ha.groupstate import Registration, Replica
from duolog_server.ha.mandate import Mandate, ReplicaProgress
from duolog_server.ha.syncstate import Seen, SyncState
from duolog_server.store.clocks import MonoMs

A, B, C = Replica("a", 1), Replica("b", 2), Replica("c", 3)
ALL = {r.node: Registration(r, "", "") for r in (A, B, C)}


def held(*pairs: tuple[Replica, int]) -> dict[Replica, ReplicaProgress]:
    return {replica: ReplicaProgress(offset, 0) for replica, offset in pairs}


def state(*members: Replica) -> SyncState:
    return SyncState(A, frozenset(members), 10)


def wanted(
    sync: SyncState, progress: dict[Replica, ReplicaProgress], now_ms: int = 0, **how: Any
) -> Any:
    seen = replace(Seen(2, 100, 1000, progress, ALL, (), MonoMs(-10_000)), **how)
    return sync.wanted(seen, MonoMs(now_ms))


def mandate(*members: Replica) -> Mandate:
    return Mandate(A, frozenset(members), frozenset(members), MonoMs(0))


def test_the_least_of_the_set_confirms_and_an_absent_member_stops_it() -> None:
    sync = mandate(A, B, C)
    assert sync.held(90, held((B, 50), (C, 70))) == 50
    assert sync.held(40, held((B, 50), (C, 70))) == 40
    assert sync.held(90, held((B, 50))) == 0


def test_an_acknowledgement_of_another_incarnation_counts_for_nothing() -> None:
    assert mandate(A, B).held(90, held((Replica("b", 7), 90))) == 0


def test_a_growing_set_is_required_before_the_registry_answers() -> None:
    sync = state(A, B)
    sync.propose(frozenset((A, B, C)))
    assert sync.required == {A, B, C}
    sync.observe(frozenset((A, B, C)), 11)
    assert sync.required == {A, B, C}
    assert not sync.unsettled


def test_a_shrinking_set_is_required_in_whole_until_the_registry_answers() -> None:
    sync = state(A, B, C)
    sync.propose(frozenset((A, B)))
    assert sync.required == {A, B, C}
    sync.observe(frozenset((A, B)), 11)
    assert sync.required == {A, B}


def test_a_change_without_an_answer_stays_required_until_it_can_no_longer_be_applied() -> None:
    sync = state(A, B)
    sync.propose(frozenset((A, B, C)))
    sync.observe(frozenset((A, B)), 10)  # read, and not there: it may still be on its way
    assert sync.required == {A, B, C}
    sync.observe(frozenset((A, B)), 11)  # another change was made: that one's check fails now
    assert sync.required == {A, B}


def test_a_replica_joins_the_set_once_it_holds_the_confirmed_log() -> None:
    sync = state(A, B)
    assert wanted(sync, held((B, 200), (C, 99))) is None
    assert wanted(sync, held((B, 200), (C, 100))) == {A, B, C}


def test_unregistered_and_drained_replicas_stay_out() -> None:
    sync = state(A, B)
    others = {name: row for name, row in ALL.items() if name != "c"}
    assert wanted(sync, held((B, 200), (C, 200)), registered=others) is None
    assert wanted(sync, held((B, 200), (C, 200)), drained=("c",)) is None


def test_a_member_that_is_dead_leaves_at_once_and_one_that_is_away_in_a_while() -> None:
    sync = state(A, B, C)
    assert wanted(sync, held((B, 200)), now_ms=0) is None
    assert wanted(sync, held((B, 200)), now_ms=1000) is None
    assert wanted(sync, held((B, 200)), now_ms=1001) == {A, B}
    dead = {name: row for name, row in ALL.items() if name != "c"}
    assert wanted(state(A, B, C), held((B, 200)), registered=dead) == {A, B}


def test_a_member_that_came_back_is_not_late_for_the_time_before() -> None:
    sync = state(A, B, C)
    wanted(sync, held((B, 200)), now_ms=0)
    wanted(sync, held((B, 200), (C, 200)), now_ms=800)
    assert wanted(sync, held((B, 200)), now_ms=1500) is None


def test_a_member_that_lags_for_too_long_leaves() -> None:
    late = {B: ReplicaProgress(200, 0), C: ReplicaProgress(150, 1001)}
    assert wanted(state(A, B, C), late) == {A, B}
    assert wanted(state(A, B, C), {**late, C: ReplicaProgress(150, 1000)}) is None


def test_the_set_never_shrinks_below_the_number_that_puts_require() -> None:
    assert wanted(state(A, B), {}, now_ms=0) is None
    sync = state(A, B, C)
    wanted(sync, {}, now_ms=0)
    found = wanted(sync, {}, now_ms=5000)
    assert isinstance(found, frozenset)
    assert len(found) == 2
    assert A in found


def test_of_two_members_that_are_of_little_use_the_one_that_lags_stays_for_the_number() -> None:
    late = {B: ReplicaProgress(200, 1001)}
    dead = {name: row for name, row in ALL.items() if name != "c"}
    assert wanted(state(A, B, C), late, registered=dead) == {A, B}


def test_a_member_that_lags_stays_while_too_few_others_are_there_to_confirm_anything() -> None:
    late = {C: ReplicaProgress(150, 1001)}
    sync = state(A, B, C)
    assert wanted(sync, late) is None  # B is away, and nothing is confirmed without it
    assert wanted(sync, late, drained=("c",)) is None
    assert wanted(sync, {**late, B: ReplicaProgress(200, 0)}) == {A, B}
    assert wanted(state(A, B, C), late, needed=1) == {A, B}


def test_a_member_that_is_dead_behind_an_open_connection_is_not_counted_as_there() -> None:
    """Its host lost its power: nothing is confirmed by it, but nobody closed its connection."""
    half_open = {B: ReplicaProgress(200, 900), C: ReplicaProgress(150, 1001)}
    dead = {name: row for name, row in ALL.items() if name != "b"}
    assert wanted(state(A, B, C), half_open) == {A, B}
    assert wanted(state(A, B, C), half_open, registered=dead) is None, "C is all there is"
    sync = state(A, B)
    assert wanted(sync, half_open) is None
    assert wanted(sync, half_open, registered=dead) == {A, B, C}, "C comes in though it is behind"


def test_a_member_that_is_away_makes_room_for_one_that_lags() -> None:
    late = {C: ReplicaProgress(150, 1001)}
    sync = state(A, B, C)
    wanted(sync, late, now_ms=0)
    assert wanted(sync, late, now_ms=1001) == {A, C}


def test_of_two_members_that_are_away_the_one_that_lives_stays_for_the_number() -> None:
    for dead, alive in ((B, C), (C, B)):
        registered = {name: row for name, row in ALL.items() if name != dead.node}
        sync = state(A, B, C)
        wanted(sync, held((B, 200), (C, 200)), now_ms=0)
        wanted(sync, {}, now_ms=0)
        assert wanted(sync, {}, now_ms=1001, registered=registered) == {A, alive}


def test_time_in_which_the_master_stood_still_is_not_counted_as_lag() -> None:
    late = {B: ReplicaProgress(200, 0), C: ReplicaProgress(150, 5000)}
    sync = state(A, B, C)
    assert wanted(sync, late, now_ms=9000, awake_ms=MonoMs(9000)) is None
    assert wanted(sync, late, now_ms=10_000, awake_ms=MonoMs(9000)) is None
    assert wanted(sync, late, now_ms=10_001, awake_ms=MonoMs(9000)) == {A, B}
    away = state(A, B, C)
    wanted(away, held((B, 200)), now_ms=0)
    assert wanted(away, held((B, 200)), now_ms=10_000, awake_ms=MonoMs(9000)) is None
    assert wanted(away, held((B, 200)), now_ms=10_001, awake_ms=MonoMs(9000)) == {A, B}


def test_a_node_with_a_new_disk_takes_its_old_place() -> None:
    renewed = Replica("b", 99)
    registered = {**ALL, "b": Registration(renewed, "", "")}
    found = wanted(state(A, B), held((renewed, 200)), registered=registered)
    assert found == {A, renewed}


def test_a_replica_that_takes_its_old_place_lets_no_other_leave() -> None:
    renewed = Replica("c", 99)
    progress = {
        B: ReplicaProgress(200, 1001),
        C: ReplicaProgress(200, 0),
        renewed: ReplicaProgress(200, 0),
    }
    registered = {**ALL, "c": Registration(renewed, "", "")}
    found = wanted(state(A, B, C), progress, registered=registered, needed=3)
    assert found == {A, B, renewed}


def test_replicas_that_are_behind_do_not_take_turns() -> None:
    """Each of them holds what is confirmed: one that comes in would be the next to go."""
    behind = {replica: ReplicaProgress(100, 1001) for replica in (B, C)}
    assert wanted(state(A, B, C), behind) == {A, C}
    assert wanted(state(A, C), behind) is None
    assert wanted(state(A), behind) == {A, B, C}  # too few are there: of use all the same
    assert wanted(state(A, C), behind | {B: ReplicaProgress(100, 1000)}) == {A, B}


def test_an_unspared_member_leaves_however_few_are_left() -> None:
    assert wanted(state(A, B), held((B, 200)), drained=["b"]) is None
    assert wanted(state(A, B), held((B, 200)), drained=["b"], unspared=["b"]) == {A}
