"""What rights are about: resources by kind and name, actions, and what a call needs.

A topic that belongs to another resource counts as that one, as in RocketMQ: a group's retry and
dead-letter topics are the group, a lite topic is its parent topic.
"""

from dataclasses import dataclass
from enum import StrEnum

from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.store import lightqueues

_GROUP_TOPICS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


class Kind(StrEnum):
    """RocketMQ's kinds of resources, as it writes them."""

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """RocketMQ's actions, as it writes them; its All is the set of these."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that a call is about. The name has its namespace: `ns%orders`."""

    kind: Kind
    name: str

    @property
    def text(self) -> str:
        """RocketMQ's key of it: Topic:orders."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Need:
    """What a call needs: one of the actions is enough, on this resource.

    No entry gives a need without actions: it is for super users.
    """

    resource: Resource
    actions: frozenset[Action]


# What no entry gives: nobody has it but super users.
FOR_SUPERS = Need(Resource(Kind.CLUSTER, ""), frozenset())


def topic(name: str) -> Resource:
    """The resource that a topic counts as: itself, the group of a retry or dead-letter topic."""
    if lightqueues.is_light(name):
        name = lightqueues.parent_of(name)
    if name.startswith(_GROUP_TOPICS):
        return group(name)
    return Resource(Kind.TOPIC, name)


def group(name: str) -> Resource:
    """A consumer group, named by itself or by its retry or dead-letter topic."""
    for prefix in _GROUP_TOPICS:
        if name.startswith(prefix):
            return Resource(Kind.GROUP, name.removeprefix(prefix))
    return Resource(Kind.GROUP, name)


def cluster(name: str) -> Resource:
    """A cluster, for what is neither a topic's nor a group's."""
    return Resource(Kind.CLUSTER, name)


def counts_as(kind: Kind, name: str) -> Resource:
    """The resource that one of this kind and name counts as, mostly itself."""
    if kind is Kind.TOPIC:
        return topic(name)
    return group(name) if kind is Kind.GROUP else Resource(kind, name)
