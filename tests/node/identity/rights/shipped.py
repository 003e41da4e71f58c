"""A model of what RocketMQ 5.3.3 answers, from reading its code, to check the marks of the table.

It sorts all entries that match by a comparison that is no order, so the order in which entries were
given counts. Java and Python sort few elements by the same algorithm, which matters then.
"""

from functools import cmp_to_key
from ipaddress import ip_address, ip_network

from duolog_server.node.identity.rights.policies import Entry, Match, Pattern
from duolog_server.node.identity.rights.resources import Kind
from duolog_server.node.identity.rights.sources import shown
from tests.node.identity.rights.cases import Case


def answer(case: Case) -> str:
    """Allow or Deny."""
    kind, name = _resource(case.kind, case.name)
    for _, entries in case.acl.policies:
        matching = [
            entry
            for entry in entries
            if _covers(entry.pattern, kind, name)
            and entry.actions & case.actions
            and _comes_from(entry, case.source)
        ]
        if matching:
            return "Allow" if sorted(matching, key=cmp_to_key(_compare))[0].allow else "Deny"
    return "Deny"


def _resource(kind: str, name: str) -> tuple[Kind, str]:
    """Retry topics are their group; dead letters and light queues are topics like any other."""
    if name.startswith("%RETRY%"):
        return Kind.GROUP, name.removeprefix("%RETRY%")
    return Kind(kind.capitalize()), name


def _covers(pattern: Pattern, kind: Kind, name: str) -> bool:
    """A pattern of namespaces covers no topic and no group."""
    if pattern.kind in (None, kind):
        literal = pattern.match is Match.LITERAL
        return name == pattern.name if literal else name.startswith(pattern.name)
    return False


def _comes_from(entry: Entry, source: str) -> bool:
    """Addresses are compared as texts, networks as numbers of any length."""
    if not entry.sources or source == "unix":
        return not entry.sources
    address = ip_address(source.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or address
    for text in map(shown, entry.sources):
        if "/" not in text:
            if text == source:
                return True
        elif int(ip_network(text)[0]) <= int(mapped) <= int(ip_network(text)[-1]):
            return True
    return False


def _compare(first: Entry, second: Entry) -> int:
    one, other = first.pattern, second.pattern
    if one.kind is not other.kind:
        return 1 if one.kind is None else -1
    if one.match is not other.match and one.match is not Match.ANY:
        return -1
    if one.match is other.match is Match.PREFIX and len(one.name) != len(other.name):
        return len(one.name) - len(other.name)
    return 1 if not first.allow else -1 if not second.allow else 0
