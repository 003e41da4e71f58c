"""Services of a node check their invariants: validate() names a state that no event may leave."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from duolog_server.ha.waiters import OffsetWaiters
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.groups import Heartbeat
from duolog_server.node.core.keyedlocks import _Turn
from duolog_server.node.deferred.halfmessages import Decision, Half, HalfMessages
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.node.pop.popqueue import Lease, PopQueue
from duolog_server.node.pop.subscriber import Line
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.metadata import TopicConfig
from tests.node.replicas import broker_of

Damage = Callable[[Broker, pytest.MonkeyPatch], None]
KEY = ("T", 0, "G")


def popping(broker: Broker, patch: pytest.MonkeyPatch) -> PopQueue:
    """One queue, of which one message is out."""
    queue = PopQueue(0)
    queue.take(0, Lease(1, MonoMs(10), "c"))
    patch.setattr(broker.pop, "_queues", {KEY: queue})
    patch.setattr(broker.pop, "_saved", {KEY: (-1, [])})
    patch.setattr(broker.pop, "_dirty", {})
    assert broker.validate() == ""
    return queue


def forgotten_lease(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    popping(broker, patch)._deadlines.clear()


def unrecorded(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    queue = popping(broker, patch)
    queue.finish(0)
    broker.pop._dirty[KEY] = None
    assert broker.validate() == ""
    broker.pop._dirty.clear()


def unknown_record(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    popping(broker, patch)
    broker.pop._saved.clear()


def dirty_and_gone(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.pop, "_dirty", {KEY: None})


def line_of(broker: Broker, patch: pytest.MonkeyPatch, polls: int, calls: int) -> Line:
    line = Line()
    line.polls = polls
    patch.setattr(broker.pop, "_lines", {("G", "T"): line})
    patch.setattr(broker.waiting_calls, "count", calls)
    return line


def nobodys_poll(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    line = line_of(broker, patch, 1, 1)
    line.waiting.append(asyncio.Event())
    assert broker.validate() == ""
    line.waiting.append(asyncio.Event())


def woken_and_waiting(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    woken = asyncio.Event()
    woken.set()
    line_of(broker, patch, 1, 1).waiting.append(woken)


def watching_for_nobody(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    line_of(broker, patch, 0, 0).watched.add(("T", 0))


def uncounted_poll(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    line_of(broker, patch, 1, 0)


def too_many_calls(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.waiting_calls, "count", broker.limits.polls_max + 1)


def miscounted_watcher(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.log.board, "_count", 7)


def watched_by_nobody(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.log.board, "_watchers", {("T", 0): {}})
    patch.setattr(broker.log.board, "_count", 0)


def subscribed(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    for name in ("_subscribers", "_of_queue", "_of_parent"):
        patch.setattr(broker.lite, name, {})
    patch.setattr(broker.lite, "subscriptions", 0)
    one = broker.lite.subscriber("c", "G", "P")
    broker.lite.subscribe(one, ["%LMQ%$P$a"], takes_over=False)
    assert broker.validate() == ""


def untold_subscriber(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite._of_queue.clear()


def miscounted_subscriptions(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite.subscriptions = 2


def told_and_gone(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite._subscribers.clear()


def looks_unasked(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite.subscriber("c", "G", "P").ready["b"] = None


def not_told_of_all(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite.subscriber("c", "G", "P").everything = True


def misnamed_client(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    subscribed(broker, patch)
    broker.lite.subscriber("c", "G", "P").client = "d"


def timers(broker: Broker, patch: pytest.MonkeyPatch) -> PendingTimers:
    made = PendingTimers(0)
    patch.setattr(broker.delays, "_timers", made)
    patch.setattr(broker.delays, "_noted", (0, 0))
    patch.setattr(broker.delays, "_done_records", deque())
    assert broker.validate() == ""
    return made


def miscounted_timers(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    timers(broker, patch).count = 1


def noted_too_much(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    timers(broker, patch)
    patch.setattr(broker.delays, "_noted", (3, 0))


def delay_notes_out_of_order(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    timers(broker, patch)
    broker.delays._done_records.extend([(4, 0), (4, 1)])
    assert broker.validate() == ""
    broker.delays._done_records.append((3, 0))


def delay_notes_of_nobody(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    timers(broker, patch)
    broker.delays._done_records.append((4, 0))
    patch.setattr(broker.delays, "_timers", None)


def halves(broker: Broker, patch: pytest.MonkeyPatch) -> HalfMessages:
    made = HalfMessages(0)
    made.read(Half(0, 0, "g", 0, MonoMs(0)))
    patch.setattr(broker.transactions, "_halves", made)
    patch.setattr(broker.transactions, "_unnoted", {})
    patch.setattr(broker.transactions, "_ops", deque())
    broker.transactions._decisions.clear()
    assert broker.validate() == ""
    return made


def misplaced_half(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    halves(broker, patch)._origins.clear()


def noted_of_nothing(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    halves(broker, patch)
    broker.transactions._unnoted.update({0: True, 1: True})


def decided_and_waiting(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    halves(broker, patch)
    broker.transactions._decisions.add(0, Decision(True, 1, "g"))


def ops_out_of_order(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    halves(broker, patch)
    broker.transactions._ops.extend([(4, 0), (3, 0)])


def ops_of_nothing(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    halves(broker, patch)
    broker.transactions._ops.append((4, 0))
    patch.setattr(broker.transactions, "_halves", None)


def nobodys_turn(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.publishes._turns, "_turns", {"s": _Turn()})


def waits_in_vain(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    waiters: OffsetWaiters[asyncio.Future[object]] = OffsetWaiters()
    patch.setattr(broker.log.group_commit, "_waiters", waiters)
    waiters.add(broker.store.flushed_offset + 1, 0.0, asyncio.get_running_loop().create_future())
    assert broker.validate() == ""
    waiters.add(0, 0.0, asyncio.get_running_loop().create_future())


def applied_and_not_stored(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.metadata.tables, "applied", 9)


def waits_for_what_is_applied(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    future = asyncio.get_running_loop().create_future()
    patch.setattr(broker.metadata, "_waiting", {broker.metadata.tables.applied - 1: future})


def creates_what_is_not_stored(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    creating = {"U": (broker.metadata.tables.applied, TopicConfig("U"))}
    patch.setattr(broker.metadata, "_creating", creating)


def done_before_committed(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.metadata.tables, "offsets", {("T", "G"): {0: 5}})
    patch.setattr(broker.metadata.tables, "done", {("T", "G"): {0: [[6, 7]]}})
    assert broker.validate() == ""
    patch.setattr(broker.metadata.tables, "done", {("T", "G"): {0: [[5, 7]]}})


def stored_and_named(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.metadata.tables, "sinks", {"s": {"staged": [1, 2], "done": 2}})


def two_readers(broker: Broker, patch: pytest.MonkeyPatch) -> None:
    for member in "ab":
        broker.groups.heartbeat(
            "G", member, Heartbeat(("T",)), {"T": range(1)}, broker.times.mono_ms()
        )
    members = broker.groups._groups["G"].members
    members["a"].owned, members["b"].owned = {("T", 0)}, {("T", 0)}
    patch.setattr(broker.groups, "_groups", {"G": broker.groups._groups.pop("G")})


DAMAGES: list[tuple[Damage, str]] = [
    (forgotten_lease, "PopService: G in T/0: no timer for 0, whose lease ends at 10"),
    (unrecorded, "PopService: G in T/0: done up to 1 and [], recorded are (-1, []), and"),
    (unknown_record, "PopService: queues with a record or a state only: "),
    (dirty_and_gone, "PopService: to be recorded without a state: "),
    (nobodys_poll, "PopService: polls of G for T: 2 wait of 1 polls"),
    (woken_and_waiting, "PopService: polls of G for T: a woken consumer is still in"),
    (watching_for_nobody, "PopService: polls of G for T: watches [('T', 0)] for no poll"),
    (uncounted_poll, "PopService: 1 polls wait, counted as 0"),
    (too_many_calls, "PopService: 10001 calls wait, not 0..10000"),
    (untold_subscriber, "LiteService: c of G is not assigned all of ['%LMQ%$P$a']"),
    (miscounted_subscriptions, "LiteService: 1 subscriptions, counted as 2"),
    (told_and_gone, "LiteService: a client that left is assigned queues"),
    (looks_unasked, "LiteService: c of G looks into {'b'} unasked"),
    (not_told_of_all, "LiteService: c of G subscribes to all"),
    (misnamed_client, "LiteService: c of G is known as d of G"),
    (miscounted_timers, "DelayService: timers: 0 wait, counted as 1"),
    (noted_too_much, "DelayService: timer 0 may wait, noted is 3"),
    (delay_notes_out_of_order, "DelayService: the note at 3 is known behind the one at 4"),
    (delay_notes_of_nobody, "DelayService: notes without timers"),
    (misplaced_half, "TransactionService: 1 wait, 0 places are known"),
    (noted_of_nothing, "TransactionService: the half message at 1 is to be noted, and does"),
    (decided_and_waiting, "TransactionService: half messages [0] wait, and are decided"),
    (ops_out_of_order, "TransactionService: the note at 3 is known behind the one at 4"),
    (ops_of_nothing, "TransactionService: decisions without half messages"),
    (nobodys_turn, "PublishService: nobody wants to store for ['s'], and it is their turn"),
    (applied_and_not_stored, "MetadataLog: 9 changes are applied, "),
    (waits_for_what_is_applied, "MetadataLog: change -1 is waited for, 0 of 0 are applied"),
    (creates_what_is_not_stored, "MetadataLog: change 0 is waited for, 0 of 0 are applied"),
    (done_before_committed, "MetadataLog: G in T/0 has done [5, 7), and all before 5"),
    (stored_and_named, "MetadataLog: sink s has stored 2 of 2 requests"),
    (waits_in_vain, "GroupCommitService: a put up to 0 waits, "),
    (miscounted_watcher, "ArrivalBoard: 0 watchers, counted as 7"),
    (watched_by_nobody, "ArrivalBoard: the board has a queue without a watcher"),
    (two_readers, "GroupCoordinator: group G: ('T', 0) is held by a and b"),
]


async def test_validate_names_the_inconsistent_service(node: Node) -> None:
    broker = broker_of(node)
    for damage, wrong in DAMAGES:
        assert broker.validate() == ""
        with pytest.MonkeyPatch.context() as patch:
            damage(broker, patch)
            assert broker.validate().startswith(wrong)
        assert broker.validate() == ""
