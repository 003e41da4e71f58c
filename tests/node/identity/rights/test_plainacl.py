"""RocketMQ 4's plain_acl.yml: what an account may do, by a model of RocketMQ's own rules."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.rights import plainacl
from duolog_server.node.identity.rights.decision import decide
from duolog_server.node.identity.rights.plainacl import Imported, ImportedUser, read_plain_acl
from duolog_server.node.identity.rights.policies import BadAcl
from duolog_server.node.identity.rights.resources import Action, Need, group, topic

SECRET = "s3cr3t-s3cr3t"

# The file that RocketMQ 4.9 is shipped with, shortened.
SHIPPED = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


def test_the_file_that_rocketmq_ships() -> None:
    found = read_plain_acl(SHIPPED)
    assert found.users == (
        ImportedUser("RocketMQ", "12345678"),
        ImportedUser("rocketmq2", "12345678", superuser=True),
    )
    (acl,) = found.acls
    assert [(entry.allow, entry.text) for entry in acl.custom] == [
        (True, "Topic:RMQ_SYS_TRACE_TOPIC Pub"),
        (False, "Group:groupA Sub"),
        (True, "Group:groupB Sub"),
        (True, "Group:groupC Sub"),
        (False, "Topic:topicA Pub,Sub"),
        (True, "Topic:topicB Pub,Sub"),
        (True, "Topic:topicC Sub"),
    ]
    assert [entry.text for entry in acl.default] == ["Group:* Sub"]
    assert len(found.warnings) == 4
    assert found.warnings[0].startswith("globalWhiteRemoteAddresses, item 1: calls from 10.10.103.")
    assert 'account 2 "rocketmq2": calls from whiteRemoteAddress 192.168.1.*' in found.warnings[1]


def model(account: dict[str, Any], kind: str, name: str, wanted: str) -> bool:
    """RocketMQ 4.9's answer for one resource of a signed call, from its bits and its one map."""
    bits = {"PUB": 4, "SUB": 8, "PUB|SUB": 12, "SUB|PUB": 12}
    owned: dict[str, int] = {}
    for prefix, items in (("%RETRY%", account["groupPerms"]), ("", account["topicPerms"])):
        for item in items or []:
            of, permission = item.split("=")
            owned[prefix + of.strip()] = bits.get(permission.strip(), 1)
    if name == "RMQ_SYS_TRACE_TOPIC" and wanted == "PUB" and kind == "topic":
        return True
    if account["admin"] and not owned:
        return True
    key = f"%RETRY%{name}" if kind == "group" else name
    default = "defaultGroupPerm" if key.startswith("%RETRY%") else "defaultTopicPerm"
    bit = owned.get(key, bits.get(str(account[default]).strip(), 1))
    return not bit & 1 and bool(bit & bits[wanted])


NAMES = st.sampled_from(["a", "ab", "ns%a", "%RETRY%a", "RMQ_SYS_TRACE_TOPIC", "a*", "*"])
PERMISSIONS = st.sampled_from(["PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "ANY", " SUB ", "pub"])
ITEMS = st.lists(st.builds("{}={}".format, NAMES, PERMISSIONS), max_size=5) | st.none()
ACCOUNTS = st.fixed_dictionaries(
    {
        "accessKey": st.sampled_from(["account-a", "account-b"]),
        "secretKey": st.just(SECRET),
        "admin": st.booleans(),
        "defaultTopicPerm": PERMISSIONS | st.none(),
        "defaultGroupPerm": PERMISSIONS | st.none(),
        "topicPerms": ITEMS,
        "groupPerms": ITEMS,
    }
)


def calls() -> Iterator[tuple[str, str, str]]:
    """What 4.9 asks: topics for both, groups for SUB, retry topics as their group."""
    for name in ("a", "ab", "b", "ns%a", "RMQ_SYS_TRACE_TOPIC"):
        yield "topic", name, "PUB"
        yield "topic", name, "SUB"
    for name in ("a", "ab", "b", "ns%a"):
        yield "group", name, "SUB"
        yield "topic", f"%RETRY%{name}", "SUB"


def imported(found: Imported, name: str, kind: str, resource: str, wanted: str) -> bool:
    (user,) = [user for user in found.users if user.name == name]
    acl = {acl.user: acl for acl in found.acls}.get(name)
    action = frozenset([Action[wanted]])
    need = Need(topic(resource) if kind == "topic" else group(resource), action)
    return user.superuser or decide(acl, need, "10.0.0.1").allowed


@given(st.lists(ACCOUNTS, max_size=2, unique_by=lambda account: account["accessKey"]))
def test_an_account_may_do_after_the_import_what_it_could_before(
    accounts: list[dict[str, Any]],
) -> None:
    found = read_plain_acl(yaml.safe_dump({"accounts": accounts}))
    for account in accounts:
        for kind, name, wanted in calls():
            before = model(account, kind, name, wanted)
            after = imported(found, account["accessKey"], kind, name, wanted)
            assert before == after, (account, kind, name, wanted)


@given(ACCOUNTS)
def test_no_account_but_an_admin_gets_any_other_right(account: dict[str, Any]) -> None:
    found = read_plain_acl(yaml.safe_dump({"accounts": [account]}))
    for action in set(Action) - {Action.PUB, Action.SUB}:
        for resource in (topic("a"), group("a")):
            need = Need(resource, frozenset([action]))
            for acl in found.acls:
                if decide(acl, need, "10.0.0.1").allowed:
                    assert account["admin"]


def plain(**changes: Any) -> str:
    account = {"accessKey": "account-a", "secretKey": SECRET} | changes
    return yaml.safe_dump({"accounts": [account]})


def test_an_admin_with_permissions_becomes_no_superuser() -> None:
    found = read_plain_acl(plain(admin=True, topicPerms=["t=DENY"]))
    assert not found.users[0].superuser
    assert "although it is an admin" in found.warnings[0]
    texts = [entry.text for entry in found.acls[0].custom]
    assert "Topic:* Create,Update,Delete" in texts
    assert "Topic:t Pub,Sub" in texts


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"topicPerms": ["t=ANY"]}, "topicPerms, item 1: unknown permission, counts as DENY"),
        ({"topicPerms": ["t=PUB", "o*=PUB"]}, "topicPerms, item 2: RocketMQ 4 has no patterns"),
        ({"topicPerms": ["%DLQ%g=SUB"]}, "topicPerms, item 1: this topic counts as another"),
        ({"groupPerms": ["%RETRY%g=SUB"]}, "groupPerms, item 1: no group has such a name"),
        ({"defaultTopicPerm": "any"}, "defaultTopicPerm: unknown permission, counts as DENY"),
        ({"defaultTopicPerm": [1]}, "defaultTopicPerm: unknown permission, counts as DENY"),
        ({"whiteRemoteAddress": "10.0.0.1"}, "whiteRemoteAddress 10.0.0.1 were allowed without"),
        ({"whiteRemoteAddress": SECRET}, "whiteRemoteAddress (not an address) were allowed"),
        ({"topicPerm": ["t=PUB"], "x": 1}, "2 unknown fields are ignored"),
        ({"groupPerms": ["g=SUB"]}, "a dead-letter topic counts as its group here"),
        ({"defaultGroupPerm": "SUB"}, "a dead-letter topic counts as its group here"),
        ({}, "allows any other call that is signed"),
    ],
)
def test_what_does_not_carry_over_is_a_warning(changes: dict[str, Any], warning: str) -> None:
    found = read_plain_acl(plain(**changes))
    assert [each for each in found.warnings if warning in each]
    assert SECRET not in repr(found)


def test_what_carries_over_is_no_warning() -> None:
    assert read_plain_acl(plain(admin=True)).warnings == ()
    found = read_plain_acl(plain(topicPerms=["t=PUB|SUB"], defaultTopicPerm="SUB"))
    assert len(found.warnings) == 1, "of other calls"


@pytest.mark.parametrize(
    ("text", "where", "wrong"),
    [
        ("a", "plain_acl.yml", "no mapping"),
        ("accounts: {}", "accounts", "not a list"),
        ("accounts: [a]", "account 1", "no mapping"),
        ("globalWhiteRemoteAddresses: a", "globalWhiteRemoteAddresses", "not a list"),
        (f"a: [\nsecretKey: {SECRET}: :", "plain_acl.yml, line 2", "no valid YAML"),
        (f"a: &x 1\nb: *{SECRET}", "plain_acl.yml, line 2", "an alias"),
        (f"a: !{SECRET} 1", "plain_acl.yml, line 1", "no valid YAML"),
        (f"a: !!python/name:os.{SECRET} 1", "plain_acl.yml, line 1", "no valid YAML"),
        ("a: 1\n---\nb: 1", "plain_acl.yml, line 2", "no valid YAML"),
        ("[" * 11, "plain_acl.yml, line 1", "too many levels"),
        ("[" * 1_000_000, "plain_acl.yml, line 1", "too many levels"),
        ("x" * ((1 << 20) + 1), "plain_acl.yml", "1048577 characters"),
        ("a: !!int ''", "plain_acl.yml", "no valid YAML"),
        ("a: !!bool x", "plain_acl.yml", "no valid YAML"),
        ("a: !!timestamp x", "plain_acl.yml", "no valid YAML"),
        ("a: 2020-99-99", "plain_acl.yml", "no valid YAML"),
        ("{[]: 1}", "plain_acl.yml, line 1", "no valid YAML"),
        (plain(accessKey="short"), "account 1, accessKey", "too short"),
        (plain(accessKey=None), "account 1, accessKey", "missing"),
        (plain(accessKey="account\n-a"), "account 1, accessKey", "not a text"),
        (plain(accessKey="account a"), "account 1, accessKey", "no user's name"),
        (plain(accessKey="account:a"), "account 1, accessKey", "no user's name"),
        (plain(secretKey="short"), 'account 1 "account-a", secretKey', "too short"),
        (plain(secretKey=True), 'account 1 "account-a", secretKey', "not a text"),
        (plain(secretKey=10**200), 'account 1 "account-a", secretKey', "not a text"),
        (plain(admin="perhaps"), 'account 1 "account-a", admin', "neither"),
        (plain(topicPerms="t=PUB"), 'account 1 "account-a", topicPerms', "not a list"),
        (plain(topicPerms=["t"]), 'account 1 "account-a", topicPerms, item 1', "not of the form"),
        (plain(topicPerms=[{"t": "PUB"}]), 'account 1 "account-a", topicPerms, item 1', "not of"),
        (plain(groupPerms=["a=b=PUB"]), 'account 1 "account-a", groupPerms, item 1', "not of"),
        (plain(topicPerms=["t\x07=PUB"]), 'account 1 "account-a", topicPerms, item 1', "control"),
        (plain(topicPerms=[f"t{k}=PUB" for k in range(1001)]), 'acl of "account-a"', "1002"),
        (plain() + plain().partition("\n")[2], 'account "account-a"', "two accounts have"),
    ],
)
def test_a_file_is_refused_without_a_word_of_its_secrets(text: str, where: str, wrong: str) -> None:
    with pytest.raises(BadAcl) as caught:
        read_plain_acl(text)
    assert caught.value.where == where
    assert wrong in caught.value.wrong
    assert SECRET not in str(caught.value)


def test_aliases_cannot_multiply() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 30)
    )
    with pytest.raises(BadAcl, match="line 2: an alias"):
        read_plain_acl(bomb)


def test_an_empty_file_has_nothing() -> None:
    for text in ("", "# nothing", "accounts:", "accounts: []", "other: 1"):
        assert read_plain_acl(text) == Imported()


def test_more_accounts_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plainacl, "ACCOUNTS_MAX", 1)
    with pytest.raises(BadAcl, match="2 accounts; allowed: up to 1"):
        read_plain_acl("accounts: [1, 2]")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner)
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "globalWhiteRemoteAddresses": VALUES,
        "accounts": VALUES
        | st.lists(
            st.fixed_dictionaries(
                {"accessKey": st.just("account-a") | SCALARS},
                optional={
                    "secretKey": st.just(SECRET),
                    "admin": SCALARS,
                    "whiteRemoteAddress": VALUES,
                    "defaultTopicPerm": VALUES,
                    "topicPerms": st.lists(st.text("=%|PUBSRETY*a ") | SCALARS),
                    "groupPerms": VALUES,
                },
            ),
            max_size=2,
        ),
    },
)


def read(text: str) -> Imported | BadAcl:
    try:
        return read_plain_acl(text)
    except BadAcl as error:
        return error


@given(VALUES | NEARLY)
def test_any_yaml_is_read_or_refused_with_the_one_error(value: object) -> None:
    found = read(yaml.safe_dump(value))
    told = found.warnings if isinstance(found, Imported) else [str(found)]
    assert all(line.isprintable() and SECRET not in line for line in told)


@given(st.text("abc:- \n\t\"'[]{}&*!|>%@`?,#<=123.~"))
def test_any_text_is_read_or_refused_with_the_one_error(text: str) -> None:
    read(text)
    read(f"accounts:\n  - {text}")
