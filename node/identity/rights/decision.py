"""Whether a user may do what a call needs, and which entry decides it.

The rules, which are those that RocketMQ 5's ACL 2.0 aims at (docs/access.md lists where its code
does something else):

1. An entry matches if its pattern covers the resource, its actions have the action, and it has no
   sources or the caller's address is in one of them.
2. Custom entries decide; the Default policy is asked only where none of them matches.
3. Of several, the most specific pattern decides; of equally specific ones, a Deny.
4. Without any match, the answer is no.

Each action of a need is decided by itself, and one allowed action is enough: who may publish gets
a topic's route, although he may not subscribe.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from duolog_server.node.identity.rights.policies import Acl, Entry
from duolog_server.node.identity.rights.resources import Action, Kind, Need
from duolog_server.node.identity.rights.sources import Address, address_of, within

SHOWN_MAX = 300  # characters of what a call names: more than a name may have


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, the entry that gave it, if any, and in a sentence why."""

    allowed: bool
    entry: Entry | None
    policy: str  # Custom or Default; empty without an entry
    reason: str


def decide(acl: Acl | None, need: Need, source: str) -> Decision:
    """Decide for a caller at an address.

    A source that is no address is in no network; an entry that denies only some sources denies it,
    as it might be one of them.
    """
    undecided = need.actions
    denied: tuple[str, Entry] | None = None
    address = address_of(source)
    for policy, entries in acl.covering(need.resource) if acl else ():
        deciding = _deciding(entries, undecided, address)
        if deciding:
            found = _foremost(deciding.values())
            if found.allow:
                return _decision(policy, found)
            denied = denied or (policy, found)
        undecided -= deciding.keys()
        if not undecided:
            break
    return _decision(*denied) if denied else _undecided(acl, need, source)


def allows_some(acl: Acl | None, need: Need) -> bool:
    """Whether an entry allows it of some resource of that kind, from some address."""
    kinds = {need.resource.kind, None}
    if need.resource.kind is not Kind.CLUSTER:
        kinds.add(Kind.NAMESPACE)
    entries = (entry for _, entries in acl.policies for entry in entries) if acl else ()
    return any(
        entry.allow and entry.pattern.kind in kinds and entry.actions & need.actions
        for entry in entries
    )


def _deciding(
    entries: Iterable[Entry], actions: frozenset[Action], address: Address | None
) -> Mapping[Action, Entry]:
    """The entry of one policy that decides each action; actions that none matches are left out.

    entries: about the resource.
    """
    deciding: dict[Action, Entry] = {}
    for entry in entries:
        if not _matches_source(entry, address):
            continue
        for action in actions & entry.actions:
            if action not in deciding or _precedes(entry, deciding[action]):
                deciding[action] = entry
    return deciding


def _matches_source(entry: Entry, address: Address | None) -> bool:
    if not entry.sources:
        return True
    return not entry.allow if address is None else within(address, entry.sources)


def _precedes(entry: Entry, other: Entry) -> bool:
    """Whether an entry decides before another one that matches, too.

    Of two that say the same, the text only makes the answer that of any order of entries.
    """
    mine, its = entry.pattern.specificity, other.pattern.specificity
    if mine != its:
        return mine > its
    if entry.allow != other.allow:
        return other.allow
    return entry != other and entry.text < other.text


def _foremost(deciding: Iterable[Entry]) -> Entry:
    """The entry to name, of those that each decide an action: one that allows, if there is one."""
    found, *others = deciding
    for entry in others:
        if entry.allow == found.allow:
            found = entry if _precedes(entry, found) else found
        elif entry.allow:
            found = entry
    return found


def _decision(policy: str, entry: Entry) -> Decision:
    verb = "allowed" if entry.allow else "denied"
    return Decision(entry.allow, entry, policy, f"{verb} by {policy} entry {entry.text}")


def _undecided(acl: Acl | None, need: Need, source: str) -> Decision:
    if acl is None:
        return Decision(False, None, "", "denied: the user has no entries")
    actions = ",".join(action for action in Action if action in need.actions)
    resource, origin = _short(need.resource.text), _short(source or "unknown")
    reason = f"denied: no entry matches {actions} on {resource} from {origin}"
    return Decision(False, None, "", reason if reason.isprintable() else ascii(reason)[1:-1])


def _short(text: str) -> str:
    """A text that a request names, for an answer: gRPC sends no long ones with an error."""
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
