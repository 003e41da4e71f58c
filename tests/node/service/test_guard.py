"""The guard that all protocols ask: when a denial is final, and how it is noted."""

from typing import Any

import pytest
from duolog import _errors as sdk

from duolog_server.node.identity.access.gate import Principal
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Action, Need, topic
from duolog_server.node.service.guard import NEEDS_AT_ONCE, Guard

ALICE = Principal("alice", "", "10.0.0.7")


class Tables:
    """A gate whose users may use some topics, the facts of a node, and its audit log."""

    def __init__(self) -> None:
        self.allowed = {"T"}
        self.knows = True
        self.noted: list[tuple[Who, str, str]] = []
        self.steps: list[int] = []

    def check(self, principal: Principal, needs: Any) -> None:
        self.steps.append(len(needs))
        if any(need.resource.name not in self.allowed for need in needs):
            raise sdk.NoPermission("no entry")

    def check_knows(self) -> None:
        if not self.knows:
            raise sdk.NotMaster("ask the master", "master:1", 7)

    def denied(self, who: Who, method: str, resource: str, error: Exception) -> None:
        self.noted.append((who, method, resource))


def needs(*names: str) -> tuple[Need, ...]:
    return tuple(Need(topic(name), frozenset({Action.PUB})) for name in names)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def guard(tables: Tables) -> Guard:
    given: Any = tables
    return Guard(given, given, given)


def test_a_denial_is_noted_once_it_is_final(guard: Guard, tables: Tables) -> None:
    guard.check(ALICE, needs("T"), "Send")
    tables.knows = False
    with pytest.raises(sdk.NotMaster):
        guard.check(ALICE, needs("U"), "Send")
    with pytest.raises(sdk.NotMaster), guard.final():
        raise sdk.Unauthenticated("nobody")
    with pytest.raises(sdk.NoPermission):
        guard.check_known(ALICE, needs("U"))
    assert not tables.noted
    tables.knows = True
    with pytest.raises(sdk.NoPermission):
        guard.check(ALICE, needs("U"), "Send")
    assert tables.noted == [(Who("alice", "10.0.0.7"), "Send", "Topic:U")]


async def test_very_many_needs_are_checked_in_steps(guard: Guard, tables: Tables) -> None:
    await guard.check_all(ALICE, needs(*["T"] * (2 * NEEDS_AT_ONCE + 1)))
    assert tables.steps == [NEEDS_AT_ONCE, NEEDS_AT_ONCE, 1]
    with pytest.raises(sdk.NoPermission):
        await guard.check_all(ALICE, needs(*["T"] * NEEDS_AT_ONCE, "U"))
