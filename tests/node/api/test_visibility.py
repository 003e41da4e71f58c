"""What callers of lists may see is remembered as long as it is true."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from duolog_server.node.api import visibility as sight
from duolog_server.node.api.visibility import EVERYTHING, Sights
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.access.rules import May
from duolog_server.node.identity.rights.resources import Need
from duolog_server.node.service.guard import Guard


class Deciding:
    """A guard whose users may see the topics and groups that begin with the user's name."""

    cluster = "c"

    def __init__(self) -> None:
        self.version = 1
        self.supers: set[str] = set()
        self.asked: list[str] = []
        self.groups: set[str] = set()
        self.facts = self

    def has_group(self, name: str) -> bool:
        return name in self.groups

    def has_topic(self, name: str) -> bool:
        return True

    def check_knows(self) -> None:
        """It does."""

    def may(self, principal: Principal) -> May | None:
        def allows(*needs: Need) -> bool:
            self.asked.append(needs[0].resource.text)
            return all(need.resource.name.startswith(principal.name) for need in needs)

        return None if principal.name in self.supers else allows


@pytest.fixture
def guard() -> Deciding:
    return Deciding()


@pytest.fixture
def sights(guard: Deciding) -> Iterator[Sights]:
    before = PRINCIPAL.set(None)
    yield Sights(cast(Guard, guard))
    PRINCIPAL.reset(before)


def seen_by(sights: Sights, user: str, source: str = "10.0.0.1") -> Any:
    PRINCIPAL.set(Principal(user, "", source))
    return sights()


def test_an_answer_is_remembered_until_users_or_rights_change(
    guard: Deciding, sights: Sights
) -> None:
    for _ in range(2):
        seen = seen_by(sights, "a")
        assert [seen.topic("a1"), seen.topic("b1"), seen.group("a1")] == [True, False, True]
    assert guard.asked == ["Topic:a1", "Topic:b1", "Group:a1"]
    guard.version += 1
    assert seen_by(sights, "a").topic("a1")
    assert guard.asked[3:] == ["Topic:a1"]


def test_users_and_their_addresses_have_answers_of_their_own(
    guard: Deciding, sights: Sights
) -> None:
    """An entry may count from some addresses only."""
    assert seen_by(sights, "a").topic("a1")
    assert not seen_by(sights, "b").topic("a1")
    assert seen_by(sights, "a", "10.0.0.2").topic("a1")
    assert guard.asked == ["Topic:a1"] * 3


def test_whose_a_retry_topic_is_is_decided_each_time(guard: Deciding, sights: Sights) -> None:
    assert seen_by(sights, "b_").topic("%RETRY%b_x")
    guard.groups.add("b")  # then it is the one of that group for a topic x
    assert not seen_by(sights, "b_").topic("%RETRY%b_x")


def test_super_users_and_nodes_without_users_are_not_asked_about_names(
    guard: Deciding, sights: Sights
) -> None:
    guard.supers.add("root")
    assert seen_by(sights, "root") is EVERYTHING
    guard.supers.remove("root")
    assert not seen_by(sights, "root").topic("a1")
    assert Sights(None)() is EVERYTHING


def test_what_is_remembered_is_bounded(
    guard: Deciding, sights: Sights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "CALLERS_MAX", 2)
    monkeypatch.setattr(sight, "NAMES_MAX", 3)
    for user in ("a", "b", "a", "c", "a"):  # b was asked about longest ago
        seen_by(sights, user).topic("x")
    assert guard.asked == ["Topic:x"] * 3
    seen_by(sights, "b").topic("x")
    assert guard.asked == ["Topic:x"] * 4
    seen = seen_by(sights, "a")
    for name in "xyzw":
        seen.topic(name)
    guard.asked.clear()
    seen.topic("w")
    seen.topic("x")
    assert guard.asked == ["Topic:x"]
