"""Planted bugs of the services: POP, retries, dead letters, delays, transactions, their tables."""

import json
import random
from dataclasses import replace
from functools import partial
from typing import Any

from duolog_server.node.core.admission import Admission
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.deferred import redirect
from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.halfmessages import Decision, HalfMessages
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.node.deferred.transactionservice import TransactionService
from duolog_server.node.engine.log import Log
from duolog_server.node.pop import retrytopics
from duolog_server.node.pop.popqueue import OffsetRanges, PopQueue
from duolog_server.node.pop.popservice import PopService
from duolog_server.node.pop.retrytopics import Again, RetryTopics
from duolog_server.node.replication.roles import Replication
from duolog_server.store.clocks import ForwardSteps, MonoMs
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadata import Metadata
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import BrokerRole
from sim.faults import NODES, POISON_ON, SDK_ON, SERVICES_ON, Fault, plan, sdk
from sim.planted import Bugs, Patch, left_out, left_out_later
from sim.servicehistory import RETRIES_MAX

# -- POP -------------------------------------------------------------------------------------------


def _given_twice() -> list[Patch]:
    original = PopQueue.take

    def take(self: Any, offset: int, lease: Any) -> None:
        original(self, offset, lease)
        if not self.orderly:
            self.next = offset

    return [(PopQueue, "take", take)]


def _any_serial() -> list[Patch]:
    return [(PopQueue, "lease_of", lambda self, offset, serial: self.leases.get(offset))]


def _never_blocked() -> list[Patch]:
    return [(PopQueue, "blocked", property(lambda self: False))]


def _given_is_done() -> list[Patch]:
    """Progress is what was given, not what was acknowledged."""

    def advance(self: Any) -> None:
        self.committed = max(self.next, self.done.end_of(self.committed))
        self.done.drop_below(self.committed)

    return [(PopQueue, "_advance", advance)]


def _next_done_too() -> list[Patch]:
    """What follows an acknowledged message counts as done as well."""
    original = PopQueue.finish

    def finish(self: Any, offset: int) -> None:
        original(self, offset)
        original(self, offset + 1)

    return [(PopQueue, "finish", finish)]


def _leases_end_early() -> list[Patch]:
    original = PopService._end_leases

    def end(self: Any, now: int, tasks: Any) -> None:
        original(self, MonoMs(now + 150), tasks)

    return [(PopService, "_end_leases", end)]


def _begins_anew() -> list[Patch]:
    """A new master reads the group from the beginning."""
    return [(Metadata, "committed", lambda self, group, topic, queue_id: 0)]


def _progress_from_the_end() -> list[Patch]:
    """A new master goes on behind what was given before it."""
    original = PopService._state

    def state(self: Any, key: Any) -> Any:
        known = key in self._queues
        found = original(self, key)
        if not known and not self._core.metadata.tables.committed(key[2], *key[:2]):
            return found
        if not known:
            found.start_at(self._core.store.queue_range(*key[:2])[1])
        return found

    return [(PopService, "_state", state)]


def _acknowledged_in_vain() -> list[Patch]:
    """An acknowledgement is answered and changes nothing."""
    return [(PopService, "ack", lambda self, group, handle: self._lease(group, handle) is not None)]


def _orderly_ignored() -> list[Patch]:
    original = PopService._state

    def state(self: Any, key: Any) -> Any:
        found = original(self, key)
        found.orderly = False
        return found

    return [(PopService, "_state", state)]


def _attempts_uncounted() -> list[Patch]:
    original = RetryTopics._put

    async def put(self: Any, again: Any, record: Any, failed: int, *more: Any) -> None:
        await original(self, again, record, 0, *more)

    return [(RetryTopics, "_put", put)]


def _attempts(most: int) -> list[Patch]:
    """A group's messages have so many attempts, whatever the group's own number is."""

    async def store_again(self: Any, group: str, topic: str, record: Any, *, counts: bool) -> None:
        failed = record.reconsume_times + 1
        if failed >= most:
            await self._dead(group, record, failed)
            return
        origin = {"RETRY_TOPIC": record.topic}
        await self._put(Again(retry_topic(group, topic)), record, failed, origin)

    return [(RetryTopics, "store_again", store_again)]


def _origin_untold() -> list[Patch]:
    original = RetryTopics._put

    async def put(self: Any, again: Any, record: Any, failed: int, *_: Any) -> None:
        await original(self, again, record, failed, {})

    return [(RetryTopics, "_put", put)]


def _origin_is_the_last() -> list[Patch]:
    """A copy names the copy that it was made of."""

    def stored(record: Any, topic: str, properties: Any, *how: Any) -> Any:
        named = {**properties, "ORIGIN_MESSAGE_ID": record.message_id}
        return redirect.stored_again(record, topic, named, *how)

    return [(retrytopics, "stored_again", stored)]


def _done_before_it_is_stored() -> list[Patch]:
    """Progress passes a message whose copy may yet be refused."""
    original = PopService._move

    async def move(self: Any, key: Any, state: Any, offsets: list[int]) -> None:
        for offset in offsets:
            self._finish(key, state, offset)
        await original(self, key, state, offsets)

    return [(PopService, "_move", move)]


# -- delays ----------------------------------------------------------------------------------------


def _levels_early() -> list[Patch]:
    original = ForwardSteps.corrected
    return [
        (ForwardSteps, "corrected", lambda self, due, delay_ms: original(self, due, delay_ms) - 500)
    ]


def _jumps_shorten() -> list[Patch]:
    return [(ForwardSteps, "corrected", lambda self, due, delay_ms: due)]


def _timers_early() -> list[Patch]:
    original = PendingTimers.due
    return [(PendingTimers, "due", lambda self, now, most: original(self, now + 300, most))]


def _one_level_less() -> list[Patch]:
    original = DelayService.at_level
    return [
        (
            DelayService,
            "at_level",
            lambda self, batch, level: original(self, batch, max(1, level - 1)),
        )
    ]


def _stored_twice() -> list[Patch]:
    original = DelayService._store
    return [(DelayService, "_store", lambda self, b: original(self, b) and original(self, b))]


def _recall_forgotten() -> list[Patch]:
    """A recall is told done, and the message is delivered all the same."""
    original = PendingTimers.done

    def done(self: Any, offsets: Any) -> None:
        if len(offsets) != 1:
            original(self, offsets)

    return [(PendingTimers, "done", done)]


def _first_of_due() -> list[Patch]:
    original = PendingTimers.due
    return [(PendingTimers, "due", lambda self, now, most: original(self, now, most)[:1])]


def _delivers_unread() -> list[Patch]:
    """A new master delivers before it knows what the last one delivered."""
    return [(Replication, "may_be_behind", lambda self: self.master is None)]


# -- transactions ----------------------------------------------------------------------------------


def _halves_visible() -> list[Patch]:
    return [(TransactionService, "half", lambda self, batch, group, seconds=0: batch)]


def _rollback_commits() -> list[Patch]:
    original = TransactionService._decide
    return [
        (
            TransactionService,
            "_decide",
            lambda self, halves, at, commit: original(self, halves, at, True),
        )
    ]


def _nobody_is_asked() -> list[Patch]:
    return [(HalfMessages, "due", lambda self, now, most: [])]


def _given_up_unstored() -> list[Patch]:
    def discard(self: Any, halves: Any, half: Any, record: Any) -> None:
        noted = self._note_decided(halves, [half.offset])
        self._decisions.add(half.origin, Decision(False, noted.end_offset, half.group))
        self._settle(noted)

    return [(TransactionService, "_discard", discard)]


def _never_given_up() -> list[Patch]:
    def discard(self: Any, halves: Any, half: Any, record: Any) -> None:
        self._put_back(halves, half, record, self._options.check_interval_ms)

    return [(TransactionService, "_discard", discard)]


def _given_up_again() -> list[Patch]:
    """Given up and not noted."""

    def discard(self: Any, halves: Any, half: Any, record: Any) -> None:
        original(self, halves, half, record)
        halves.add(half)

    original = TransactionService._discard
    return [(TransactionService, "_discard", discard)]


# -- the layers below ------------------------------------------------------------------------------


def _answered_at_once() -> list[Patch]:
    original = Log.settle

    def settle(self: Any, end_offset: PhyOffset, no_wait: bool = False) -> None:
        original(self, end_offset, True)

    return [(Log, "settle", settle)]


def _applied_at_once() -> list[Patch]:
    """A change counts as soon as it is stored."""
    original = MetadataLog._put

    def put(self: Any, change: Any) -> Any:
        found = original(self, change)
        self.tables.apply(json.dumps(change).encode())
        return found

    return [(MetadataLog, "_put", put)]


def _topics_guessed() -> list[Patch]:
    """Queues tell the topics at once, whatever the log has of them."""
    original = MetadataLog._adopt

    def adopt(self: Any) -> None:
        if self._missing_after is not None:
            self._missing_after = 0
        original(self)

    return [(MetadataLog, "_adopt", adopt)]


def _snapshot_ahead() -> list[Patch]:
    """Tables are handed over as if the next change were in them."""
    original = Metadata.snapshot
    return [(Metadata, "snapshot", lambda self: replace(original(self), applied=self.applied + 1))]


def _slaves_store() -> list[Patch]:
    """A node's services go on while it is a slave, and its store takes what they have."""
    original = MessageStore._not_writable

    def not_writable(self: Any) -> Any:
        role, self.role = self.role, BrokerRole.SYNC_MASTER
        try:
            return original(self)
        finally:
            self.role = role

    return [
        (Admission, "may_store", lambda self: True),
        (MessageStore, "_not_writable", not_writable),
    ]


def _ranges_forgotten() -> list[Patch]:
    """Only a run from the front counts as done."""
    return [(OffsetRanges, "add", lambda self, first, end: None)]


def with_services(seed: int) -> list[Fault]:
    """A run's usual faults, and nodes that have services."""
    chance = random.Random(seed)
    found = [*plan(chance, 3600.0, True), Fault(0.0, SERVICES_ON, NODES[0])]
    return sorted(found, key=lambda fault: fault.at)


def with_poison(seed: int) -> list[Fault]:
    """A run's usual faults, services, and messages that nobody can process."""
    return [*with_services(seed), Fault(0.0, POISON_ON, NODES[0])]


def taking_turns(seed: int, *more: str) -> list[Fault]:
    """Services, and masters that take turns while all processes live. more: what else is on."""
    chance = random.Random(seed)
    found = [Fault(0.0, kind, NODES[0]) for kind in (SERVICES_ON, *more)]
    at = 900.0
    while at < 3700:
        found.append(Fault(at, "switch_master", NODES[0], level=chance.random()))
        at += chance.uniform(150, 500)
    return found


def with_sdk(seed: int) -> list[Fault]:
    """A run's usual faults, and programs of the SDK that use the services, alone."""
    members = [fault for fault in sdk(random.Random(seed), 3600.0) if fault.kind != SDK_ON]
    found = [*with_services(seed), Fault(0.0, SDK_ON, NODES[0]), *members]
    return sorted(found, key=lambda fault: fault.at)


def _failing_over(seed: int) -> list[Fault]:
    """Services, and one master after the other that is killed, cut off or replaced."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0])]
    at = 600.0
    while at < 3700:
        kind = chance.choice(("kill", "kill", "cut_link", "switch_master", "etcd_revoke"))
        node, other = chance.sample(NODES, 2)
        found.append(Fault(at, kind, node, other, chance.uniform(100, 500), chance.random()))
        at += chance.uniform(100, 400)
    return found


def _jumping(seed: int) -> list[Fault]:
    """Services, and clocks that jump forward on every node."""
    chance = random.Random(seed)
    jumps = [
        Fault(chance.uniform(800, 3700), "clock_step", node, level=chance.choice((0.6, 0.9)))
        for node in NODES
        for _ in range(2)
    ]
    return [Fault(0.0, SERVICES_ON, NODES[0]), *sorted(jumps, key=lambda fault: fault.at)]


_bug = Bugs(with_services)


SERVICES = [
    _bug("pop-twice", "a message is given to two consumers", _given_twice),
    _bug("pop-any-serial", "an older handle is taken", _any_serial),
    _bug("pop-never-blocked", "an orderly queue gives on", _never_blocked),
    _bug("pop-given-is-done", "progress is what was given", _given_is_done, _failing_over),
    _bug("pop-next-done", "an acknowledgement counts for the next message too", _next_done_too),
    _bug("pop-ack-in-vain", "an acknowledgement changes nothing", _acknowledged_in_vain),
    _bug("pop-orderly-ignored", "an orderly group is given what comes", _orderly_ignored),
    _bug("pop-leases-stay", "no lease ends", left_out(PopService, "_end_leases")),
    _bug("pop-leases-early", "leases end early", _leases_end_early),
    _bug("pop-not-rewound", "an orderly queue gives nothing again", left_out(PopQueue, "_rewind")),
    _bug("pop-unsaved", "no progress is recorded", left_out_later(PopService, "_save")),
    _bug("pop-begins-anew", "a new master reads from the beginning", _begins_anew),
    _bug(
        "pop-from-the-end",
        "a new master skips what was given",
        _progress_from_the_end,
        _failing_over,
    ),
    _bug(
        "pop-untold",
        "an old mastership's leases and progress are believed",
        left_out(PopService, "role_changed"),
        taking_turns,
    ),
    _bug("pop-ranges-forgotten", "ranges that are done are forgotten", _ranges_forgotten),
    _bug("retry-lost", "no message is stored again", left_out_later(RetryTopics, "store_again")),
    _bug("retry-uncounted", "attempts are not counted", _attempts_uncounted),
    _bug("retry-first-done", "done before the copy is stored", _done_before_it_is_stored),
    _bug(
        "retry-for-ever", "a message has no last attempt", partial(_attempts, 1 << 20), with_poison
    ),
    _bug("retry-once-less", "an attempt is left out", partial(_attempts, RETRIES_MAX), with_poison),
    _bug("retry-origin-untold", "a copy does not say where it is from", _origin_untold),
    _bug("retry-origin-last", "a copy names the copy before it", _origin_is_the_last, with_poison),
    _bug("dead-letters-lost", "no dead letter is stored", left_out_later(RetryTopics, "_dead")),
    _bug("levels-early", "a level is not waited for", _levels_early),
    _bug("levels-shrink", "a jump of the clock shortens a level", _jumps_shorten, _jumping),
    _bug("levels-mixed", "a message waits in another level", _one_level_less),
    _bug("timers-early", "a timer is early", _timers_early),
    _bug("timers-first-only", "of those that are due one comes", _first_of_due),
    _bug(
        "timers-stale",
        "an old mastership's timers are believed",
        left_out(DelayService, "role_changed"),
        _failing_over,
    ),
    _bug("delays-doubled", "a delivery is stored twice", _stored_twice),
    _bug("recall-unmade", "a recall is answered, not made", left_out_later(DelayService, "recall")),
    _bug("recall-forgotten", "a recalled message comes", _recall_forgotten),
    _bug(
        "delivers-unread",
        "a new master delivers before it has read",
        _delivers_unread,
        _failing_over,
    ),
    _bug("halves-visible", "a half message is seen", _halves_visible),
    _bug("rollback-commits", "a rollback commits", _rollback_commits),
    _bug("commit-forgets", "a commit stores nothing", left_out(TransactionService, "_commit")),
    _bug("nobody-asked", "no producer is asked", _nobody_is_asked),
    _bug("never-given-up", "questions have no end", _never_given_up),
    _bug("given-up-unstored", "what is given up is stored nowhere", _given_up_unstored),
    _bug("given-up-again", "what is given up is given up again", _given_up_again),
    _bug("committed-twice", "a decision is not remembered", left_out(HalfMessages, "resolved")),
    _bug(
        "contrary-is-fine",
        "a contrary decision is told done",
        left_out_later(TransactionService, "_repeat"),
        _failing_over,
    ),
    _bug(
        "halves-stale",
        "an old mastership's half messages are believed",
        left_out(TransactionService, "role_changed"),
        _failing_over,
    ),
    _bug("slaves-store", "a slave's services go on", _slaves_store, taking_turns),
    _bug("tables-ahead", "tables have what is not confirmed", _applied_at_once),
    _bug("topics-guessed", "topics are guessed from hidden queues", _topics_guessed),
    _bug("tables-skip", "a slave's tables lack a change", _snapshot_ahead),
    _bug("answered-at-once", "no put waits for replicas", _answered_at_once),
]
