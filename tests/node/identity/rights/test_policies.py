"""Patterns, entries and their JSON: what is read, what is refused, and with which sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.rights import policies
from duolog_server.node.identity.rights.policies import Acl, BadAcl, Entry, Match, Pattern
from duolog_server.node.identity.rights.resources import Action, Kind, Resource
from tests.node.identity.rights.cases import ACLS, PATTERNS, RESOURCES

ALICE = {
    "subject": "User:alice",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:orders*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        },
        {
            "policyType": "Default",
            "entries": [{"resource": "*", "actions": ["All"], "decision": "Deny"}],
        },
    ],
}


def test_the_json_is_that_of_rocketmq() -> None:
    acl = Acl.from_json(ALICE)
    assert [entry.text for entry in acl.custom] == ["Topic:orders* Pub,Sub from 10.0.0.0/8"]
    assert [(entry.text, entry.allow) for entry in acl.default] == [("* All", False)]
    assert acl.to_json() == ALICE


@given(ACLS)
def test_an_acl_is_read_as_it_was_written(acl: Acl) -> None:
    if "%" not in repr(acl.to_json()):  # a % may make a name that counts as another resource
        assert Acl.from_json(json.loads(json.dumps(acl.to_json()))) == acl


@given(st.frozensets(st.sampled_from(Action), min_size=1))
def test_any_actions_are_read_as_they_were_written(actions: frozenset[Action]) -> None:
    entry = Entry(Pattern(None, Match.ANY), actions)
    assert Entry.from_json(entry.to_json()) == entry


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("*", Pattern(None, Match.ANY)),
        ("Topic:*", Pattern(Kind.TOPIC, Match.ANY)),
        ("Topic:abc*", Pattern(Kind.TOPIC, Match.PREFIX, "abc")),
        ("Topic:abc", Pattern(Kind.TOPIC, Match.LITERAL, "abc")),
        ("group:G", Pattern(Kind.GROUP, Match.LITERAL, "G")),
        ("CLUSTER:c*", Pattern(Kind.CLUSTER, Match.PREFIX, "c")),
        ("Namespace:ns", Pattern(Kind.NAMESPACE, Match.LITERAL, "ns")),
        ("Topic:a:b", Pattern(Kind.TOPIC, Match.LITERAL, "a:b")),
        ("Topic:ns%a*", Pattern(Kind.TOPIC, Match.PREFIX, "ns%a")),
        ("Topic:" + "x" * 255, Pattern(Kind.TOPIC, Match.LITERAL, "x" * 255)),
    ],
)
def test_a_pattern_is_read(text: str, pattern: Pattern) -> None:
    assert Pattern.parse(text) == pattern
    assert Pattern.parse(pattern.text) == pattern


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "begins with no kind"),
        ("orders", "begins with no kind"),
        ("Topic", "begins with no kind"),
        ("Any:*", "begins with no kind"),
        ("Unknown:a", "begins with no kind"),
        (" Topic:a", "begins with no kind"),
        ("Topic:", "a name of 0 characters"),
        ("Topic:a*b", "that is not at its end"),
        ("Topic:a**", "that is not at its end"),
        ("Topic:a*b*", "that is not at its end"),
        ("Topic:a ", "spaces around it"),
        ("Topic:a\nb", r"a\nb"),
        ("Topic:a\x00", "control characters"),
        ("Topic:a\u202eb", "control characters"),
        ("Topic:" + "x" * 256, "a name of 256 characters"),
        ("Topic:%RETRY%g", "allowed: Group:g"),
        ("Topic:%DLQ%g*", "allowed: Group:g"),
        ("Topic:%DLQ%*", r"allowed: Group:\*"),
        ("Group:%RETRY%g", "allowed: Group:g"),
        ("Topic:%LMQ%$chat$room", "allowed: Topic:chat"),
        (None, "NoneType"),
        (7, "of type int"),
    ],
)
def test_a_pattern_is_refused(text: object, problem: str) -> None:
    with pytest.raises(BadAcl, match=problem.replace("\\n", "\\\\n")):
        Pattern.parse(text)


@given(PATTERNS, RESOURCES)
def test_a_pattern_of_another_kind_covers_nothing_but_for_namespaces(
    pattern: Pattern, resource: Resource
) -> None:
    if pattern.kind not in (None, Kind.NAMESPACE, resource.kind):
        assert not pattern.covers(resource)


def test_patterns_are_ordered_by_what_they_say() -> None:
    texts = ["*", "Topic:*", "Topic:a*", "Topic:ab*", f"Topic:{'a' * 255}*", "Topic:a"]
    ranks = [Pattern.parse(text).specificity for text in texts]
    assert ranks == sorted(set(ranks))
    assert Pattern.parse("Namespace:ns").specificity == Pattern.parse("Topic:ns%*").specificity
    longest = Pattern.parse(f"Namespace:{'n' * 255}")
    assert longest.specificity < Pattern.parse("Topic:a").specificity


def entry(**changes: Any) -> dict[str, Any]:
    given = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"} | changes
    return {name: value for name, value in given.items() if value != "absent"}


def acl_of(*entries: object, policy: object = "Custom") -> dict[str, Any]:
    policies = [{"policyType": policy, "entries": list(entries)}]
    return {"subject": "User:alice", "policies": policies}


IN_ENTRY_2 = 'acl of "alice", policy 1, entry 2'


@pytest.mark.parametrize(
    ("changes", "where", "wrong"),
    [
        ({"resource": "absent"}, ", resource", "NoneType is not a text"),
        ({"resource": "Topc:t"}, ", resource", '"Topc:t" begins with no kind'),
        ({"actions": []}, ", actions", "no action"),
        ({"actions": "Pub"}, ", actions", '"Pub" is not a list'),
        ({"actions": ["Pub", "Any"]}, ", actions", 'unknown action "Any"'),
        ({"actions": [None]}, ", actions", "unknown action a value of type NoneType"),
        ({"sourceIps": "10.0.0.1"}, ", sourceIps", '"10.0.0.1" is not a list'),
        ({"sourceIps": ["10.0.0.300"]}, ", sourceIps", '"10.0.0.300" is no address'),
        ({"sourceIps": [10]}, ", sourceIps", "a value of type int is no address"),
        ({"sourceIps": [f"10.0.0.{k}" for k in range(101)]}, ", sourceIps", "more than 100"),
        ({"decision": "absent"}, ", decision", "unknown decision a value of type NoneType"),
        ({"decision": "Perhaps"}, ", decision", 'unknown decision "Perhaps"'),
        ({"sourceIp": ["10.0.0.1"]}, "", 'unknown field "sourceIp"'),
    ],
)
def test_an_error_says_which_entry_and_what_is_wrong(
    changes: dict[str, Any], where: str, wrong: str
) -> None:
    with pytest.raises(BadAcl) as caught:
        Acl.from_json(acl_of(entry(), entry(**changes)))
    assert caught.value.where == IN_ENTRY_2 + where
    assert wrong in caught.value.wrong
    assert str(caught.value) == (
        f"{caught.value.where}: {caught.value.wrong}; allowed: {caught.value.allowed}"
    )


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (None, "NoneType is not an object"),
        ([], "list is not an object"),
        ({}, "subject is no user"),
        ({"subject": "alice"}, "subject is no user"),
        ({"subject": "User:"}, "a name of 0 characters"),
        ({"subject": "User:a\n"}, r"a\n"),
        ({"subject": "User:" + "a" * 256}, "a name of 256 characters"),
        ({"subject": "User:alice", "policies": {}}, "not a list"),
        ({"subject": "User:alice", "policies": [3]}, "not an object"),
        ({"subject": "User:alice", "password": "x"}, 'unknown field "password"'),
        (acl_of(entry(), policy="Third"), "unknown policyType"),
        (acl_of(entry(), policy=3), "unknown policyType"),
        (acl_of(7), "not an object"),
        (acl_of(*[entry()] * 1001), "1001 entries"),
    ],
)
def test_an_acl_is_refused(given: object, wrong: str) -> None:
    with pytest.raises(BadAcl) as caught:
        Acl.from_json(given)
    assert wrong in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_user_may_have_as_many_entries_as_the_limit() -> None:
    acl = Acl.from_json(acl_of(*[entry()] * policies.ENTRIES_MAX))
    assert len(acl.custom) == policies.ENTRIES_MAX


def test_words_are_read_in_any_case_and_absent_ones_as_rocketmq_does() -> None:
    given = acl_of(entry(actions=["pub", "ALL"], decision="DENY", sourceIps=None), policy=None)
    acl = Acl.from_json(given)
    assert acl.custom[0].actions == policies.ALL_ACTIONS
    assert not acl.custom[0].allow
    assert Acl.from_json({"subject": "User:bob", "policies": None}) == Acl("bob")
    assert Acl.from_json(acl_of(entry(), policy="default")).default


def test_two_policies_of_one_type_are_one() -> None:
    given = acl_of(entry())
    given["policies"] *= 2
    assert len(Acl.from_json(given).custom) == 2


def test_the_text_of_an_entry_is_one_line() -> None:
    text = Entry.from_json(entry(actions=["Sub", "Pub"], sourceIps=["10.0.0.{1,2}"])).text
    assert text == "Topic:t Pub,Sub from 10.0.0.1,10.0.0.2"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
NEARLY = st.fixed_dictionaries(
    {"subject": st.just("User:alice")},
    optional={
        "policies": JSON
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "policyType": JSON | st.sampled_from(["Custom", "Default"]),
                    "entries": st.lists(
                        st.fixed_dictionaries(
                            {},
                            optional={
                                "resource": JSON | st.text("Topic:*%RETRY"),
                                "actions": JSON | st.lists(st.sampled_from(["Pub", "All", 3])),
                                "sourceIps": JSON | st.lists(st.text("10./*-{}:f")),
                                "decision": JSON | st.just("Allow"),
                            },
                        )
                    ),
                },
            )
        )
    },
)


@given(JSON | NEARLY)
def test_any_json_is_an_acl_or_the_one_error(given: object) -> None:
    found = read(given)
    if isinstance(found, Acl):
        assert Acl.from_json(found.to_json()) == found
    else:
        assert str(found).isprintable()
        assert len(str(found)) < 600


def read(given: object) -> Acl | BadAcl:
    try:
        return Acl.from_json(given)
    except BadAcl as error:
        return error
