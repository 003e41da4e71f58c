"""What the simulator says of decisions about callers."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duolog_server.node.identity.access.gate import Principal
from duolog_server.node.identity.rights.resources import Action, Kind, Need, Resource
from sim.accesslog import Proof
from sim.accesswatch import AccessWatch, compare
from sim.channels import Caller
from sim.confirmedtables import ConfirmedTables
from sim.nodeusers import FIRST
from sim.witness import Violation

ROOT = {"username": "root", "userType": "Super", "userStatus": "enable", "password": "r"}
USER = {"username": "u", "userType": "Normal", "userStatus": "enable", "password": "hash"}
RECORDS = [
    {"op": "user", "user": ROOT},
    {"op": "user", "user": USER},
    {"op": "delete_user", "user": "u"},
]
PUB = [Need(Resource(Kind.TOPIC, "t"), frozenset((Action.PUB,)))]
U = Principal("u", "hash")
SUPER = Principal("root", "")


class Told(ConfirmedTables):
    """Records that are known already."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies += [json.dumps(record).encode() for record in RECORDS]

    def read(self, node: Any) -> None:
        pass


def node_at(applied: int) -> Any:
    """A node that has applied so many records."""
    metadata = SimpleNamespace(tables=SimpleNamespace(applied=applied, changes=applied))
    metadata.access = SimpleNamespace(users={}, rights={})
    metadata.quotas = {}
    services = SimpleNamespace(broker=SimpleNamespace(metadata=metadata))
    return SimpleNamespace(name="a", boot=1, older="", lost_disk=False, services=services, peers={})


@pytest.fixture
def watch() -> AccessWatch:
    return AccessWatch(Told())


def failure(watch: AccessWatch) -> str:
    """What the run would fail with after this event."""
    try:
        watch.settled(cast(Any, SimpleNamespace(services=None)))
    except Violation as violation:
        return str(violation)
    return ""


@pytest.mark.parametrize(
    ("principal", "applied", "needs", "admitted"),
    [
        (U, 2, [], True),
        (U, 2, PUB, False),
        (U, 3, [], False),
        (Principal("u", "old"), 2, [], False),
        (SUPER, 3, PUB, True),
        (Principal(FIRST, ""), 0, PUB, True),
        (Principal(FIRST, ""), 1, PUB, False),
    ],
)
def test_a_decision_is_the_one_of_the_records_that_were_applied(
    watch: AccessWatch, principal: Principal, applied: int, needs: list[Need], admitted: bool
) -> None:
    watch.decided(node_at(applied), principal, needs, admitted)
    assert failure(watch) == ""
    watch.decided(node_at(applied), principal, needs, not admitted)
    assert ("a admits" in failure(watch) or "a denies" in failure(watch)) is (applied > 0)


def test_a_node_that_denies_has_all_that_is_acknowledged(watch: AccessWatch) -> None:
    watch.acknowledge(2)
    watch.decided(node_at(2), U, PUB, False)
    assert failure(watch) == ""
    watch.decided(node_at(1), U, PUB, False)
    assert "after 1 changes of 2" in failure(watch)


def test_nobody_is_taken_for_another_user(watch: AccessWatch) -> None:
    watch.proofs["Basic x"] = Proof("u", era=1)
    watch.recognised(node_at(2), Caller("Basic x"), U)
    watch.recognised(node_at(2), Caller(certificate="root"), SUPER)
    assert failure(watch) == ""
    watch.recognised(node_at(2), Caller("Basic x"), SUPER)
    assert "takes" in failure(watch)


def test_a_user_that_proves_who_it_is_is_known(watch: AccessWatch) -> None:
    watch.proofs["Basic x"] = Proof("u", era=1)
    said = watch.said(node_at(2))
    watch.unrecognised(node_at(3), Caller("Basic x"), said)
    watch.unrecognised(node_at(2), Caller(certificate="v"), said)
    assert failure(watch) == ""
    watch.unrecognised(node_at(2), Caller("Basic x"), said)
    assert "does not know" in failure(watch)


def test_messages_go_to_those_who_may_read(watch: AccessWatch) -> None:
    watch.given(node_at(2), SUPER, "t")
    assert failure(watch) == ""
    watch.given(node_at(2), U, "t")
    assert "gives" in failure(watch)


def test_a_node_on_an_older_copy_is_not_judged(watch: AccessWatch) -> None:
    node = node_at(3)
    node.older = "same_run"
    watch.decided(node, U, [], True)
    assert failure(watch) == ""


def test_other_rows_than_the_log_says_are_a_violation(watch: AccessWatch) -> None:
    node = node_at(1)
    said = watch.log.at(1)
    with pytest.raises(Violation, match="a has users"):
        compare(node, said)
    node.services.broker.metadata.access.users = {"root": ROOT}
    compare(node, said)
