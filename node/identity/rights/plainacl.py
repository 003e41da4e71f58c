"""Users and rights of RocketMQ 4's plain_acl.yml, as users and entries here.

An account may do after the import what RocketMQ 4.9 let it do, and never more. What cannot be kept
becomes a warning. Its rules, which the entries reproduce:

- topicPerms and groupPerms name single topics and groups; one that is named has only the
  permissions given there, and the defaults count for all others. So a permission that is missing
  is denied where the default would allow it.
- Of a group, only SUB is ever asked for. The topic %RETRY%g is the group g.
- A user that signs may publish to RMQ_SYS_TRACE_TOPIC, whatever is written about it.
- admin allows everything, but only if no topicPerms and no groupPerms are written beside it.

Secrets are never in an error or a warning, nor is any text that may be one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from duolog_server.node.identity.rights import sources
from duolog_server.node.identity.rights.policies import (
    Acl,
    BadAcl,
    Entry,
    Match,
    Pattern,
    check_count,
    check_user_name,
)
from duolog_server.node.identity.rights.resources import Action, Kind, counts_as

TEXT_MAX = 1 << 20  # characters
ACCOUNTS_MAX = 10_000
NODES_MAX = 200_000  # of YAML
DEPTH_MAX = 10
KEY_LENGTH_MIN = 7
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

_PUB, _SUB = frozenset([Action.PUB]), frozenset([Action.SUB])
_PERMISSIONS = {
    "PUB": _PUB,
    "SUB": _SUB,
    "PUB|SUB": _PUB | _SUB,
    "SUB|PUB": _PUB | _SUB,
    "DENY": frozenset[Action](),
}
_MANAGED = frozenset([Action.CREATE, Action.UPDATE, Action.DELETE])
_ASKED = {Kind.TOPIC: _PUB | _SUB, Kind.GROUP: _SUB}  # what 4.9 asks for
_ACCOUNT_FIELDS = {
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
}
# What pyyaml raises for texts that are no YAML, or no value of the type that their tag names.
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)

Rights = dict[tuple[Kind, str], frozenset[Action]]


@dataclass(frozen=True, slots=True)
class ImportedUser:
    """A user with the secret that it signs with."""

    name: str
    secret: str = field(repr=False)
    superuser: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file holds, and in sentences what of it does not carry over."""

    users: tuple[ImportedUser, ...] = ()
    acls: tuple[Acl, ...] = ()
    warnings: tuple[str, ...] = ()


def read_plain_acl(text: str) -> Imported:
    """Read a plain_acl.yml. Raises BadAcl for one that RocketMQ 4.9 would not load either."""
    document = _loaded(text)
    if document is None:
        return Imported()
    if not isinstance(document, dict):
        raise BadAcl("plain_acl.yml", "no mapping", "globalWhiteRemoteAddresses and accounts")
    accounts = _list(document.get("accounts"), "accounts")
    if len(accounts) > ACCOUNTS_MAX:
        raise BadAcl("accounts", f"{len(accounts)} accounts", f"up to {ACCOUNTS_MAX:,}")
    read = [_Account(given, k + 1) for k, given in enumerate(accounts)]
    _check_names([account.name for account in read])
    return Imported(
        tuple(account.user for account in read),
        tuple(account.acl() for account in read if not account.user.superuser),
        (
            *_global_warnings(document),
            *(warning for account in read for warning in account.warnings()),
            *_common_warnings(read),
        ),
    )


class _Account:
    """One account of the file; numbers count from 1."""

    def __init__(self, given: object, number: int) -> None:
        where = f"account {number}"
        if not isinstance(given, dict):
            raise BadAcl(where, "no mapping", "accessKey, secretKey, ...")
        self._unknown = len(given.keys() - _ACCOUNT_FIELDS)
        self.name = check_user_name(_key(given, "accessKey", where), f"{where}, accessKey")
        self._where = f'account {number} "{self.name}"'
        self._notes: list[str] = []
        self._white = _scalar(given.get("whiteRemoteAddress")).strip()
        self._rights = self._named_rights(given)
        self._defaults = {
            Kind.TOPIC: self._default(given, "defaultTopicPerm"),
            Kind.GROUP: self._default(given, "defaultGroupPerm") & _SUB,
        }
        self._admin = _flag(given.get("admin"), f"{self._where}, admin")
        self._limited = bool(given.get("topicPerms") or given.get("groupPerms"))
        superuser = self._admin and not self._limited
        self.user = ImportedUser(self.name, _key(given, "secretKey", self._where), superuser)

    def acl(self) -> Acl:
        """The entries that have the same effect as the account's permissions."""
        default = tuple(
            Entry(Pattern(kind, Match.ANY), allowed)
            for kind, allowed in self._defaults.items()
            if allowed
        )
        custom = (*self._custom(), *self._managing())
        check_count(self.name, len(custom) + len(default))
        return Acl(self.name, custom, default)

    def warnings(self) -> Iterator[str]:
        """What of this account does not carry over."""
        if self._white:
            yield (
                f"{self._where}: calls from whiteRemoteAddress {_address(self._white)} were "
                "allowed without a signature and without rights; they need both now"
            )
        if self._unknown:
            yield f"{self._where}: {self._unknown} unknown fields are ignored, as by RocketMQ"
        if self._admin and self._limited:
            yield (
                f"{self._where}: its topicPerms and groupPerms limit it although it is an admin, "
                "so it becomes no superuser, but may create, update and delete topics and groups"
            )
        yield from self._notes

    @property
    def consumes(self) -> bool:
        """Whether it may read as some group."""
        return bool(self._defaults[Kind.GROUP]) or any(
            kind is Kind.GROUP and allowed for (kind, _), allowed in self._rights.items()
        )

    def _custom(self) -> Iterator[Entry]:
        named = self._rights
        if not self.user.superuser:
            trace = (Kind.TOPIC, TRACE_TOPIC)
            if trace in named:
                named = named | {trace: named[trace] | _PUB}
            else:
                yield Entry(Pattern(Kind.TOPIC, Match.LITERAL, TRACE_TOPIC), _PUB)
        for (kind, name), allowed in named.items():
            pattern = Pattern(kind, Match.LITERAL, name)
            if allowed:
                yield Entry(pattern, allowed)
            missing = _ASKED[kind] - allowed
            if denied := missing & self._defaults[kind] if allowed else missing:
                yield Entry(pattern, denied, allow=False)

    def _managing(self) -> Iterator[Entry]:
        """An admin that is no superuser: the calls that 4.9 keeps for admins."""
        if self._admin and not self.user.superuser:
            yield Entry(Pattern(Kind.TOPIC, Match.ANY), _MANAGED)
            yield Entry(Pattern(Kind.GROUP, Match.ANY), _MANAGED)
            yield Entry(Pattern(Kind.CLUSTER, Match.ANY), frozenset([Action.UPDATE]))

    def _named_rights(self, given: Mapping[str, Any]) -> Rights:
        """Of groups first: a topic %RETRY%g that is written, too, replaces the group g."""
        found: Rights = {}
        for field_name, kind in (("groupPerms", Kind.GROUP), ("topicPerms", Kind.TOPIC)):
            where = f"{self._where}, {field_name}"
            for k, item in enumerate(_list(given.get(field_name), where)):
                name, permission = _item(item, f"{where}, item {k + 1}")
                allowed = self._permission(permission, f"{field_name}, item {k + 1}")
                if key := self._carried(kind, name, f"{field_name}, item {k + 1}"):
                    found[key] = allowed & _ASKED[key[0]]
        return found

    def _carried(self, kind: Kind, name: str, what: str) -> tuple[Kind, str] | None:
        """The resource that 4.9 means by a name; None, with a note, for one that it never asks."""
        if "*" in name:
            self._note(what, "RocketMQ 4 has no patterns, so no name matched it: left out")
            return None
        resource = counts_as(kind, name)
        if kind is Kind.GROUP and resource.name != name:
            self._note(what, "no group has such a name: left out")
            return None
        if name.startswith("%RETRY%"):
            Pattern.parse(resource.text, f"{self._where}, {what}")
            return resource.kind, resource.name
        if (resource.kind, resource.name) != (kind, name):
            self._note(what, "this topic counts as another resource here: left out")
            return None
        Pattern.parse(resource.text, f"{self._where}, {what}")
        return kind, name

    def _default(self, given: Mapping[str, Any], name: str) -> frozenset[Action]:
        written = given.get(name)
        return _PERMISSIONS["DENY"] if written is None else self._permission(_scalar(written), name)

    def _permission(self, text: str, what: str) -> frozenset[Action]:
        """Anything but the texts of RocketMQ counts as DENY, ANY included."""
        allowed = _PERMISSIONS.get(text.strip())
        if allowed is None:
            self._note(what, "unknown permission, counts as DENY, as in RocketMQ")
            return _PERMISSIONS["DENY"]
        return allowed

    def _note(self, what: str, text: str) -> None:
        self._notes.append(f"{self._where}, {what}: {text}")


def _loaded(text: str) -> Any:
    """The value of a YAML text: no aliases, of bounded size and depth. Raises BadAcl.

    pyyaml's own words may quote the text, so only its line number is given.
    """
    if len(text) > TEXT_MAX:
        raise BadAcl("plain_acl.yml", f"{len(text)} characters", f"up to {TEXT_MAX:,}")
    try:
        _check_events(text)
        return yaml.safe_load(text)
    except BadAcl:
        raise
    except _NOT_YAML as error:
        where = f"plain_acl.yml{_line_of(error)}"
    raise BadAcl(where, "no valid YAML", "what RocketMQ 4 has in its plain_acl.yml")


def _line_of(place: yaml.Event | Exception) -> str:
    mark = getattr(place, "problem_mark", None) or getattr(place, "start_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _check_events(text: str) -> None:
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        where = f"plain_acl.yml{_line_of(event)}"
        if isinstance(event, yaml.AliasEvent):
            raise BadAcl(where, "an alias", "values that are written out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX or number > NODES_MAX:
            allowed = f"up to {DEPTH_MAX} levels and {NODES_MAX:,} values"
            raise BadAcl(where, "too many levels or values", allowed)


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadAcl(f'account "{name}"', "two accounts have this accessKey", "one of each")
        seen.add(name)


def _list(given: object, where: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise BadAcl(where, "not a list", "a list")
    return given


def _key(given: Mapping[str, Any], name: str, where: str) -> str:
    """A key as RocketMQ reads it, which takes digits without quotes, too."""
    text = _scalar(given.get(name))
    if len(text) < KEY_LENGTH_MIN or not text.isprintable():
        allowed = f"a text of {KEY_LENGTH_MIN} characters or more, in quotes unless plain letters"
        raise BadAcl(f"{where}, {name}", "missing, too short, or not a text", allowed)
    return text


def _scalar(value: object) -> str:
    """A text, or the digits of a number; empty for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**100:
        return str(value)
    return ""


def _flag(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadAcl(where, "neither true nor false", "true, false")


def _item(given: object, where: str) -> tuple[str, str]:
    """Name and permission of NAME=PERMISSION."""
    parts = [part for part in given.split("=") if part] if isinstance(given, str) else []
    if len(parts) != 2 or not parts[0].strip():
        raise BadAcl(where, "not of the form NAME=PERMISSION", "orders=PUB|SUB")
    return parts[0].strip(), parts[1].strip()


def _address(text: str) -> str:
    """An address as written, if it is one."""
    try:
        sources.networks(text)
    except ValueError:
        return "(not an address)"
    return text


def _global_warnings(document: Mapping[str, Any]) -> Iterator[str]:
    where = "globalWhiteRemoteAddresses"
    for k, address in enumerate(_list(document.get(where), where)):
        yield (
            f"{where}, item {k + 1}: calls from {_address(_scalar(address))} were allowed without "
            "any user; they need a user and rights now"
        )


def _common_warnings(accounts: list[_Account]) -> Iterator[str]:
    if any(not account.user.superuser for account in accounts):
        yield (
            "all accounts: RocketMQ 4 checks rights only for sending, reading and managing topics "
            "and groups, and allows any other call that is signed; here each call needs a right, "
            "so add Get and List to those who look at statistics"
        )
    if any(account.consumes for account in accounts):
        yield (
            "all accounts: a dead-letter topic counts as its group here, so users who may read as "
            "group g may read %DLQ%g; RocketMQ 4 asked for a permission of that topic"
        )
