"""Faults that strike between two given steps of a service: at the n-th record of some kind.

The process stops right before or right after that record is appended, in the middle of what it was
doing. What is in its log already may still be copied, for a while; then it is killed. Or the store
refuses that one record, as it does while its disk is full.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from duolog._message import RETRY_PREFIX

from duolog_server.node.deferred.delayservice import DONE_TOPIC, TIMER_TOPIC
from duolog_server.node.deferred.transactionservice import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC
from duolog_server.node.service.publishservice import STAGED_TOPIC
from duolog_server.store.clocks import WallMs
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.status import PutMessageStatus
from sim.faults import NODES, Fault
from sim.litehistory import PARENT
from sim.sdkhistory import PUBLISHED, WRITTEN
from sim.servicehistory import COMMITTED, DELAYED

STEP = "at_step"
BEFORE, AFTER, REFUSED = "before", "after", "refused"
HOLD_MS = (0.0, 4.0, 25.0, 80.0)  # for which replicas go on copying from a stopped process
DOWN_MS = (5.0, 60.0, 700.0, 2000.0)
KINDS = (
    "offsets",
    "offsets",
    "delays",
    "timers",
    DONE_TOPIC,
    TIMER_TOPIC,
    SCHEDULE_TOPIC,
    DELAYED,
    HALF_TOPIC,
    OP_TOPIC,
    COMMITTED,
    DISCARD_TOPIC,
    "retry",
    "dead letter",
)
LITE_KINDS = ("forget_light_queues", "forget_light_queues", PARENT, PARENT)
ACCESS_KINDS = ("user", "user", "delete_user", "rights", "quota", "delete_quota")
SDK_KINDS = ("offsets", "publish", "published", "published", STAGED_TOPIC, PUBLISHED, WRITTEN)


class Stopped(BaseException):
    """The process does nothing any more; no code of its own may catch this."""


def plan(chance: random.Random, duration: float, kinds: tuple[str, ...] = KINDS) -> list[Fault]:
    """A few of them."""
    return [
        Fault(
            round(chance.uniform(500, duration), 3),
            STEP,
            NODES[0],
            f"{chance.choice((BEFORE, AFTER, AFTER, REFUSED))} {chance.choice(kinds)}",
            chance.choice(DOWN_MS),
            round(chance.random(), 3),
        )
        for _ in range(chance.randint(1, 5))
    ]


def kind_of(batch: PutBatch) -> str:
    """What a batch is: an operation on the tables, or a topic's."""
    if batch.topic == SYSTEM_TOPIC:
        body = batch.columns.bodies[: int(batch.columns.body_offsets[1])].tobytes()
        return str(json.loads(body)["op"])
    if batch.topic.startswith(RETRY_PREFIX):
        return "retry"
    return "dead letter" if batch.topic.startswith("%DLQ%") else batch.topic


@dataclass(slots=True)
class Trap:
    """A fault that waits for its record."""

    fault: Fault
    left: int

    @property
    def side(self) -> str:
        """Before, after, or refused."""
        return self.fault.other.partition(" ")[0]

    @property
    def kind(self) -> str:
        """Of the record."""
        return self.fault.other.partition(" ")[2]

    @property
    def hold_ms(self) -> float:
        """For how long others may copy what it has."""
        return HOLD_MS[int(self.fault.level * 997) % len(HOLD_MS)]


class Traps:
    """Those of one run. The first process that comes to such a step is struck."""

    def __init__(self) -> None:
        self._set: list[Trap] = []

    def set(self, fault: Fault) -> None:
        """From now on."""
        self._set.append(Trap(fault, 1 + int(fault.level * 3)))

    def clear(self) -> None:
        """No more of them."""
        self._set.clear()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._set)

    def sprung(self, kind: str) -> Trap | None:
        """A record of some kind is appended: what strikes there."""
        for trap in [trap for trap in self._set if trap.kind == kind]:
            trap.left -= 1
            if trap.left <= 0:
                self._set.remove(trap)
                return trap
        return None


class TrappedStore(MessageStore):
    """A store whose puts may be struck."""

    traps: Traps
    stopped = False
    stop: Callable[[Trap], None]

    def put(self, batch: PutBatch, wall_ms: WallMs) -> PutResult:
        """As it is, but for what strikes here."""
        if self.stopped:
            raise Stopped
        trap = self.traps.sprung(kind_of(batch)) if self.traps else None
        if trap is None:
            return super().put(batch, wall_ms)
        if trap.side == REFUSED:
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "no room")
        if trap.side == AFTER:
            super().put(batch, wall_ms)
        self.stopped = True
        self.stop(trap)
        raise Stopped
