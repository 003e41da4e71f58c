"""What mqadmin prints of RocketMQ 5's users and rights, and its JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.rights import mqadmin
from duolog_server.node.identity.rights.mqadmin import read_acls, read_users
from duolog_server.node.identity.rights.plainacl import Imported, ImportedUser
from duolog_server.node.identity.rights.policies import BadAcl

SECRET = "s3cr3t-s3cr3t"


def row(widths: tuple[int, ...], *values: str) -> str:
    """A row as Java's %-16s prints it, two spaces between the columns."""
    return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True))


def users_row(*values: str) -> str:
    return row((16, 22, 22, 22), *values)


def acls_row(*values: str) -> str:
    return row((16, 10, 22, 20, 24, 10), *values)


USERS = "\n".join(
    [
        users_row("#UserName", "#Password", "#UserType", "#UserStatus"),
        users_row("alice", SECRET, "Normal", "enable"),
        users_row("a-user-with-a-long-name", "p w", "Super", "disable"),
        users_row("carol", "c", "null", "null"),
        "get user from 10.0.0.1:10911 success.",
        "",
    ]
)
ACLS = "\n".join(
    [
        acls_row("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"),
        acls_row("User:alice", "Custom", "Topic:orders*", "[Pub, Sub]", "[10.0.0.0/8]", "Allow"),
        acls_row("User:alice", "Default", "*", "[All]", "null", "Deny"),
        acls_row("User:bob", "Custom", "Group:g", "[Sub]", "[10.0.0.1, ::1]", "Allow"),
        acls_row("User:alice", "Custom", "Topic:%DLQ%g", "[Sub]", "null", "Allow"),
    ]
)


def test_users_as_mqadmin_prints_them() -> None:
    assert read_users(USERS).users == (
        ImportedUser("alice", SECRET),
        ImportedUser("a-user-with-a-long-name", "p w", superuser=True, enabled=False),
        ImportedUser("carol", "c"),
    )
    assert SECRET not in repr(read_users(USERS))


def test_acls_as_mqadmin_prints_them() -> None:
    found = read_acls(ACLS)
    texts = {
        acl.user: [(name, entry.allow, entry.text) for name, of in acl.policies for entry in of]
        for acl in found.acls
    }
    assert texts == {
        "alice": [
            ("Custom", True, "Topic:orders* Pub,Sub from 10.0.0.0/8"),
            ("Default", False, "* All"),
        ],
        "bob": [("Custom", True, "Group:g Sub from 10.0.0.1,::1")],
    }
    assert len(found.warnings) == 1
    assert '"alice": 1 entries left out' in found.warnings[0]


def test_users_as_json() -> None:
    alice = {"username": "alice", "password": SECRET, "userType": "Super", "userStatus": "enable"}
    bob = {"username": "bob", "password": "b", "userStatus": "disable", "userType": None}
    alone = ImportedUser("alice", SECRET, superuser=True)
    assert read_users(json.dumps(alice)).users == (alone,)
    assert read_users(json.dumps([alice, bob])).users == (
        alone,
        ImportedUser("bob", "b", enabled=False),
    )


def acl_of(*entries: tuple[str, str, str], policy: str = "Custom") -> dict[str, Any]:
    given = [
        {"resource": resource, "actions": [action], "decision": decision}
        for resource, action, decision in entries
    ]
    return {"subject": "User:alice", "policies": [{"policyType": policy, "entries": given}]}


def test_acls_as_json() -> None:
    alice = acl_of(("Topic:t", "Pub", "Allow"))
    found = read_acls(json.dumps(alice))
    assert found == read_acls(json.dumps([alice]))
    assert found.acls[0].to_json() == alice
    assert found.warnings == ()
    assert read_acls("[]") == read_users("[]") == Imported()


@pytest.mark.parametrize(
    ("one", "other", "warned"),
    [
        (("Topic:t", "Pub", "Allow"), ("Topic:t", "Pub", "Deny"), True),
        (("Topic:t", "Pub", "Allow"), ("Topic:t", "Sub", "Deny"), False),
        (("Topic:t", "All", "Allow"), ("Topic:t", "Sub", "Deny"), True),
        (("Topic:*", "Pub", "Allow"), ("Topic:t", "Pub", "Deny"), True),
        (("Topic:a*", "Pub", "Allow"), ("Topic:abc", "Pub", "Deny"), True),
        (("Topic:abc", "Pub", "Allow"), ("Topic:a*", "Pub", "Deny"), True),
        (("Topic:abc", "Pub", "Allow"), ("Topic:b*", "Pub", "Deny"), False),
        (("*", "Pub", "Deny"), ("Group:g", "Pub", "Allow"), True),
        (("Topic:t", "Pub", "Allow"), ("Topic:t", "Pub", "Allow"), False),
    ],
)
def test_entries_that_contradict_each_other_are_a_warning(
    one: tuple[str, str, str], other: tuple[str, str, str], warned: bool
) -> None:
    warnings = read_acls(json.dumps(acl_of(one, other))).warnings
    assert ["may decide otherwise" in line for line in warnings] == [True] * warned


def test_entries_that_can_match_nothing_here_are_left_out() -> None:
    alice = acl_of(
        ("Topic:%RETRY%g", "Pub", "Allow"), ("group:%DLQ%*", "Pub", "Deny"), ("*", "Get", "Allow")
    )
    found = read_acls(json.dumps(alice))
    assert [entry.text for entry in found.acls[0].custom] == ["* Get"]
    assert '"alice": 2 entries left out' in found.warnings[0]


Read = Callable[[str], Imported]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_users, "alice  x  Normal  enable", "users, line 1: 4 columns"),
        (read_users, USERS.replace(SECRET, f"{SECRET}  x"), "users, line 2: 5 columns"),
        (read_users, USERS.replace(SECRET, ""), "users, line 2: 3 columns"),
        (read_users, USERS.replace(SECRET, "null"), 'user "alice", password: missing'),
        (read_users, USERS.replace("Super", "King"), "userType: an unknown word"),
        (read_users, USERS.replace("disable", "maybe"), "userStatus: an unknown word"),
        (read_users, USERS.replace("carol", "alice"), 'user 3: "alice" is there twice'),
        (read_users, f'[{{"password": "{SECRET}"}}]', "user 1, username: a value of type None"),
        (read_users, f'[{{"{SECRET}": 1}}]', "user 1: not an object of RocketMQ's UserInfo"),
        (read_users, f'["{SECRET}"]', "user 1: not an object"),
        (read_users, '[{"username": "alice", "password": 7}]', "password: missing, or not"),
        (read_users, f'[\n{{"{SECRET}]', "users, line 2: no valid JSON"),
        (read_users, "[" * 100_000, "users, line 1: no valid JSON"),
        (read_users, "[" + "1" * 5000 + "]", "users, line 1: no valid JSON"),
        (read_users, " " * (1 << 20) + "x", "users: 1048577 characters"),
        (read_acls, "{" + " " * (1 << 20), "acls: 1048577 characters"),
        (read_acls, ACLS.replace("[All]", "All"), "acls, line 3: a list without brackets"),
        (read_acls, ACLS.replace("Allow", "Permit"), "unknown decision"),
        (read_acls, ACLS.replace("User:bob", "Group:b"), "acl: its subject is no user"),
        (read_acls, ACLS.replace("Group:g", "Group:a*b"), "that is not at its end"),
        (read_acls, "[7]", "acl: a value of type int is not an object"),
        (read_acls, json.dumps([acl_of(), acl_of()]), '"alice": it is there twice'),
    ],
)
def test_a_list_is_refused_without_a_word_of_its_secrets(
    read: Read, text: str, message: str
) -> None:
    with pytest.raises(BadAcl) as caught:
        read(text)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_more_users_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqadmin, "ACCOUNTS_MAX", 1)
    with pytest.raises(BadAcl, match="acls: 2 of them; allowed: up to 1"):
        read_acls("[1, 2]")


def test_lines_that_hold_no_row_are_passed_over() -> None:
    assert read_acls("there is no acl found.\n") == Imported()
    chatty = "list acls from 10.0.0.1:10911 success.\n" + ACLS
    assert read_acls(chatty) == read_acls(ACLS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["subject", "policies", "entries", "username"]), inner)
    ),
)


@given(JSON | st.lists(JSON), st.sampled_from([read_users, read_acls]))
def test_any_json_is_read_or_refused_with_the_one_error(given: object, read: Read) -> None:
    _tried(read, json.dumps(given))


@given(
    st.lists(
        st.sampled_from([*USERS.split("\n"), *ACLS.split("\n")]) | st.text("#User [],Pab\t\n")
    ),
    st.sampled_from([read_users, read_acls]),
)
def test_any_lines_are_read_or_refused_with_the_one_error(lines: list[str], read: Read) -> None:
    _tried(read, "\n".join(lines))


def _tried(read: Read, text: str) -> None:
    try:
        found = read(text)
    except BadAcl as error:
        told = str(error)
    else:
        told = " ".join(found.warnings)
    assert told.isprintable()
    assert SECRET not in told
