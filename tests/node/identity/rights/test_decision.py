"""Decisions: the table, an oracle of another structure, and what no entry may change."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.rights.decision import Decision, decide
from duolog_server.node.identity.rights.policies import Acl, Entry, Match
from duolog_server.node.identity.rights.resources import Action, Kind, Need, Resource, topic
from duolog_server.node.identity.rights.sources import address_of
from tests.node.identity.rights import shipped
from tests.node.identity.rights.cases import ACLS, ENTRIES, NEEDS, SOURCES, Case, acl, cases

CASES = list(cases())


def _id(case: Case) -> str:
    return f"{case.title}-{case.kind} {case.name}-{case.source}"


def _told(found: Decision) -> str:
    answer = "Allow" if found.allowed else "Deny"
    return f"{answer} by {found.policy} {found.entry.text}" if found.entry else answer


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_a_case_of_the_table(case: Case) -> None:
    assert _told(decide(case.acl, case.need, case.source)) == case.expected


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_the_table_marks_where_rocketmq_5_3_decides_otherwise(case: Case) -> None:
    assert shipped.answer(case) == case.shipped


def test_the_table_has_enough_cases_of_both() -> None:
    assert len(CASES) > 100
    assert len([case for case in CASES if case.shipped != case.expected.split()[0]]) > 20


@pytest.mark.parametrize(
    ("entries", "source", "reason"),
    [
        (acl("Custom Allow Topic:t* Pub,Sub"), "", "allowed by Custom entry Topic:t* Pub,Sub"),
        (acl("Default Deny * All"), "10.0.0.1", "denied by Default entry * All"),
        (acl(), "10.0.0.1", "denied: no entry matches Pub on Topic:t from 10.0.0.1"),
        (acl(), "", "denied: no entry matches Pub on Topic:t from unknown"),
        (acl(), "a\nb", "denied: no entry matches Pub on Topic:t from a\\nb"),
        (None, "10.0.0.1", "denied: the user has no entries"),
    ],
)
def test_the_reason_says_what_decided(entries: Acl | None, source: str, reason: str) -> None:
    found = decide(entries, Need(topic("t"), frozenset([Action.PUB])), source)
    assert found.reason == reason


def test_the_examples_of_the_documentation() -> None:
    page = (Path(__file__).parents[4] / "docs" / "access.md").read_text()
    entries = Acl.from_json(json.loads(page.partition("```json")[2].partition("```")[0]))
    rows = re.findall(r"\| (\w+) (?:to|of) `(\S+)`.* \| (allowed|denied) \| (.*) \|", page)
    assert len(rows) == 6
    for action, name, answer, why in rows:
        found = decide(entries, Need(topic(name), frozenset([Action(action)])), "10.1.1.1")
        assert found.allowed == (answer == "allowed"), name
        if found.entry and why != "the same; the Default policy is not asked":
            assert why.startswith(f"{found.policy} entry `{found.entry.text}`"), name
    elsewhere = Need(topic("orders-eu"), frozenset([Action.PUB]))
    assert not decide(entries, elsewhere, "192.0.2.1").allowed


def oracle(entries: Acl, need: Need, source: str) -> bool:
    """Asks each action alone: sorts whole policies and takes the first entry that matches."""
    return any(_allows(entries, need.resource, action, source) for action in need.actions)


def _allows(entries: Acl, resource: Resource, action: Action, source: str) -> bool:
    for policy in (entries.custom, entries.default):
        for entry in sorted(policy, key=_place):
            if action in entry.actions and _about(entry, resource) and _from(entry, source):
                return entry.allow
    return False


def _place(entry: Entry) -> tuple[bool, bool, int, bool]:
    """Smallest first. Namespace:ns stands for ns%*."""
    of_names = entry.pattern.kind is Kind.NAMESPACE and entry.pattern.match is Match.LITERAL
    literal = entry.pattern.match is Match.LITERAL and not of_names
    length = len(entry.pattern.name) + of_names
    return not literal, entry.pattern.kind is None, -length, entry.allow


def _about(entry: Entry, resource: Resource) -> bool:
    """By all texts that could name the resource, compared to the pattern's."""
    names = {"*", f"{resource.kind}:*", resource.text}
    names |= {f"{resource.kind}:{resource.name[:n]}*" for n in range(len(resource.name) + 1)}
    if resource.kind in (Kind.TOPIC, Kind.GROUP):
        for k in [k for k, letter in enumerate(resource.name) if letter == "%" and k]:
            names |= {f"Namespace:{resource.name[:k]}", "Namespace:*"}
            names |= {f"Namespace:{resource.name[:n]}*" for n in range(1, k + 1)}
    return entry.pattern.text in names


def _from(entry: Entry, source: str) -> bool:
    address = address_of(source)
    if address is None:
        return not entry.sources or not entry.allow
    return not entry.sources or any(address in network for network in entry.sources)


@given(ACLS, NEEDS, st.sampled_from(SOURCES))
def test_decisions_are_those_of_the_oracle(entries: Acl, need: Need, source: str) -> None:
    found = decide(entries, need, source)
    assert found.allowed == oracle(entries, need, source)
    if found.entry:
        assert found.entry.allow == found.allowed
        assert found.entry in dict(entries.policies)[found.policy]


@given(ACLS, NEEDS, st.sampled_from(SOURCES), st.randoms())
def test_the_order_of_entries_changes_nothing(
    entries: Acl, need: Need, source: str, chance: random.Random
) -> None:
    shuffled = Acl(
        entries.user,
        tuple(chance.sample(entries.custom, len(entries.custom))),
        tuple(chance.sample(entries.default, len(entries.default))),
    )
    assert decide(shuffled, need, source) == decide(entries, need, source)


@given(ACLS, ENTRIES, st.booleans(), NEEDS, st.sampled_from(SOURCES))
def test_a_deny_never_allows_more(
    entries: Acl, entry: Entry, custom: bool, need: Need, source: str
) -> None:
    deny = Entry(entry.pattern, entry.actions, entry.sources, allow=False)
    if custom:
        more = Acl(entries.user, (*entries.custom, deny), entries.default)
    else:
        more = Acl(entries.user, entries.custom, (*entries.default, deny))
    if decide(more, need, source).allowed:
        assert decide(entries, need, source).allowed


@given(ACLS, ENTRIES, NEEDS, st.sampled_from(SOURCES), st.data())
def test_an_allow_that_is_less_specific_changes_no_decision(
    entries: Acl, entry: Entry, need: Need, source: str, data: st.DataObject
) -> None:
    """Of one action: each is decided by itself."""
    one = Need(need.resource, frozenset([data.draw(st.sampled_from(sorted(need.actions)))]))
    found = decide(entries, one, source)
    allow = Entry(entry.pattern, entry.actions, entry.sources)
    if found.policy == "Default" and found.entry:
        more = Acl(entries.user, entries.custom, (*entries.default, allow))
    else:
        more = Acl(entries.user, (*entries.custom, allow), entries.default)
    if found.entry and allow.pattern.specificity < found.entry.pattern.specificity:
        assert decide(more, one, source) == found


@given(ACLS, NEEDS, st.sampled_from(SOURCES))
def test_one_allowed_action_is_enough(entries: Acl, need: Need, source: str) -> None:
    singly = [
        decide(entries, Need(need.resource, frozenset([action])), source).allowed
        for action in need.actions
    ]
    assert decide(entries, need, source).allowed == any(singly)
