"""Planted bugs of topics and groups that are made again, and of limits that are lowered."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from duolog_server.node.core import births, metadatalog
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.deferred import delayservice, redirect, transactionservice
from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.transactionservice import TransactionService
from duolog_server.node.pop import retrytopics
from duolog_server.node.pop.retrytopics import RetryTopics
from duolog_server.node.service import sends
from duolog_server.node.service.sends import Sends
from duolog_server.store.births import Births
from duolog_server.store.lightqueues import is_light
from duolog_server.store.metadata import Metadata
from sim.faults import LITE_ON, NODES, REMADE_ON, Fault, lowered
from sim.mutants_services import with_poison, with_services
from sim.mutants_steps import at_steps
from sim.planted import Bugs, Patch


def _unborn(kind: str) -> list[Patch]:
    """No births are recorded. kind: of topics or groups."""
    original = Births.note

    def note(self: Any, table: Any, name: str, change: Any) -> None:
        if table is not getattr(self, kind):
            original(self, table, name, change)

    return [(Births, "note", note)]


def _floors_of_the_deletion() -> list[Patch]:
    """What was stored before a deletion was confirmed is the next topic's."""
    original = Metadata._raise_floors

    def floors(self: Any, name: str, change: Any) -> None:
        if change["op"] != "topic":
            original(self, name, change)

    return [(Metadata, "_raise_floors", floors)]


def _lite_unborn() -> list[Patch]:
    """What a deleted topic's lite topics hold is the next topic's."""
    original = births.since

    def since(known: Births, topic: str, origin: str, group: str = "") -> int:
        return 0 if is_light(topic) else original(known, topic, origin, group)

    return [(births, "since", since)]


def _never(owner: Any, name: str) -> Callable[[], list[Patch]]:
    """Nothing is ever so."""
    return lambda: [(owner, name, lambda *_: False)]


def _limited(owner: Any, name: str) -> list[Patch]:
    """What makes a copy leaves it to the limits of clients."""
    original = getattr(owner, name)

    def copy(*how: Any, **more: Any) -> Any:
        return replace(original(*how, **more), accepted=False)

    return [(owner, name, copy)]


def _delays_limited() -> list[Patch]:
    """As `_limited`, of what waited."""
    original = redirect.restored

    def restored(*how: Any, **more: Any) -> Iterator[Any]:
        return (replace(batch, accepted=False) for batch in original(*how, **more))

    return [(delayservice, "restored", restored)]


def _copies_limited() -> list[Patch]:
    """As `_limited`, of what a client copies."""
    original = Sends._as_copy

    def as_copy(self: Any, *how: Any) -> Any:
        return replace(original(self, *how), accepted=False)

    return [(Sends, "_as_copy", as_copy)]


def _internal_topics_count() -> list[Patch]:
    return [(MetadataLog, "make_internal", lambda self, name, _=1: self.make_if_missing(name))]


def _dead_letters_stay() -> list[Patch]:
    """The deletion of a group finds no topic of its dead letters."""
    return [(metadatalog, "dead_letter_topic", lambda name: "")]


def with_remade(seed: int) -> list[Fault]:
    """A run's usual faults, services, and a topic and a group that are made again."""
    return [*with_services(seed), Fault(0.0, REMADE_ON, NODES[0])]


def _unforgotten(seed: int) -> list[Fault]:
    """Lite topics of a deleted topic are not forgotten at once."""
    return [
        Fault(0.0, REMADE_ON, NODES[0], LITE_ON),
        *at_steps("refused forget_light_queues")(seed),
    ]


def with_lower_limits(seed: int) -> list[Fault]:
    """A run's usual faults, services, messages that nobody can process, and limits lowered."""
    found = [*with_poison(seed), *lowered(random.Random(seed))]
    return sorted(found, key=lambda fault: fault.at)


_bug = Bugs(with_remade)
_limit = Bugs(with_lower_limits)

REMADE = [
    _bug("topics-unborn", "no births of topics are recorded", partial(_unborn, "topics")),
    _bug("groups-unborn", "no births of groups are recorded", partial(_unborn, "groups")),
    _bug("lite-unborn", "the next topic has old lite topics", _lite_unborn, _unforgotten),
    _bug("floors-once", "the next topic has the last messages", _floors_of_the_deletion),
    _bug("old-delays", "a delay outlives its topic", _never(DelayService, "_is_too_old")),
    _bug("old-commits", "an old half is committed", _never(TransactionService, "is_too_old")),
    _bug("old-checks", "an old half is stored again", _never(TransactionService, "_dropped")),
    _bug("old-retries", "an old message is stored again", _never(RetryTopics, "_is_too_old")),
    _bug("dead-letters-stay", "the next group has dead letters", _dead_letters_stay),
    _limit(
        "limited-retries", "retries are limited", partial(_limited, retrytopics, "stored_again")
    ),
    _limit("limited-delays", "delays are limited", _delays_limited),
    _limit(
        "limited-checks",
        "half messages stored again are limited",
        partial(_limited, transactionservice, "stored_again"),
    ),
    _limit("limited-copies", "copies of stored messages are limited", _copies_limited),
    _limit(
        "copies-unread",
        "anything is taken for a copy",
        lambda: [(sends, "is_copy", lambda *_: True)],
    ),
    _limit("limited-topics", "topics of nodes are limited", _internal_topics_count),
]
