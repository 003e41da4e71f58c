"""Entries are found by the names that they are about."""

from collections import Counter

import pytest
from hypothesis import given

from duolog_server.node.identity.rights.decision import decide
from duolog_server.node.identity.rights.policies import Acl, Entry, Match, Pattern
from duolog_server.node.identity.rights.resources import Action, Kind, Need, Resource, topic
from tests.node.identity.rights.cases import ACLS, NEEDS


@given(ACLS, NEEDS)
def test_the_entries_found_are_those_whose_patterns_cover(acl: Acl, need: Need) -> None:
    found = {policy: Counter(entries) for policy, entries in acl.covering(need.resource)}
    assert found == {
        policy: Counter(entry for entry in entries if entry.pattern.covers(need.resource))
        for policy, entries in acl.policies
    }


def test_a_decision_does_not_grow_with_the_entries_about_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = tuple(
        Entry(Pattern(Kind.TOPIC, match, f"team{number}-"))
        for number in range(500)
        for match in (Match.LITERAL, Match.PREFIX)
    )
    acl, compared, covers = Acl("alice", entries), 0, Pattern.covers

    def counted(self: Pattern, resource: Resource) -> bool:
        nonlocal compared
        compared += 1
        return covers(self, resource)

    monkeypatch.setattr(Pattern, "covers", counted)
    need = Need(topic("team77-orders"), frozenset([Action.SUB]))
    assert decide(acl, need, "10.0.0.1").allowed
    assert compared == 1
