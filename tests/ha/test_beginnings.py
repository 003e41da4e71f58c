"""Why masterships begin, and how long nobody led before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.beginnings import Beginning, Cause, beginning
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failoverevents import Contradicted, ElectUnclean, HandOver
from duolog_server.store.clocks import MonoMs
from tests.ha.electorate import KEYS, TTL_MS, Electorate
from tests.ha.pair import new_disk


@pytest.fixture
def three() -> Electorate:
    group = Electorate("a", "b", "c")
    group.until(lambda: KEYS.state in group.table.rows and len(group.state.sync_state_set) == 3)
    return group


def test_a_group_begins_without_a_time_before(three: Electorate) -> None:
    assert three.leader is not None
    assert three.leader.began == Beginning(Cause.STARTED)


def test_after_a_death_nobody_led_from_its_last_word_to_its_leases_end(three: Electorate) -> None:
    old = three.led_by
    three.run(300)
    three.kill(old.name)
    three.until(lambda: three.leader is not None, 4 * TTL_MS)
    assert three.leader is not None
    began = three.leader.began
    assert began.cause is Cause.LEASE_ENDED
    assert began.unled_ms is not None
    assert TTL_MS // 2 < began.unled_ms < 2 * TTL_MS


def test_a_planned_switch_is_told_apart_from_a_failure(three: Electorate) -> None:
    leader = three.led_by
    target = max(set("abc") - {leader.name})
    leader.step(HandOver(target, "t"))
    three.until(lambda: three.leader is three.voters[target], 500)
    began = three.voters[target].began
    assert began.cause is Cause.HANDED_OVER
    assert began.unled_ms is not None
    assert began.unled_ms < 500


def test_a_deposed_master_is_named_as_the_cause(three: Electorate) -> None:
    leader = three.led_by
    other = three.others(leader)[-1]
    other.step(Contradicted(Epoch(1), "it lacks a record"))
    three.until(lambda: three.leader is other, 4 * TTL_MS)
    assert other.began.cause is Cause.DEPOSED


def test_after_an_outage_of_all_nodes_no_time_is_guessed(three: Electorate) -> None:
    three.kill(*"abc")
    three.run(10 * TTL_MS)
    for name in "abc":
        three.restart(name)
    three.until(lambda: three.leader is not None, 4 * TTL_MS)
    assert three.leader is not None
    assert three.leader.began == Beginning(Cause.LEASE_ENDED)


def test_an_election_by_hand_says_so(three: Electorate) -> None:
    three.kill(*"abc")
    one = three.restart("a", new_disk(90), 4242)
    three.run(2 * TTL_MS)
    one.step(ElectUnclean(three.state.epoch, "t"))
    assert three.leader is one
    assert one.began.cause is Cause.UNCLEAN


def test_the_last_word_counts_where_it_came_before_the_end_of_the_lease() -> None:
    seen, heard, now = MonoMs(9000), MonoMs(4000), MonoMs(9500)
    assert beginning(Cause.LEASE_ENDED, seen, heard, now).unled_ms == 5500
    assert beginning(Cause.LEASE_ENDED, None, heard, now).unled_ms == 5500
    assert beginning(Cause.HANDED_OVER, seen, heard, now).unled_ms == 500, "it had nothing to say"
    assert beginning(Cause.HANDED_OVER, None, heard, now).unled_ms is None


@given(st.builds(Beginning, st.sampled_from([None, *Cause]), st.none() | st.integers(0, 1 << 62)))
def test_a_barrier_keeps_it(began: Beginning) -> None:
    assert Beginning.from_json(began.to_json()) == began


JSON = st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.lists(st.integers())


@given(JSON, JSON)
def test_what_another_version_wrote_is_read_as_far_as_it_is_known(
    cause: object, unled_ms: object
) -> None:
    found = Beginning.from_json({"cause": cause, "unledMs": unled_ms})
    assert found.cause in (None, *Cause)
    assert found.unled_ms is None or 0 <= found.unled_ms < 1 << 63
