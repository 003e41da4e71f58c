"""Users and rights of RocketMQ 5: what `mqadmin listUser` and `listAcl` print, or the same as JSON.

    #UserName         #Password               #UserType               #UserStatus
    alice             a-secret                Normal                  enable

    #Subject          #PolicyType  #Resource       #Actions      #SourceIp      #Decision
    User:alice        Custom       Topic:orders*   [Pub, Sub]    [10.0.0.0/8]   Allow

JSON has one of RocketMQ's UserInfo or AclInfo, or a list of them. Passwords are never in an error
or a warning.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from duolog_server.node.identity.rights.plainacl import (
    ACCOUNTS_MAX,
    TEXT_MAX,
    Imported,
    ImportedUser,
)
from duolog_server.node.identity.rights.policies import Acl, BadAcl, check_user_name
from duolog_server.node.identity.rights.resources import Kind, counts_as
from duolog_server.store.accesstables import DISABLED, ENABLED, NORMAL, SUPER

_USER_HEADER = ("#UserName", "#Password", "#UserType", "#UserStatus")
_ACL_HEADER = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
_USER_FIELDS = ("username", "password", "userType", "userStatus")
_ENTRY_FIELDS = ("resource", "actions", "sourceIps", "decision")
_CHATTER = re.compile(r"(get users?|list acls?) from \S+ success\.|there is no \w+ found\.")
_COLUMNS = re.compile(r"\s{2,}")
_ABSENT = "null"  # what Java prints for a value that is missing


def read_users(text: str) -> Imported:
    """Users with their secrets. Raises BadAcl."""
    if _is_json(text):
        given = _beans(text, "users")
    else:
        rows = _rows(text, _USER_HEADER, "users")
        given = [dict(zip(_USER_FIELDS, row, strict=True)) for _, row in rows]
    users = {}
    for k, fields in enumerate(given):
        user = _user(fields, f"user {k + 1}")
        if user.name in users:
            raise BadAcl(f"user {k + 1}", f'"{user.name}" is there twice', "each user once")
        users[user.name] = user
    return Imported(tuple(users.values()))


def read_acls(text: str) -> Imported:
    """Entries of users. Raises BadAcl. Warns of those that RocketMQ 5.3 may decide otherwise."""
    given = _beans(text, "acls") if _is_json(text) else _acl_beans(text)
    warnings: list[str] = []
    acls: dict[str, Acl] = {}
    for fields in given:
        dropped = _without_group_topics(fields)
        acl = Acl.from_json(fields)
        if acl.user in acls:
            raise BadAcl(f'acl of "{acl.user}"', "it is there twice", "each user once")
        acls[acl.user] = acl
        if dropped:
            warnings.append(
                f'acl of "{acl.user}": {dropped} entries left out: retry and dead-letter topics '
                "count as their group here, light queues as their topic"
            )
        if _contradicts(acl):
            warnings.append(
                f'acl of "{acl.user}": some entries allow what others deny. The most specific '
                "decides here; RocketMQ 5.3 may decide otherwise (docs/access.md)"
            )
    return Imported(acls=tuple(acls.values()), warnings=tuple(warnings))


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _beans(text: str, what: str) -> list[Any]:
    """The objects of a JSON text: one, or a list."""
    _check_length(text, what)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
    else:
        return _bounded(given if isinstance(given, list) else [given], what)
    raise BadAcl(f"{what}, line {line}", "no valid JSON", "an object or a list of them")


def _rows(text: str, header: tuple[str, ...], what: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table with their line numbers. Two spaces or more part its columns."""
    _check_length(text, what)
    headed = False
    for number, line in enumerate(text.split("\n"), 1):
        row = _COLUMNS.split(line.strip())
        if tuple(row) == header:
            headed = True
        elif any(row) and not _CHATTER.fullmatch(line.strip()):
            if not headed or len(row) != len(header):
                allowed = f"the columns {' '.join(header)}, with two spaces between them"
                raise BadAcl(f"{what}, line {number}", f"{len(row)} columns", allowed)
            yield number, row


def _acl_beans(text: str) -> list[dict[str, Any]]:
    """AclInfo objects from the rows of a table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number, (subject, policy, resource, actions, sources, decision) in _rows(
        text, _ACL_HEADER, "acls"
    ):
        where = f"acls, line {number}"
        values = (resource, _list(actions, where), _list(sources, where), decision)
        entry = dict(zip(_ENTRY_FIELDS, values, strict=True))
        policy_type = None if policy == _ABSENT else policy
        found.setdefault(subject, []).append({"policyType": policy_type, "entries": [entry]})
    acls = [{"subject": subject, "policies": policies} for subject, policies in found.items()]
    return _bounded(acls, "acls")


def _list(text: str, where: str) -> list[str] | None:
    """The elements of Java's text of a list: [Pub, Sub]."""
    if text == _ABSENT:
        return None
    if not (text.startswith("[") and text.endswith("]")):
        raise BadAcl(where, "a list without brackets", "[Pub, Sub]")
    return [each.strip() for each in text[1:-1].split(",") if each.strip()]


def _user(given: object, where: str) -> ImportedUser:
    known = ", ".join(_USER_FIELDS)
    if not isinstance(given, dict) or given.keys() - set(_USER_FIELDS):
        raise BadAcl(where, "not an object of RocketMQ's UserInfo", known)
    name = check_user_name(given.get("username"), f"{where}, username")
    secret = given.get("password")
    if not isinstance(secret, str) or secret in ("", _ABSENT) or not secret.isprintable():
        raise BadAcl(f'user "{name}", password', "missing, or not a text", "the user's secret")
    superuser = _word(given, "userType", (NORMAL, SUPER), name)
    disabled = _word(given, "userStatus", (ENABLED, DISABLED), name)
    return ImportedUser(name, secret, superuser, not disabled)


def _word(given: dict[str, Any], field: str, words: tuple[str, str], name: str) -> bool:
    """Whether a field has the second of two words; without it, it has the first."""
    text = str(given.get(field) or words[0]).lower()
    if text == _ABSENT:
        return False
    if text not in (word.lower() for word in words):
        raise BadAcl(f'user "{name}", {field}', "an unknown word", ", ".join(words))
    return text == words[1].lower()


def _without_group_topics(acl: object) -> int:
    """Take out entries that can match nothing here; how many there were."""
    count = 0
    policies = acl.get("policies") if isinstance(acl, dict) else None
    for policy in policies if isinstance(policies, list) else ():
        entries = policy.get("entries") if isinstance(policy, dict) else None
        if isinstance(entries, list):
            kept = [entry for entry in entries if not _counts_as_another(entry)]
            count += len(entries) - len(kept)
            policy["entries"] = kept
    return count


def _counts_as_another(entry: object) -> bool:
    text = entry.get("resource") if isinstance(entry, dict) else None
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    found = next((each for each in Kind if each.lower() == kind.lower()), None)
    return found is not None and counts_as(found, name).name != name


def _contradicts(acl: Acl) -> bool:
    """Whether entries of one policy may both match something, and one allows what one denies."""
    return any(
        allow.actions & deny.actions and _meet(allow.pattern.name, deny.pattern.name)
        for _, entries in acl.policies
        for deny in entries
        if not deny.allow
        for allow in entries
        if allow.allow
    )


def _meet(one: str, other: str) -> bool:
    """Whether one of two names begins with the other: near enough for a warning. Any has none."""
    return one.startswith(other) or other.startswith(one)


def _check_length(text: str, what: str) -> None:
    if len(text) > TEXT_MAX:
        raise BadAcl(what, f"{len(text)} characters", f"up to {TEXT_MAX:,}")


def _bounded(given: list[Any], what: str) -> list[Any]:
    if len(given) > ACCOUNTS_MAX:
        raise BadAcl(what, f"{len(given)} of them", f"up to {ACCOUNTS_MAX:,}")
    return given
