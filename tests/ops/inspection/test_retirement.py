"""What keeps a replica group that retires, and until when."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog import (
    GroupDescription,
    GroupQueue,
    QueueMove,
    QueueMoves,
    QueuePlace,
    QueueSpan,
    QueueStats,
    TopicDescription,
)

from duolog_server.ops.inspection.retirement import Need, Retirement, retirement_of

A, B, NOW, HOUR = "broker-a", "broker-b", 1_000_000_000, 3_600_000
SPAN = QueueSpan(
    "T",
    QueuePlace(A, 0),
    QueuePlace(A, 0),
    first=0,
    end=9,
    came_from=None,
    following=QueuePlace(B, 4),
    min_offset=5,
    max_offset=9,
)
EMPTY = replace(SPAN, min_offset=9)
HERE = QueuePlace(A, 0)
MOVE = QueueMove("U", "m", "SEALING", HERE, HERE, B, None, None, 0, 0.0, "")


def stats(queue_id: int, low: int, high: int, last: int | None = None) -> QueueStats:
    return QueueStats(queue_id, low, high, last)


def part(topic: str, *rows: QueueStats, queues: int = 1, kind: str = "") -> TopicDescription:
    return TopicDescription(
        topic, A, queues, stats=rows, message_type=kind, retention_hours=2 * bool(rows)
    )


def row(topic: str, lag: int, queue_id: int = 0) -> GroupQueue:
    return GroupQueue(topic, A, queue_id, 1, 0, 1 + lag, lag, 5, "", False, 0)


class Cluster:
    """What the calls of a cluster answer: nothing that needs the group, but for what is given."""

    def __init__(self, **answers: Any) -> None:
        groups = [SimpleNamespace(group=A, retiring=answers.pop("retiring", True))]
        self._answers = {
            "route": SimpleNamespace(groups=groups),
            "topics": [part("T", stats(0, 9, 9))],
            "moves": QueueMoves((), (EMPTY,)),
            "groups": [],
            "delayed_page": SimpleNamespace(waiting=0, last_due_ms=0),
            "halves_page": SimpleNamespace(waiting=0),
            "cluster_status": master(),
            **answers,
        }
        self.admin = self

    def __getattr__(self, name: str) -> Any:
        async def answered(*given: object, **how: object) -> Any:
            return self._answers[name]

        return answered


async def found(**answers: Any) -> Retirement:
    return await retirement_of(cast(duolog.Client, Cluster(**answers)), A, NOW)


def master(**parts: int) -> Any:
    replication = SimpleNamespace(group=A)
    row = SimpleNamespace(is_master=True, stale=False, replication=replication, parts=parts)
    return SimpleNamespace(nodes=[row])


async def test_a_group_that_nothing_needs_may_be_stopped() -> None:
    done = await found()
    assert (done.needs, done.may_be_stopped, done.verdict) == ((), True, f"{A} may be stopped")
    assert not (await found(retiring=False)).may_be_stopped, "new topics may come"
    with pytest.raises(duolog.BadRequest, match="there is no replica group 'x'"):
        await retirement_of(cast(duolog.Client, Cluster()), "x", NOW)


LAGS = GroupDescription("g", 0, (row("T", 3), row("U", 7), row("%RETRY%g", 2)))
NEEDS: list[tuple[str, Any, Need]] = [
    (
        "topics",
        [part("T", stats(0, 9, 9)), part("U", stats(0, 0, 0), stats(1, 0, 0), queues=2)],
        Need("queues", "U", 2, "queues have not moved"),
    ),
    (
        "moves",
        QueueMoves((MOVE,), (EMPTY,)),
        Need("queues", "U", 1, "queues have not moved"),
    ),
    (
        "topics",
        [part("L", stats(0, 0, 0), kind="LITE")],
        Need("lite topics", "L", 1, "queues stay here: delete the topic"),
    ),
    (
        "topics",
        [part("T", stats(0, 5, 9, NOW - HOUR))],
        Need("kept messages", "T", 4, "messages are kept until retention lets them go", NOW + HOUR),
    ),
    (
        "topics",
        [part("%DLQ%g", stats(0, 1, 3, NOW))],
        Need(
            "dead letters",
            "%DLQ%g",
            2,
            "messages are kept until retention lets them go",
            NOW + 2 * HOUR,
        ),
    ),
    (
        "topics",
        [part("%RETRY%never_came", stats(0, 0, 3, NOW))],
        Need(
            "retries",
            "%RETRY%never_came",
            3,
            "messages are kept until retention lets them go",
            NOW + 2 * HOUR,
        ),
    ),
    (
        "delayed_page",
        SimpleNamespace(waiting=5, last_due_ms=NOW + 7),
        Need("delayed messages", "", 5, "wait for their time", NOW + 7),
    ),
    (
        "halves_page",
        SimpleNamespace(waiting=1),
        Need("half messages", "", 1, "wait for the decision of their producers"),
    ),
    (
        "cluster_status",
        master(outbox_waiting=2, sinks=3),
        Need(
            "outbox_waiting", "", 2, "messages that were due here, on their way to another "
            "replica group",
        ),
    ),
    (
        "cluster_status",
        SimpleNamespace(nodes=[]),
        Need("master", "", 1, "does not answer: what it holds is not known"),
    ),
    (
        "moves",
        QueueMoves((), (replace(EMPTY, passed_on=6),)),
        Need(
            "sends", "T", 6, "messages were sent here in the last minute: restart or upgrade their "
            "producers",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "answer", "need"), NEEDS)
async def test_what_needs_a_group_is_named(call: str, answer: Any, need: Need) -> None:
    left = await found(**{call: answer})
    assert left.needs == (need,)
    assert (left.may_be_stopped, left.until_ms) == (False, need.until_ms)
    assert left.verdict == f"{A} may not be stopped yet: {need.kind}"


async def test_what_is_older_than_retention_keeps_no_group() -> None:
    """Its segment may be the last one of the log, which is never deleted."""
    assert (await found(topics=[part("T", stats(0, 5, 9, NOW - 2 * HOUR))])).may_be_stopped
    assert not (await found(topics=[part("T", stats(0, 5, 9, None))])).may_be_stopped


async def test_consumer_groups_are_named_where_they_have_messages_left() -> None:
    left = await found(groups=[LAGS])
    assert [(need.kind, need.what, need.count) for need in left.needs] == [
        ("retries", "g", 2),
        ("consumer groups", "g", 3),
    ], "what has not moved it need not have crossed"
    assert left.needs[1].note == (
        "messages of T to consume here; it has no consumers: start them, or delete the group"
    )
    assert left.until_ms is None


async def test_who_may_not_see_what_waits_gets_no_verdict() -> None:
    with pytest.raises(duolog.BadRequest, match="may not see the half messages"):
        await found(halves_page=SimpleNamespace(waiting=None))
