"""Entries of the audit log: their lines, and how repeated denials become few."""

import json
from dataclasses import replace

from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.audit.auditfile import TAIL_BYTES
from duolog_server.node.audit.entry import (
    ADDRESSES_MAX,
    REMEMBERED_MAX,
    SHOWN_MAX,
    SPAN_MS,
    STRANGERS_MAX,
    USERS_MAX,
    WORD_MAX,
    Decision,
    Entry,
    Repeats,
)
from duolog_server.node.audit.subjects import (
    CHANGES,
    HIDDEN,
    OPERATOR_CHANGES,
    resource_of,
    shown_of,
)
from duolog_server.node.wire import recovery_pb2

DENIED = Entry(0, "alice", "10.0.0.7", "Messages/Pull", "Topic:T", Decision.DENIED, "no entry")
CALLS = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from(["", "a", "b"]), st.integers(0, 40)),
    max_size=200,
)


def test_a_line_is_json_without_what_is_empty() -> None:
    entry = Entry(
        1_700_000_000_123, "alice", "10.0.0.7", "Admin/DeleteTopic", "Topic:T", Decision.ALLOWED
    )
    assert json.loads(entry.to_line("n1")) == {
        "time": "2023-11-14T22:13:20.123Z",
        "node": "n1",
        "user": "alice",
        "source": "10.0.0.7",
        "method": "Admin/DeleteTopic",
        "resource": "Topic:T",
        "decision": "allowed",
    }


def test_a_line_is_one_line_of_bounded_length_whatever_a_client_says() -> None:
    hostile = '\n\r\u2028\x1b[2J"' * 10_000
    entry = replace(
        DENIED, user=hostile, resource=hostile, reason=hostile, shown={"rights": hostile, "n": 1}
    )
    line = entry.to_line("n1")
    assert line.isascii()
    assert not any(byte < 32 for byte in line)
    found = json.loads(line)
    assert len(found["reason"]) == WORD_MAX
    assert len(found["request"]["rights"]) == SHOWN_MAX + 1
    assert found["request"]["n"] == 1


def test_a_request_is_cut_as_a_whole_and_shows_no_password() -> None:
    """Not field by field, and lists too: the topic takes no message of any size."""
    delays = list(range(1_000_000))
    for shown in (
        {"a": "x" * 5000, "b": "y" * 100_000, "c": "z" * 100_000},
        {"retry_delays_ms": delays},
        {"retry_delays_ms": delays, "rights": "x" * 100_000, "retries": delays, "n": 1},
    ):
        entry = replace(DENIED, shown=shown)
        assert len(entry.to_line("n1")) < 2 * SHOWN_MAX
    found = json.loads(entry.to_line("n1"))["request"]
    assert found["n"] == 1
    few = {"retry_delays_ms": [1, 2], "rights": "x", "topic": "T"}
    assert json.loads(replace(DENIED, shown=few).to_line("n1"))["request"] == few
    # Each character is twelve in JSON.
    face = "\N{GRINNING FACE}" * 100_000
    entry = replace(DENIED, user=face, resource=face, reason=face, shown={"rights": face})
    assert len(entry.to_line("n" * 255)) < TAIL_BYTES
    request = wire.PutUserRequest(user="alice", password="hidden", super=False, signs=True)
    assert shown_of("Access/PutUser", request) == {"user": "alice", "super": False, "signs": True}


def test_nothing_of_a_huge_request_is_remembered() -> None:
    """Whoever is no user may send one."""
    huge = "x" * 1_000_000
    entry = Entry(0, huge, huge, huge, huge, Decision.DENIED, huge)
    kept = (entry.user, entry.source, entry.method, entry.resource, entry.reason)
    assert [len(word) for word in kept] == [WORD_MAX] * 5


@given(CALLS)
def test_each_denied_call_is_in_exactly_one_entry(calls: list[tuple[int, str, int]]) -> None:
    repeats, written, now = Repeats(), [], 0
    for gap, user, number in calls:
        now += gap
        written += repeats.due(now)
        entry = replace(DENIED, at_ms=now, user=user, resource=f"Topic:{number}")
        written += repeats.taken(entry, now)
    written += repeats.rest()
    assert sum(entry.times for entry in written) == len(calls)
    assert all(entry.times for entry in written)
    for user in ("a", "b"):
        of_user = sum(entry.times for entry in written if entry.user == user)
        assert of_user == sum(one == user for _, one, _ in calls)
    assert not repeats._distinct
    assert not repeats._strangers
    assert not repeats


def test_the_first_denial_is_written_at_once_and_the_others_as_one_after_a_while() -> None:
    repeats = Repeats()
    assert repeats.taken(DENIED, 0) == [DENIED]
    for at in range(1, 100):
        assert repeats.taken(replace(DENIED, at_ms=at), at) == []
    assert repeats.due(SPAN_MS - 1) == []
    assert repeats.due(SPAN_MS) == [replace(DENIED, at_ms=99, times=99)]
    assert repeats.due(10 * SPAN_MS) == []
    assert repeats.taken(DENIED, 10 * SPAN_MS) == [DENIED]


def test_an_address_that_tries_many_names_makes_few_entries() -> None:
    repeats, written = Repeats(), []
    for number in range(5000):
        stranger = replace(DENIED, user="", reason=f"user 'u{number}': wrong")
        written += repeats.taken(stranger, 0)
    assert STRANGERS_MAX <= len(written) <= STRANGERS_MAX + 1
    assert repeats.taken(replace(DENIED, user="", source="10.0.0.8"), 0), "others are noted"
    written += repeats.rest()
    assert sum(entry.times for entry in written) == 5000


def test_denials_of_users_and_strangers_are_apart_and_bounded() -> None:
    repeats = Repeats()
    for number in range(3 * STRANGERS_MAX):
        repeats.taken(replace(DENIED, user="", reason=f"user 'u{number}': wrong"), 0)
    assert repeats.taken(DENIED, 0) == [DENIED]
    assert repeats.taken(DENIED, 0) == []
    rest = repeats.rest()
    assert [entry.times for entry in rest if entry.user] == [1]
    assert sum(entry.times for entry in rest if not entry.user) == 2 * STRANGERS_MAX - 1
    repeats, written = Repeats(), []
    for number in range(3 * REMEMBERED_MAX):
        for _ in range(2):
            written += repeats.taken(replace(DENIED, user=f"u{number}"), 0)
        assert len(repeats) <= REMEMBERED_MAX
    written += repeats.rest()
    assert sum(entry.times for entry in written) == 6 * REMEMBERED_MAX


def test_a_user_that_is_denied_many_things_makes_few_entries() -> None:
    """Else it would fill the files until those from before are gone."""
    repeats, written = Repeats(), []
    for number in range(5000):
        written += repeats.taken(replace(DENIED, resource=f"Topic:{number}"), 0)
    assert USERS_MAX <= len(written) <= USERS_MAX + 1
    assert repeats.taken(replace(DENIED, user="bob"), 0), "others are noted"
    assert repeats.taken(replace(DENIED, user=""), 0), "others are noted"
    written += repeats.rest()
    assert sum(entry.times for entry in written) == 5000
    assert not repeats._distinct


def test_who_has_many_addresses_makes_few_entries() -> None:
    for user, most in (("", ADDRESSES_MAX), ("alice", USERS_MAX)):
        repeats, written = Repeats(), []
        for number in range(5000):
            source = f"2001:db8::{number:x}"
            written += repeats.taken(replace(DENIED, user=user, source=source), 0)
        assert most <= len(written) <= most + 1
        assert repeats.taken(replace(DENIED, user="bob"), 0), "users are noted"
        written += repeats.rest()
        assert sum(entry.times for entry in written) == 5000
        written = repeats.taken(replace(DENIED, user=user), 0)
        assert len(written) == 1, "nothing counts on"


# -- of requests ----------------------------------------------------------------------------------


def request_of(method: str) -> type:
    service, name = method.split("/")
    of = recovery_pb2 if service == "Recovery" else wire
    found = of.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    return getattr(of, found.input_type.name)  # type: ignore[no-any-return]


def test_each_field_of_a_change_is_named_as_shown_or_hidden() -> None:
    for method, shown in CHANGES.items():
        fields = {field.name for field in request_of(method).DESCRIPTOR.fields}  # type: ignore[attr-defined]
        assert fields == {*shown, *HIDDEN.get(method, ())}, method
        assert not set(shown) & set(HIDDEN.get(method, ()))


def test_what_changes_something_is_noted_and_what_reads_is_not() -> None:
    """A new method of these services is one or the other."""
    reads = {
        *("Admin/ListTopics", "Admin/ListGroups", "Admin/DescribeGroup", "Admin/Track"),
        *("Admin/NodeStatus", "Admin/ClusterStatus", "Admin/Route", "Admin/ListQuotas"),
        *("Admin/ListDelayed", "Admin/ListHalves", "Admin/ListMoves"),
        *("Access/WhoAmI", "Access/ListUsers", "Access/GetRights", "Access/TestAccess"),
        "Recovery/Begin",
    }
    found = {**wire.DESCRIPTOR.services_by_name, **recovery_pb2.DESCRIPTOR.services_by_name}
    methods = {
        f"{service}/{method.name}"
        for service in ("Admin", "Access", "Recovery")
        for method in found[service].methods
    }
    commits = {"Groups/Commit"}  # those of operators
    assert methods == reads | (CHANGES.keys() - commits) | {*OPERATOR_CHANGES}


def test_a_resource_is_what_the_request_is_about() -> None:
    for method, request, found in (
        ("Admin/CreateTopic", wire.TopicRequest(topic="T"), "Topic:T"),
        ("Admin/ResetGroup", wire.ResetGroupRequest(group="g", topic="T"), "Group:g"),
        ("Admin/PutGroup", wire.PutGroupRequest(group="g", lite_topic="T"), "Group:g"),
        ("Admin/PutQuota", wire.PutQuotaRequest(subject="User:alice"), "User:alice"),
        ("Admin/Drain", wire.DrainRequest(node="n"), "Cluster:"),
        ("Admin/Freeze", wire.FreezeRequest(seconds=9), "Cluster:"),
        ("Access/PutRights", wire.PutRightsRequest(user="alice"), "User:alice"),
        ("Recovery/Recover", recovery_pb2.RecoverRequest(user="alice"), "User:alice"),
        ("Messages/Pull", wire.PullRequest(topic="T"), "Topic:T"),
        ("Groups/Commit", wire.CommitRequest(group="g"), "Group:g"),
        (
            "Messages/Subscribe",
            wire.SubscribeRequest(group="g", add=[wire.QueueOffset(topic="T")]),
            "Topic:T",
        ),
        ("Admin/Route", wire.RouteRequest(), ""),
    ):
        assert resource_of(method, request) == found
