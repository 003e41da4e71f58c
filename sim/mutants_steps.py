"""Planted bugs of the services that show only if a fault falls between two given steps."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.halfmessages import Decisions
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.node.deferred.transactionservice import (
    DISCARD_TOPIC,
    OP_TOPIC,
    TransactionService,
)
from duolog_server.node.engine.log import Log
from duolog_server.node.service.publishservice import STAGED_TOPIC
from duolog_server.store.status import PutMessageStatus
from sim.faults import NODES, SDK_ON, SERVICES_ON, Fault
from sim.planted import Mutant, Patch, left_out, left_out_later
from sim.servicehistory import COMMITTED, DELAYED
from sim.stepfaults import DOWN_MS, STEP

DELIVERED = f"after {DELAYED}"
UNDELIVERED = f"refused {DELAYED}"
STORED = f"after {COMMITTED}"
UNNOTED = f"refused {OP_TOPIC}"
GIVEN_UP = f"after {DISCARD_TOPIC}"


def at_steps(*steps: str, sdk: bool = False) -> Callable[[int], list[Fault]]:
    """Weather: services, and one fault after the other at some of these steps."""

    def plan(seed: int) -> list[Fault]:
        chance = random.Random(seed)
        found = [Fault(0.0, SERVICES_ON, NODES[0])]
        if sdk:
            found.append(Fault(0.0, SDK_ON, NODES[0]))
        at = 600.0
        while at < 3500:
            step, down = chance.choice(steps), chance.choice(DOWN_MS)
            found.append(Fault(at, STEP, NODES[0], step, down, chance.random()))
            at += chance.uniform(150, 600)
        return found

    return plan


def deposed_in_between(seed: int, sdk: bool = True) -> list[Fault]:
    """Weather: programs, and masters that lose their replicas and then their lease.

    sdk: programs of the SDK, else those that call the services themselves.
    """
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0])]
    if sdk:
        found.append(Fault(0.0, SDK_ON, NODES[0]))
    at = 700.0
    while at < 3600:
        for node, other in (("a", "b"), ("a", "c"), ("b", "c")):
            found.append(Fault(at, "cut_link", node, other, chance.uniform(100, 300)))
        found.append(Fault(at + chance.uniform(20, 100), "etcd_revoke", NODES[0]))
        at += chance.uniform(400, 900)
    return sorted(found, key=lambda fault: fault.at)


def _told_safe() -> list[Patch]:
    """What may be lost is told safe."""
    original = Log.put_and_wait

    async def put_and_wait(self: Any, batch: Any) -> Any:
        result = await original(self, batch)
        if result.queue_offset < 0:
            return result
        return replace(result, status=PutMessageStatus.PUT_OK)

    return [(Log, "put_and_wait", put_and_wait)]


def _staged_unsafe() -> list[Patch]:
    """What is staged is told to be, and no replica may have it."""
    original = Log.put_and_wait

    async def put_and_wait(self: Any, batch: Any) -> Any:
        if batch.topic == STAGED_TOPIC and self._refused() is None:
            return self.write_now(batch)
        return await original(self, batch)

    return [(Log, "put_and_wait", put_and_wait)]


def _decisions_stale() -> list[Patch]:
    """A master that leads again believes what it decided in its last mastership."""
    original = TransactionService._forget

    def forget(self: Any) -> None:
        decisions = self._decisions
        self._decisions = Decisions()
        original(self)
        self._decisions = decisions

    return [(TransactionService, "_forget", forget)]


def _refused_is_delivered() -> list[Patch]:
    original = DelayService._store

    def store(self: Any, batch: Any) -> bool:
        original(self, batch)
        return True

    return [(DelayService, "_store", store)]


def _ended_unseen() -> list[Patch]:
    return [(TransactionService, "_ended_before", lambda self, origin, offset: None)]


def _bug(
    name: str, story: str, patches: Callable[[], list[Patch]], weather: Callable[[int], list[Fault]]
) -> Mutant:
    return Mutant(name, story, patches, True, weather)


STEPS = [
    _bug("retry-unsafe", "what may be lost is told safe", _told_safe, deposed_in_between),
    _bug(
        "staged-unsafe",
        "what is staged is told safe before replicas have it",
        _staged_unsafe,
        deposed_in_between,
    ),
    _bug(
        "decisions-unsafe",
        "a decision is told before replicas have it",
        left_out_later(TransactionService, "_safe"),
        partial(deposed_in_between, sdk=False),
    ),
    _bug(
        "decisions-stale",
        "a decision of an earlier mastership is told made",
        _decisions_stale,
        partial(deposed_in_between, sdk=False),
    ),
    _bug(
        "timers-not-put-back",
        "what was refused is forgotten",
        left_out(PendingTimers, "put_back"),
        at_steps(UNDELIVERED),
    ),
    _bug(
        "delays-refused",
        "a refused put is a delivery",
        _refused_is_delivered,
        at_steps(UNDELIVERED),
    ),
    _bug(
        "delays-deaf",
        "the last master's deliveries are not looked for",
        lambda: [(DelayService, "_left_out", lambda self, times, result: None)],
        at_steps(DELIVERED),
    ),
    _bug("committed-again", "an end without its note is not seen", _ended_unseen, at_steps(STORED)),
    _bug("given-up-unseen", "nor that it was given up", _ended_unseen, at_steps(GIVEN_UP)),
    _bug(
        "notes-not-made-up-for",
        "what was refused its note is done again",
        left_out(TransactionService, "_note_stored"),
        at_steps(UNNOTED),
    ),
]
