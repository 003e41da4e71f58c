"""What a user may do: entries of a Custom and of a Default policy, in RocketMQ 5's form.

    {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [
        {"resource": "Topic:orders*", "actions": ["Pub", "Sub"],
         "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}]}]}

A pattern says which resources an entry is about, and how specific it is: that decides between
entries (`decision`). What RocketMQ would take and read as something else, such as Topic:a*b, is
refused here, with the sentence of `BadAcl`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from duolog_server.node.identity.rights.nameindex import NameIndex
from duolog_server.node.identity.rights.resources import Action, Kind, Resource, counts_as
from duolog_server.node.identity.rights.sources import ADDRESSES, Network, networks, shown
from duolog_server.store.accesstables import SUBJECT

ENTRIES_MAX = 1000  # of a user
RIGHTS_TEXT_MAX = 1 << 20  # characters of all of them, as JSON
SOURCES_MAX = 100  # networks of an entry
NAME_MAX = 255  # characters
NAMESPACE_SEPARATOR = "%"
NOT_IN_USERS = frozenset(":/, ")  # names travel in `NAME:PASSWORD` and `Credential=NAME/…, `
USER_NAMES = f"1 to {NAME_MAX} printable characters other than colon, slash, comma and space"
CUSTOM, DEFAULT = "Custom", "Default"
ALL_ACTIONS = frozenset(Action)

_ALL = "All"
_EVERYTHING = "*"
_KINDS = {kind.lower(): kind for kind in Kind}
_ACTIONS = {action.lower(): action for action in Action}
_FIELDS = {
    "acl": ("subject", "policies"),
    "policy": ("policyType", "entries"),
    "entry": ("resource", "actions", "sourceIps", "decision"),
}


class BadAcl(ValueError):
    """Rights that cannot be taken: where, what is wrong there, and what is allowed instead."""

    def __init__(self, where: str, wrong: str, allowed: str) -> None:
        super().__init__(f"{where}: {wrong}; allowed: {allowed}")
        self.where = where
        self.wrong = wrong
        self.allowed = allowed


class Match(StrEnum):
    """How a pattern compares names."""

    ANY = "any"
    PREFIX = "prefix"
    LITERAL = "literal"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The resources that an entry is about. Without a kind: all of them.

    A pattern of namespaces covers the topics and groups in them, too, whose names are `ns%name`.
    """

    kind: Kind | None
    match: Match
    name: str = ""

    def __post_init__(self) -> None:
        assert (self.match is Match.ANY) == (not self.name), "only a pattern of any has no name"
        assert self.kind is not None or self.match is Match.ANY

    @classmethod
    def parse(cls, text: object, where: str = "resource") -> Self:
        """RocketMQ's text: `*`, `Topic:*`, `Topic:abc*`, `Topic:abc`. Raises BadAcl."""
        if not isinstance(text, str):
            raise BadAcl(where, f"{_named(text)} is not a text", _PATTERNS)
        if text == _EVERYTHING:
            return cls(None, Match.ANY)
        prefix, colon, name = text.partition(":")
        kind = _KINDS.get(prefix.lower())
        if kind is None or not colon:
            raise BadAcl(where, f"{_quoted(text)} begins with no kind of resource", _PATTERNS)
        if name == _EVERYTHING:
            return cls(kind, Match.ANY)
        match = Match.PREFIX if name.endswith(_EVERYTHING) else Match.LITERAL
        name = name.removesuffix(_EVERYTHING)
        _check_pattern_name(kind, name, where)
        return cls(kind, match, name)

    @property
    def text(self) -> str:
        """RocketMQ's text of it, which `parse` reads."""
        if self.kind is None:
            return _EVERYTHING
        return f"{self.kind}:{self.name}{'' if self.match is Match.LITERAL else _EVERYTHING}"

    @property
    def specificity(self) -> int:
        """Greater for a pattern that decides first: literal, then longer prefixes, kinds, all.

        A namespace is a prefix of names: Namespace:ns has that of Topic:ns%*.
        """
        if self.kind is None:
            return 0
        if self.match is Match.ANY:
            return 1
        if self.match is Match.PREFIX:
            return 1 + len(self.name)
        if self.kind is Kind.NAMESPACE:
            return 1 + len(self.name + NAMESPACE_SEPARATOR)
        return 2 + NAME_MAX + len(NAMESPACE_SEPARATOR)

    def beginnings(self) -> Iterator[tuple[Kind, str, bool]]:
        """Kinds with the beginning of all names that this pattern may cover; True: the whole name.

        What it covers is among them: `covers` says whether it does.
        """
        literal = self.match is Match.LITERAL
        for kind in Kind:
            if self.kind in (kind, None):
                yield kind, self.name, literal
            elif self.kind is Kind.NAMESPACE and kind is not Kind.CLUSTER:
                yield kind, self.name + (NAMESPACE_SEPARATOR if literal else ""), False

    def covers(self, resource: Resource) -> bool:
        """Whether the entry of this pattern is about a resource."""
        if self.kind is resource.kind:
            if self.match is Match.LITERAL:
                return resource.name == self.name
            return resource.name.startswith(self.name)
        if self.kind is Kind.NAMESPACE and resource.kind is not Kind.CLUSTER:
            return self._matches_namespace_of(resource.name)
        return self.kind is None

    def _matches_namespace_of(self, name: str) -> bool:
        if self.match is Match.LITERAL:
            return name.startswith(self.name + NAMESPACE_SEPARATOR)
        # No namespace has an empty name: a separator in front begins no namespace.
        return name.startswith(self.name) and NAMESPACE_SEPARATOR in name[len(self.name) or 1 :]


@dataclass(frozen=True, slots=True)
class Entry:
    """Allows or denies actions on the resources of a pattern; with sources, only from there."""

    pattern: Pattern
    actions: frozenset[Action] = ALL_ACTIONS
    sources: tuple[Network, ...] = ()
    allow: bool = True

    def __post_init__(self) -> None:
        assert self.actions, "an entry without actions would say nothing"

    @property
    def text(self) -> str:
        """One line for people: Topic:orders* Pub,Sub from 10.0.0.0/8."""
        limit = f" from {','.join(map(shown, self.sources))}" if self.sources else ""
        return f"{self.pattern.text} {','.join(self._action_names())}{limit}"

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's PolicyEntryInfo."""
        entry: dict[str, Any] = {"resource": self.pattern.text, "actions": self._action_names()}
        if self.sources:
            entry["sourceIps"] = [shown(network) for network in self.sources]
        return entry | {"decision": "Allow" if self.allow else "Deny"}

    @classmethod
    def from_json(cls, given: object, where: str = "entry") -> Self:
        """Read RocketMQ's PolicyEntryInfo. Raises BadAcl, whose `where` begins as given."""
        fields = _fields(given, "entry", where)
        return cls(
            Pattern.parse(fields.get("resource"), f"{where}, resource"),
            _actions(fields.get("actions"), f"{where}, actions"),
            _sources(fields.get("sourceIps"), f"{where}, sourceIps"),
            _decision(fields.get("decision"), f"{where}, decision"),
        )

    def _action_names(self) -> list[str]:
        if self.actions == ALL_ACTIONS:
            return [_ALL]
        return [action.value for action in Action if action in self.actions]


@dataclass(frozen=True, slots=True)
class Acl:
    """A user's entries. Those of the Default policy count where no Custom entry matches."""

    user: str
    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()
    _found: tuple[tuple[str, NameIndex[Entry]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = tuple((name, _by_name(entries)) for name, entries in self.policies)
        object.__setattr__(self, "_found", found)

    def covering(self, resource: Resource) -> Iterator[tuple[str, Iterator[Entry]]]:
        """The policies, in the order in which they are asked, and the entries about a resource."""
        for name, found in self._found:
            yield name, (entry for entry in found.of(resource) if entry.pattern.covers(resource))

    @property
    def policies(self) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
        """Names and entries of the policies, in the order in which they are asked."""
        return ((CUSTOM, self.custom), (DEFAULT, self.default))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's AclInfo; a policy without entries is left out."""
        policies = [
            {"policyType": name, "entries": [entry.to_json() for entry in entries]}
            for name, entries in self.policies
            if entries
        ]
        return {"subject": SUBJECT + self.user, "policies": policies}

    @classmethod
    def from_json(cls, given: object) -> Self:
        """Read RocketMQ's AclInfo. Raises BadAcl."""
        fields = _fields(given, "acl", "acl")
        user = _subject(fields.get("subject"))
        entries: dict[str, list[Entry]] = {CUSTOM: [], DEFAULT: []}
        for k, policy in enumerate(_listed(fields.get("policies"), f"acl of {_quoted(user)}")):
            where = f"acl of {_quoted(user)}, policy {k + 1}"
            name, found = _policy(policy, where)
            entries[name] += found
        check_count(user, sum(map(len, entries.values())))
        return cls(user, tuple(entries[CUSTOM]), tuple(entries[DEFAULT]))


def _by_name(entries: Iterable[Entry]) -> NameIndex[Entry]:
    found: NameIndex[Entry] = NameIndex()
    for entry in entries:
        for kind, beginning, whole in entry.pattern.beginnings():
            found.add(kind, beginning, whole, entry)
    return found


def check_user_name(name: object, where: str = "user") -> str:
    """The name of a user, as it is. Raises BadAcl."""
    if not isinstance(name, str):
        raise BadAcl(where, f"{_named(name)} is not a text", _NAMES)
    _check_name(name, where)
    if set(name) & NOT_IN_USERS:
        raise BadAcl(where, f"{_quoted(name)} has characters that no user's name has", USER_NAMES)
    return name


def check_count(user: str, count: int) -> None:
    """Raise BadAcl for more entries than a user may have."""
    if count > ENTRIES_MAX:
        raise BadAcl(f"acl of {_quoted(user)}", f"{count} entries", f"up to {ENTRIES_MAX:,}")


_PATTERNS = (
    f"* for all, or one of {', '.join(Kind)} with a name, a prefix or *: "
    "Topic:orders, Topic:orders*, Topic:*"
)
_NAMES = f"1 to {NAME_MAX} characters that can be printed, without spaces around them"


def _check_name(name: str, where: str) -> None:
    if not name or len(name) > NAME_MAX:
        raise BadAcl(where, f"a name of {len(name)} characters", _NAMES)
    if not name.isprintable() or name != name.strip():
        raise BadAcl(where, f"{_quoted(name)} has control characters or spaces around it", _NAMES)


def _check_pattern_name(kind: Kind, name: str, where: str) -> None:
    _check_name(name, where)
    if _EVERYTHING in name:
        raise BadAcl(where, f"{_quoted(name)} has a * that is not at its end", _PATTERNS)
    counted = counts_as(kind, name)
    if counted.kind is not kind or counted.name != name:
        allowed = f"{counted.kind}:{_printable(counted.name) or _EVERYTHING}"
        raise BadAcl(where, f"{_quoted(name)} counts as another resource", allowed)


def _fields(given: object, what: str, where: str) -> dict[str, Any]:
    """The fields of an object that has no others. One with a typing error might allow too much."""
    known = ", ".join(_FIELDS[what])
    if not isinstance(given, dict):
        raise BadAcl(where, f"{_named(given)} is not an object", f"an object of {known}")
    for name in given:
        if name not in _FIELDS[what]:
            raise BadAcl(where, f"unknown field {_quoted(str(name))}", known)
    return given


def _listed(given: object, where: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise BadAcl(where, f"{_named(given)} is not a list", "a list")
    return given


def _subject(given: object) -> str:
    if not isinstance(given, str) or not given.startswith(SUBJECT):
        raise BadAcl("acl", "its subject is no user", '"subject": "User:NAME"')
    return check_user_name(given.removeprefix(SUBJECT), "acl, subject")


def _policy(given: object, where: str) -> tuple[str, list[Entry]]:
    fields = _fields(given, "policy", where)
    name = fields.get("policyType") or CUSTOM  # as in RocketMQ
    if not isinstance(name, str) or name.capitalize() not in (CUSTOM, DEFAULT):
        raise BadAcl(where, "unknown policyType", f"{CUSTOM}, {DEFAULT}")
    listed = _listed(fields.get("entries"), f"{where}, entries")
    entries = [
        Entry.from_json(entry, f"{where}, entry {k + 1}")
        for k, entry in enumerate(listed[: ENTRIES_MAX + 1])
    ]
    return name.capitalize(), entries


def _actions(given: object, where: str) -> frozenset[Action]:
    allowed = f"a list of {_ALL}, {', '.join(Action)}"
    names = _listed(given, where)
    if not names:
        raise BadAcl(where, "no action", allowed)
    found: set[Action] = set()
    for name in names:
        text = name.lower() if isinstance(name, str) else ""
        if text == _ALL.lower():
            found |= ALL_ACTIONS
        elif text in _ACTIONS:
            found.add(_ACTIONS[text])
        else:
            raise BadAcl(where, f"unknown action {_named(name)}", allowed)
    return frozenset(found)


def _sources(given: object, where: str) -> tuple[Network, ...]:
    found: dict[Network, None] = {}
    for text in _listed(given, where):
        try:
            found |= dict.fromkeys(networks(text if isinstance(text, str) else ""))
        except ValueError:
            raise BadAcl(where, f"{_named(text)} is no address", ADDRESSES) from None
        if len(found) > SOURCES_MAX:
            raise BadAcl(where, f"more than {SOURCES_MAX} networks", f"up to {SOURCES_MAX}")
    return tuple(found)


def _decision(given: object, where: str) -> bool:
    text = given.lower() if isinstance(given, str) else ""
    if text not in ("allow", "deny"):
        raise BadAcl(where, f"unknown decision {_named(given)}", "Allow, Deny")
    return text == "allow"


def _named(value: object) -> str:
    """A value of any type, for an error: a text itself, of others the type."""
    return _quoted(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"


def _quoted(text: str) -> str:
    return f'"{_printable(text)}"'


def _printable(text: str, length_max: int = 80) -> str:
    """A text that cannot change the line that it is printed in, nor fill it."""
    shown = text if len(text) <= length_max else text[:length_max] + "..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]
