"""What the simulator says of batches that pass, or do not, under a quota."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog.wire import duolog_pb2 as wire

from sim.accesslog import Said
from sim.node import Node
from sim.quotawatch import QuotaWatch
from sim.witness import Violation

PLACE = ("u", "10.0.0.1", "t")
# 10 messages a second, and 5 of them at once.
QUOTA = {"subject": "User:u", "messages_in": 10, "burst_ms": 500}


@dataclass
class Sends:
    """A node, at a time, whose answers are looked at."""

    now = 0
    said = Said(quotas={"User:u": QUOTA})

    def __post_init__(self) -> None:
        self.watch = QuotaWatch()
        self.node = cast(Node, SimpleNamespace(name="a", boot=1, mono=lambda: self.now))

    def passes(self, at: int, count: int) -> None:
        self.now = at
        reply = wire.AppendReply(status=wire.PUT_OK)
        self.watch.appended(self.node, self.said, PLACE, (0, count), reply)

    def waits(self, at: int, wait_ms: int) -> None:
        self.now = at
        reply = wire.AppendReply(status=wire.THROTTLED, retry_after_ms=wait_ms)
        self.watch.appended(self.node, self.said, PLACE, (0, 1), reply)


@pytest.fixture
def sends() -> Sends:
    return Sends()


@pytest.mark.parametrize(
    ("calls", "violation"),
    [
        ([(0, 4), (0, 7), (1000, 1), (1000, 20)], ""),  # a rate, a burst and a batch
        ([(0, 4), (1, 2), (2, 1)], "too much"),
        ([(0, 4), (1, "waits", 10)], "without reason"),
        ([(0, 6), (0, "waits", 90), (50, "waits", 40), (95, "waits", 10)], "told to wait"),
        ([(0, 5), (0, "waits", 1), (2, 9), (3, "waits", 800)], ""),  # others were served
        ([(0, 6), (0, "waits", 0)], "no wait"),
    ],
)
def test_what_may_pass_and_must_wait(
    sends: Sends, calls: list[tuple[Any, ...]], violation: str
) -> None:
    """Each at a time: so many messages pass, or one is told to wait. The last one is judged."""

    def make(at: int, *how: Any) -> None:
        sends.waits(at, how[1]) if how[0] == "waits" else sends.passes(at, how[0])

    for call in calls[:-1]:
        make(*call)
    with pytest.raises(Violation, match=violation) if violation else nullcontext():
        make(*calls[-1])
    waits = sum("waits" in call for call in calls)
    assert violation or (sends.watch.passed, sends.watch.throttled) == (len(calls) - waits, waits)


def test_a_changed_quota_begins_anew_and_another_one_does_not(sends: Sends) -> None:
    sends.passes(0, 6)
    other = {"subject": "Topic:x", "messages_in": 1, "burst_ms": 1}
    sends.said = Said(quotas={"User:u": QUOTA, "Topic:x": other})
    with pytest.raises(Violation, match="too much"):
        sends.passes(1, 1)
    sends.said = Said(quotas={"User:u": {**QUOTA, "burst_ms": 501}})
    sends.passes(1, 5)


def test_a_quota_that_was_another_one_in_between_begins_anew_or_goes_on(sends: Sends) -> None:
    sends.said = Said().after({"op": "quota", "quota": QUOTA})
    sends.passes(0, 6)
    other = {**QUOTA, "messages_in": 60}
    sends.said = sends.said.after({"op": "quota", "quota": other})
    sends.said = sends.said.after({"op": "quota", "quota": QUOTA})
    sends.waits(1, 90)
    sends.passes(1, 6)
    with pytest.raises(Violation, match="too much"):
        sends.passes(2, 1)


def test_what_limits_all_others_may_be_another_one_in_between(sends: Sends) -> None:
    every = {**QUOTA, "subject": "User:*"}
    sends.said = Said().after({"op": "quota", "quota": every})
    sends.passes(0, 6)
    sends.said = sends.said.after({"op": "quota", "quota": {**QUOTA, "messages_in": 60}})
    sends.said = sends.said.after({"op": "delete_quota", "subject": "User:u"})
    sends.passes(1, 6)
    sends.said = sends.said.after({"op": "quota", "quota": {**QUOTA, "subject": "User:v"}})
    with pytest.raises(Violation, match="too much"):
        sends.passes(2, 1)


def test_a_process_that_was_not_seen_is_not_judged(sends: Sends) -> None:
    sends.passes(0, 6)
    said, unknown = sends.said, cast(Any, None)
    sends.said = unknown
    sends.passes(0, 1)
    sends.said = said
    sends.passes(1, 9)
    assert sends.watch.passed == 1


OTHERS: list[Callable[[Sends], None]] = [
    lambda sends: setattr(sends.node, "boot", 2),
    lambda sends: setattr(sends.node, "name", "b"),
]


@pytest.mark.parametrize("change", OTHERS, ids=["another process", "another node"])
def test_each_process_counts_by_itself(sends: Sends, change: Callable[[Sends], None]) -> None:
    sends.passes(0, 6)
    change(sends)
    sends.passes(0, 6)
    assert sends.watch.passed == 2
