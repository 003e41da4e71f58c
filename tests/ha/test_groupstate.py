"""The content of the registry's keys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.groupchanges import call_roll, forget
from duolog_server.ha.groupstate import (
    MOVES,
    BadState,
    Discarded,
    GroupState,
    Keys,
    Member,
    Registration,
    Replica,
    View,
    groups_of,
    view_of,
)
from duolog_server.ha.registry import Put, RegistryTable, Row, Snapshot, Transaction
from duolog_server.ha.starts import Start

A, B = Replica("a", 1), Replica("b", (1 << 64) - 1)
KEYS = Keys("c", "g")

replicas = st.builds(Replica, st.text(max_size=20), st.integers(0, (1 << 64) - 1))


@given(
    st.builds(
        GroupState,
        st.text(max_size=16),
        st.integers(0, 1 << 62),
        replicas,
        st.frozensets(replicas, max_size=4),
        st.integers(0, 1 << 62),
        st.booleans(),
        st.text(max_size=16),
        st.lists(
            st.builds(
                Discarded,
                st.integers(0, 1 << 40),
                st.text(max_size=9),
                st.integers(0, 1 << 62),
                st.lists(st.text(max_size=9), max_size=3).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    )
)
def test_a_state_is_read_as_it_was_written(state: GroupState) -> None:
    assert GroupState.from_bytes(state.to_bytes()) == state


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_state_are_refused(data: bytes) -> None:
    with pytest.raises(BadState):
        GroupState.from_bytes(data)


def row(value: bytes, revision: int = 5, lease: int = 0) -> Row:
    return Row(value, revision, revision, lease)


def a_group(lock: Replica | None = A) -> dict[str, Row]:
    state = GroupState("id", Epoch(3), A, frozenset((A, B)), 7, True)
    rows = {
        KEYS.state: row(state.to_bytes()),
        KEYS.replica("a"): row(Registration(A, "a:1", "a:2").to_bytes(), lease=11),
        KEYS.drained("b"): row(b"{}"),
    }
    if lock is not None:
        rows[KEYS.lock] = row(Registration(lock, "", "").to_bytes(), lease=11)
    return rows


def test_a_master_holds_the_lock_of_its_own_epoch_and_is_registered() -> None:
    view = view_of(Snapshot(9, a_group()), KEYS)
    assert view.master is not None
    assert view.master.ha_endpoint == "a:2"
    assert view.leases == {"a": 11}
    assert view.drained == {"b"}
    assert view_of(Snapshot(9, a_group(None)), KEYS).master is None
    assert view_of(Snapshot(9, a_group(B)), KEYS).master is None
    unregistered = {k: v for k, v in a_group().items() if k != KEYS.replica("a")}
    assert view_of(Snapshot(9, unregistered), KEYS).master is None


def test_groups_of_a_cluster_are_separated_and_a_broken_one_is_left_out() -> None:
    rows = {
        **a_group(),
        Keys("c", "h").state: row(b"nonsense"),
        Keys("c", "i").replica("x"): row(Registration(B, "x:1", "").to_bytes()),
    }
    found = groups_of(Snapshot(9, rows), "c")
    assert set(found) == {"g", "i"}
    assert found["i"].state is None


def test_a_registration_of_another_version_is_skipped() -> None:
    rows = {**a_group(), KEYS.replica("z"): row(b'{"node": 1}')}
    assert set(view_of(Snapshot(9, rows), KEYS).replicas) == {"a"}


def of_version_without_features(value: bytes) -> Registration:
    """What versions before features read of a registration: the keys that they know."""
    known = json.loads(value)
    replica = Replica(str(known["node"]), int(known["incarnation"], 16))
    return Registration(replica, str(known["endpoint"]), str(known["haEndpoint"]))


def test_a_registration_tells_features_that_older_versions_do_not_read() -> None:
    told = Registration(A, "a:1", "a:2", (MOVES, "later"))
    assert Registration.from_bytes(told.to_bytes()) == told
    assert of_version_without_features(told.to_bytes()) == Registration(A, "a:1", "a:2")
    older = Registration(A, "a:1", "a:2")
    assert b"features" not in older.to_bytes(), "as older versions write it"
    assert Registration.from_bytes(older.to_bytes()) == older
    for wrong in (b"3", b"null"):
        odd = older.to_bytes()[:-1] + b',"features":' + wrong + b"}"
        with pytest.raises(BadState):
            Registration.from_bytes(odd)


def test_members_that_lack_a_feature_are_named_whether_or_not_they_live() -> None:
    new, old = (MOVES,), ()
    rows = {
        **a_group(),  # its set has a, of an older version, and b, which never wrote a member
        KEYS.replica("c"): row(Registration(Replica("c", 3), "", "", new).to_bytes()),
        KEYS.member("c"): row(Member(Registration(Replica("c", 3), "", "", old)).to_bytes()),
        KEYS.member("d"): row(Member(Registration(Replica("d", 4), "", "", new), 7).to_bytes()),
        KEYS.member("e"): row(Member(Registration(Replica("e", 5), "", "", old), 7).to_bytes()),
    }
    view = view_of(Snapshot(9, rows), KEYS)
    assert view.lacking(MOVES) == ["a", "b", "e"]
    assert view.lacking("later") == ["a", "b", "c", "d", "e"]
    assert View().lacking(MOVES) == []


def test_a_start_is_read_with_its_revision_and_an_unreadable_one_is_an_error() -> None:
    start = Start(5, "run")
    rows = {
        **a_group(),
        KEYS.start(A): row(start.to_bytes(), revision=8),
        KEYS.start(B): row(b"[]"),
        KEYS.prefix + "started": row(b"of another version"),
    }
    view = view_of(Snapshot(9, rows), KEYS)
    assert set(view.starts) == {KEYS.start(A), KEYS.start(B)}
    assert view.start_of(A, KEYS) == (start, 8)
    assert view.start_of(Replica("a", 2), KEYS) == (None, 0)
    with pytest.raises(BadState, match="cannot read a start"):
        view.start_of(B, KEYS)


def test_members_are_recorded_of_any_version_and_outlive_their_leases() -> None:
    table = RegistryTable()
    lease = table.grant(1000, 0)
    here, moved = (Registration(B, f"{at}:1", f"{at}:2") for at in ("b", "c"))

    def put(*rows: Registration) -> None:
        changes = tuple(Put(KEYS.replica(row.replica.node), row.to_bytes(), lease) for row in rows)
        assert table.commit(Transaction((), changes))

    def called(wall_ms: int) -> bool:
        found = call_roll(KEYS, view_of(table.get(KEYS.prefix), KEYS), wall_ms)
        return found is not None and table.commit(found) is not None

    put(Registration(A, "a:1", "a:2"), here)
    first = view_of(table.get(KEYS.prefix), KEYS)
    assert called(5)
    stale = call_roll(KEYS, first, 5)
    assert stale is not None
    assert table.commit(stale) is None  # of two nodes that do it at once, one does
    assert not called(6)
    table.drop(lease)
    assert view_of(table.get(KEYS.prefix), KEYS).down == {"a": 0, "b": 0}
    assert called(7)
    assert not called(8)
    assert view_of(table.get(KEYS.prefix), KEYS).down == {"a": 7, "b": 7}
    lease = table.grant(1000, 0)
    put(moved)
    assert called(9)
    view = view_of(table.get(KEYS.prefix), KEYS)
    assert view.down == {"a": 7}
    assert view.members["b"].last == moved
    assert table.commit(forget(KEYS, view, "b")) is None  # it lives
    assert table.commit(forget(KEYS, view, "a")) is not None
    odd = Put(KEYS.member("z"), b'{"node": 1}')  # of another version
    assert table.commit(Transaction((), (odd,)))
    assert view_of(table.get(KEYS.prefix), KEYS).down == {}
