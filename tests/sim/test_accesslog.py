"""The simulator's reading of users, rights and quotas, and what it says of answered changes."""

import json
from typing import Any

import pytest

from sim.accesshistory import OK, REFUSED, AccessHistory
from sim.accesslog import AccessLog, Proof, Said
from sim.nodeusers import KEY, CheapSeal
from sim.witness import Violation


def user(
    name: str, word: str = "hash", *, on: bool = True, is_super: bool = False
) -> dict[str, Any]:
    row = {
        "username": name,
        "userType": "Super" if is_super else "Normal",
        "userStatus": "enable" if on else "disable",
        "password": word,
    }
    return {"op": "user", "user": row}


def rights(name: str, *entries: tuple[str, str, str]) -> dict[str, Any]:
    rows = [
        {"resource": resource, "actions": [action], "decision": decision}
        for resource, action, decision in entries
    ]
    policies = [{"policyType": "Custom", "entries": rows}]
    return {"op": "rights", "rights": {"subject": f"User:{name}", "policies": policies}}


ROOT = user("root", is_super=True)
PW, PW2 = (CheapSeal(KEY, "test").hash_password("u", word, b"salt") for word in ("pw", "pw2"))


def said(*changes: dict[str, Any]) -> Said:
    return log(ROOT, *changes).at(1 + len(changes))


def log(*changes: dict[str, Any]) -> AccessLog:
    return AccessLog([json.dumps(change).encode() for change in changes])


def test_a_state_holds_until_the_next_record_of_it() -> None:
    found = log(ROOT, {"op": "topic"}, user("u"), {"op": "delete_user", "user": "u"})
    assert [set(found.at(applied).users) for applied in range(5)] == [
        set(),
        {"root"},
        {"root"},
        {"root", "u"},
        {"root"},
    ]


def test_a_disabled_user_proves_nothing() -> None:
    assert said(user("u")).proves("u", "hash")
    assert said(user("u")).proves("u", "")
    assert not said(user("u")).proves("u", "other")
    assert not said(user("u", on=False)).proves("u", "hash")
    assert not said().proves("u", "")


def test_a_token_ends_for_good_and_a_password_is_good_again() -> None:
    first, deleted = user("u", PW), {"op": "delete_user", "user": "u"}
    token, password = Proof("u", era=said(first).eras["u"]), Proof("u", "pw")
    assert said(first).admits(token)
    assert said(first, first).admits(token), "nothing has changed"
    for changes in ([user("u", PW2)], [user("u", PW, on=False)], [deleted]):
        assert not said(first, *changes).admits(token)
        assert not said(first, *changes).admits(password)
        assert not said(first, *changes, first).admits(token)
        assert said(first, *changes, first).admits(password)


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([("Topic:qa", "Pub", "Allow")], True),
        ([("Topic:qa", "Sub", "Allow")], False),
        ([("Topic:*", "Pub", "Deny"), ("Topic:q*", "Pub", "Allow")], True),
        ([("Topic:qa", "Pub", "Deny"), ("Topic:q*", "Pub", "Allow")], False),
        ([("Topic:qa", "Pub", "Deny"), ("Topic:qa", "Pub", "Allow")], False),
    ],
)
def test_the_most_specific_entry_decides_and_a_denial_first(
    entries: list[tuple[str, str, str]], allowed: bool
) -> None:
    assert said(user("u"), rights("u", *entries)).allows("u", "Topic:qa", ("Pub",)) is allowed


def test_rights_go_with_their_user() -> None:
    entries = rights("u", ("Topic:*", "Pub", "Allow"))
    gone = {"op": "delete_user", "user": "u"}
    assert not said(user("u"), entries, gone, user("u")).allows("u", "Topic:qa", ("Pub",))
    assert not said(entries, user("u")).allows("u", "Topic:qa", ("Pub",))


def test_a_quota_of_its_own_takes_the_place_of_the_one_for_all_others() -> None:
    def quota(subject: str) -> dict[str, Any]:
        return {"op": "quota", "quota": {"subject": subject, "messages_in": 1}}

    found = said(quota("User:*"), quota("User:u"))
    subjects = [(found.quota("User", name) or {})["subject"] for name in ("u", "v")]
    assert subjects == ["User:u", "User:*"]
    assert said(quota("User:u")).quota("User", "v") is None


def test_a_log_without_a_super_user_is_a_violation() -> None:
    with pytest.raises(Violation, match="no super user"):
        said(user("root"))


# -- changes that were answered --------------------------------------------------------------------


def test_an_acknowledged_change_must_be_in_the_log() -> None:
    history = AccessHistory()
    change = history.begin("user", "u", "pw", 0)
    change.outcome = OK
    assert history.place(change, [ROOT, user("u", PW)]) == 1
    history.check([user("u", PW)])
    for records in ([], [user("u", PW2)], [user("v", PW)]):
        with pytest.raises(Violation, match="confirmed"):
            history.place(change, records)
    with pytest.raises(Violation, match="lost"):
        history.check([user("u", PW2)])


def test_a_refused_change_must_not_be_in_the_log() -> None:
    history = AccessHistory()
    history.begin("user", "u", "pw", 0).outcome = REFUSED
    history.check([])
    history.begin("user", "u", "pw2", 0)
    with pytest.raises(Violation, match="refused"):
        history.check([user("u", PW)])


def test_what_nobody_asked_for_must_not_be_in_the_log() -> None:
    history = AccessHistory()
    history.begin("delete_user", "u", "", 0)
    gone = {"op": "delete_user", "user": "u"}
    history.check([gone])
    with pytest.raises(Violation, match="asked for"):
        history.check([gone, gone])
