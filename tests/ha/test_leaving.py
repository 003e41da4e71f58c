"""What producers of RocketMQ are told where replica groups leave, and which groups may."""

from dataclasses import replace

import pytest

from duolog_server.ha.groupstate import FEATURES, MOVES, Member, Registration, Replica, View
from duolog_server.ha.leaving import leaves, not_forgettable, refused, retires, write_queues
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.moves import Guest, Moves, Place, Seal

A, B = "broker-a", "broker-b"
TOPIC = TopicConfig("T", 2)


def view(*, retiring: bool = False, features: tuple[str, ...] = FEATURES) -> View:
    row = Registration(Replica("n", 1), "n:1", "n:2", features)
    return View(replicas={"n": row}, members={"n": Member(row)}, retiring=retiring)


STAYING = {A: view(), B: view()}
LEAVING = {A: view(retiring=True), B: view()}
GONE = {B: view()}


def moved(*sealed: int) -> Moves:
    """At group a: queues that moved away."""
    return Moves(seals={"T": {q: Seal(9, Place(B, 2 + q), f"{A}-1-{q}") for q in sealed}})


def guests(*names: Place) -> Moves:
    """At group b: queues that came, and one that was given up."""
    rows = {2 + q: Guest(name, name, f"{name.group}-1-{q}", 9) for q, name in enumerate(names)}
    return Moves(guests={"T": {**rows, 9: Guest(Place(A, 7), Place(A, 7), "m", revoked=True)}})


def test_a_group_leaves_when_it_retires_or_is_gone() -> None:
    assert [leaves(views, A) for views in (STAYING, LEAVING, GONE, {})] == [0, 1, 1, 0]
    assert [retires(views, A) for views in (STAYING, LEAVING, GONE, {})] == [0, 1, 0, 0]


@pytest.mark.parametrize("views", [STAYING, LEAVING])
def test_a_group_is_sent_to_until_its_last_queue_has_moved(views: dict[str, View]) -> None:
    assert write_queues(TOPIC, moved(0), views, A) == [0, 1]


def test_what_is_sent_to_a_group_that_stays_is_passed_on() -> None:
    assert write_queues(TOPIC, moved(0, 1), STAYING, A) == [0, 1]
    assert write_queues(TOPIC, moved(0, 1), LEAVING, A) == []


def test_a_queue_is_sent_to_where_it_is_once_its_first_group_leaves() -> None:
    came = guests(Place(A, 0), Place("broker-c", 1))
    assert write_queues(TOPIC, came, {**STAYING, "broker-c": view()}, B) == [0, 1]
    assert write_queues(TOPIC, came, {**LEAVING, "broker-c": view()}, B) == [0, 1, 2]
    assert write_queues(TOPIC, came, {**GONE, "broker-c": view()}, B) == [0, 1, 2]
    assert write_queues(replace(TOPIC, queues=0), came, GONE, B) == [2, 3]


def test_a_group_may_not_retire() -> None:
    assert refused(A, STAYING, undo=False) == ""
    assert "there is no replica group 'x'" in refused("x", STAYING, undo=False)
    assert "no other replica group stays" in refused(B, LEAVING, undo=False)
    assert "no other replica group stays" in refused(B, GONE, undo=False)
    assert refused(A, LEAVING, undo=True) == ""
    older = {**STAYING, B: view(features=(MOVES,))}
    assert f"nodes of replica group {B} have a version" in refused(A, older, undo=False)
    assert refused(A, older, undo=True) == ""


def test_a_group_may_not_be_forgotten() -> None:
    stopped = {**LEAVING, A: replace(view(retiring=True), replicas={})}
    assert not_forgettable(A, stopped, B) == ""
    assert "nodes of broker-a live: n" in not_forgettable(A, LEAVING, B)
    assert "does not retire" in not_forgettable(A, STAYING, B)
    assert "ask a node of another" in not_forgettable(A, stopped, A)
    assert "there is no replica group" in not_forgettable(A, GONE, B)
