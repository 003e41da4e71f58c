"""When a node trusts the registry, and in which order it reads, saves and decides."""

from dataclasses import replace

import pytest

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failoverevents import Note, Observe
from duolog_server.ha.groupstate import GroupState, Keys, Replica
from duolog_server.ha.knowngroup import KnownGroup, NotBelieved
from duolog_server.ha.membership import load
from duolog_server.ha.registry import Row, Snapshot
from duolog_server.store.clocks import MonoMs
from tests.ha.pair import new_disk

KEYS = Keys("c", "g")
ME = Replica("a", 1)
STATE = GroupState("id", Epoch(3), ME, frozenset((ME,)), version=5)
NOW = MonoMs(1000)


def holding(state: GroupState, revision: int) -> Snapshot:
    return Snapshot(revision, {KEYS.state: Row(state.to_bytes(), 1, revision, 0)})


def reading() -> KnownGroup:
    group = KnownGroup(new_disk(1), KEYS)
    assert group.read(NOW) == [Observe()]
    return group


def believing() -> KnownGroup:
    group = reading()
    (note,) = group.observed(holding(STATE, 9), NOW)
    assert isinstance(note, Note)
    assert group.noted(note.membership) == []
    return group


def test_every_start_is_counted_on_the_disk() -> None:
    disk = new_disk(1)
    assert KnownGroup(disk, KEYS).membership.starts == 1
    assert KnownGroup(disk, KEYS).membership.starts == load(disk).starts == 2


def test_nothing_is_settled_before_what_was_read_is_noted() -> None:
    group = reading()
    assert not group.settled
    (note,) = group.observed(holding(STATE, 9), NOW)
    assert isinstance(note, Note)
    assert group.noting
    assert not group.settled
    assert group.noted(note.membership) == []
    assert group.settled


def test_a_read_that_began_before_it_was_asked_for_is_not_believed() -> None:
    group = reading()
    assert group.read(NOW) == []
    assert group.observed(holding(STATE, 9), NOW) == [Observe()]
    assert group.view.state is None


def test_a_registry_that_is_not_trusted_is_still_read_again() -> None:
    group = believing()
    group.read(NOW)
    older = replace(STATE, version=4)
    with pytest.raises(NotBelieved, match="fell back to version 4"):
        group.observed(holding(older, 10), NOW)
    group.read(NOW)
    group.read(NOW)
    assert group.observed(holding(older, 10), NOW) == [Observe()]
    assert group.observed(holding(STATE, 11), NOW) == []
    assert group.distrust() == ""


def test_a_change_that_a_read_has_overtaken_is_read_again() -> None:
    group = believing()
    changed = replace(STATE, version=6)
    assert group.changed(changed, 9, NOW) == [Observe()]
    assert group.view.state == STATE


def test_a_change_of_its_own_is_noted_and_a_read_under_way_is_too_old_for_it() -> None:
    group = believing()
    group.read(NOW)
    changed = replace(STATE, version=6)
    (note,) = group.changed(changed, 10, NOW)
    assert isinstance(note, Note)
    assert note.membership.version == 6
    assert group.observed(holding(STATE, 9), NOW) == [Observe()]
    assert group.view.state == changed


def test_a_state_seen_during_a_save_is_saved_next() -> None:
    group = reading()
    (first,) = group.observed(holding(STATE, 9), NOW)
    group.read(NOW)
    assert group.observed(holding(replace(STATE, version=7), 10), NOW) == []
    assert isinstance(first, Note)
    (second,) = group.noted(first.membership)
    assert isinstance(second, Note)
    assert second.membership.version == 7


def test_a_full_disk_is_tried_again_at_the_next_scan() -> None:
    group = reading()
    (note,) = group.observed(holding(STATE, 9), NOW)
    assert group.noted(None) == []
    assert group.settled
    group.read(NOW)
    assert group.observed(holding(STATE, 9), NOW) == [note]
