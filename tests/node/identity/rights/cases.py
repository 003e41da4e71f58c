"""The cases of decisions.txt, and random entries and needs for the properties."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st

from duolog_server.node.identity.rights.policies import Acl, Entry, Match, Pattern
from duolog_server.node.identity.rights.resources import (
    Action,
    Kind,
    Need,
    Resource,
    cluster,
    group,
    topic,
)
from duolog_server.node.identity.rights.sources import networks

TABLE = Path(__file__).with_name("decisions.txt")


@dataclass(frozen=True)
class Case:
    """One line of the table, with the entries above it."""

    title: str
    acl: Acl
    actions: frozenset[Action]
    kind: str  # as written: topic, group, cluster or namespace
    name: str
    source: str
    expected: str  # "Allow by ENTRY", "Deny by ENTRY" or "Deny"
    shipped: str  # what RocketMQ 5.3.3 answers: Allow or Deny

    @property
    def need(self) -> Need:
        named = {"topic": topic, "group": group, "cluster": cluster}
        if self.kind == "namespace":
            return Need(Resource(Kind.NAMESPACE, self.name), self.actions)
        return Need(named[self.kind](self.name), self.actions)


def entry(text: str) -> tuple[str, Entry]:
    """Its policy, and what `Custom Allow Topic:t Pub,Sub from 10.0.0.1` says."""
    said, _, sources = text.partition(" from ")
    policy, decision, resource, actions = said.split()
    given = {"resource": resource, "actions": actions.split(","), "decision": decision}
    if sources:
        given["sourceIps"] = sources.split(",")
    return policy, Entry.from_json(given)


def acl(*lines: str) -> Acl:
    found = Acl("alice")
    for policy, each in map(entry, lines):
        if policy == "Custom":
            found = replace(found, custom=(*found.custom, each))
        else:
            found = replace(found, default=(*found.default, each))
    return found


def cases() -> Iterator[Case]:
    for block in TABLE.read_text().split("\n\n"):
        if block.startswith("#"):
            continue
        title, *lines = block.strip().splitlines()
        entries = acl(*(line for line in lines if not line.startswith(">")))
        for line in lines:
            if line.startswith(">"):
                yield _case(title, entries, line)


def _case(title: str, entries: Acl, line: str) -> Case:
    asked, _, answer = line.removeprefix("> ").partition(" = ")
    actions, kind, name, _, source = asked.split(" ")
    expected, _, shipped = answer.partition(", 5.3 ")
    needed = frozenset(map(Action, actions.split(",")))
    return Case(
        title, entries, needed, kind, name, source, expected, shipped or expected.split()[0]
    )


# Few and short names, so that patterns, resources and sources meet often.
NAMES = st.text("ab%", min_size=1, max_size=4)
ACTIONS = st.frozensets(st.sampled_from(Action), min_size=1)
PATTERNS = st.one_of(
    st.just(Pattern(None, Match.ANY)),
    st.builds(Pattern, st.sampled_from(Kind), st.just(Match.ANY)),
    st.builds(
        Pattern, st.sampled_from(Kind), st.sampled_from([Match.PREFIX, Match.LITERAL]), NAMES
    ),
)
SOURCES = ("10.0.0.1", "10.1.0.1", "::ffff:10.0.0.1", "2001:db8::1", "unix", "")
NETWORKS = st.lists(
    st.sampled_from(["10.0.0.0/16", "10.0.0.1", "10.*.*.*", "2001:db8::/32", "*"]), max_size=2
).map(lambda texts: tuple(dict.fromkeys(one for text in texts for one in networks(text))))
ENTRIES = st.builds(Entry, PATTERNS, ACTIONS, NETWORKS, st.booleans())
ACLS = st.builds(
    Acl,
    st.just("alice"),
    st.lists(ENTRIES, max_size=6).map(tuple),
    st.lists(ENTRIES, max_size=4).map(tuple),
)
RESOURCES = st.builds(Resource, st.sampled_from(Kind), NAMES)
NEEDS = st.builds(Need, RESOURCES, ACTIONS)
