"""A planned switch of the master, whose answers are lost or late."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import duolog
import grpc
import grpc.aio
import pytest
from duolog._connection import Connection
from duolog._errors import ERROR_KEY, error_of
from duolog._switch import Switch
from duolog.wire import duolog_pb2 as wire

NO_ANSWER = "Unavailable"
DONE = wire.FailoverReply()


def route(epoch: int, master: str, group: str = "g") -> wire.RouteReply:
    """What a node says of its group, beside another one."""
    groups = [
        wire.GroupRoute(group="other", epoch=90, master="far"),
        wire.GroupRoute(group="g", epoch=epoch, master=master),
        wire.GroupRoute(group="another", epoch=91, master="far"),
    ]
    return wire.RouteReply(group=group, groups=groups)


def over(epoch: int, master: str) -> wire.FailoverReply:
    return wire.FailoverReply(over=True, epoch=epoch, master=master)


class Cluster:
    """A connection that gives these answers in turn. A call is tried again while there are more."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.orders: list[tuple[str, int]] = []
        self.timeouts: list[float] = []
        self.admin = self
        self.now = 100.0
        self.takes = 0.0  # seconds, an answer

    async def call(self, make: Callable[[float], Awaitable[None]], timeout: float) -> None:
        while True:
            try:
                return await make(timeout)
            except grpc.RpcError as failure:  # as Connection.call
                error: duolog.DuologError = error_of(failure)
            except duolog.Unavailable as failure:
                error = failure
            if not isinstance(error, duolog.Retryable) or not self.answers:
                raise error

    def _answer(self, timeout: float) -> Any:
        self.timeouts.append(timeout)
        self.now += self.takes
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            trailing = grpc.aio.Metadata((ERROR_KEY, answer))
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, nothing, trailing, answer)
        return answer

    async def Route(self, request: wire.RouteRequest, timeout: float) -> Any:
        return self._answer(timeout)

    async def Failover(self, request: wire.FailoverRequest, timeout: float) -> Any:
        self.orders.append((request.node, request.epoch))
        return self._answer(timeout)


async def ordered(node: str, epoch: int, *answers: Any) -> tuple[str, list[tuple[str, int]]]:
    """What an order comes to, and what nodes were told."""
    cluster = Cluster(*answers)
    try:
        await Switch(cast(Connection, cluster), node, epoch).order(10.0)
        outcome = ""
    except duolog.DuologError as error:
        outcome = f"{type(error).__name__}: {error}"
    assert not cluster.answers
    return outcome, cluster.orders


MAYBE = "; the switch away from epoch 3 may or may not happen"
CASES: list[tuple[str, int, list[Any], str, list[int]]] = [
    # The epoch is the one that is found, or the one that is given.
    ("b", 0, [route(3, "a"), DONE], "", [3]),
    ("b", 1, [DONE], "", [1]),
    # An answer is lost, and a repeat finds that the epoch is over.
    ("b", 0, [route(3, "a"), NO_ANSWER, over(4, "b")], "", [3, 3]),
    ("b", 0, [route(3, "a"), NO_ANSWER, over(4, "c")], "ResultUnknown: epoch 3 is over: c", [3, 3]),
    ("", 0, [route(3, "a"), NO_ANSWER, over(4, "c")], "", [3, 3]),
    ("", 0, [route(3, "a"), NO_ANSWER, over(4, "a")], "ResultUnknown: epoch 3 is over: a", [3, 3]),
    ("b", 0, [route(3, "a"), NO_ANSWER, NO_ANSWER, DONE], "", [3, 3, 3]),
    ("b", 0, [route(3, "a"), "ResultUnknown", DONE], "", [3, 3]),
    # It was over before it was asked for.
    ("b", 3, [over(4, "b")], "", [3]),
    ("", 3, [over(4, "c")], "", [3]),
    ("b", 1, [over(4, "c")], "BadRequest: epoch 1 is over: c leads epoch 4, and nothing", [1]),
    ("b", 0, [route(3, "a"), over(4, "c"), DONE], "", [3, 4]),
    ("", 0, [route(3, "a"), over(4, "c"), NO_ANSWER, over(5, "c")], "ResultUnknown", [3, 4, 4]),
    ("", 0, [route(3, "a"), over(4, "c"), NO_ANSWER, over(5, "a")], "", [3, 4, 4]),
    # After a certain answer nothing is unknown.
    ("b", 0, [route(3, "a"), over(4, "c"), "Busy"], "Busy: Busy", [3, 4]),
    *(
        ("b", 0, [route(3, "a"), refusal], f"{refusal}: {refusal}", [3])
        for refusal in ("NotMaster", "Busy", "NoPermission", "BadRequest")
    ),
    ("b", 0, [route(3, "a"), "NotMaster", over(4, "c"), DONE], "", [3, 3, 4]),
    # Where no answer tells, it may or may not have happened.
    ("b", 0, [route(3, "a"), NO_ANSWER], f"ResultUnknown: Unavailable{MAYBE}", [3]),
    ("b", 0, [route(3, "a"), NO_ANSWER, "Busy"], f"ResultUnknown: Busy{MAYBE}", [3, 3]),
    ("b", 0, [route(3, "a"), "ResultUnknown"], f"ResultUnknown: ResultUnknown{MAYBE}", [3]),
    ("b", 0, [route(3, "a", group="unlisted"), "Busy"], "Busy: Busy", [0]),
    ("b", 0, [NO_ANSWER, route(3, "a"), DONE], "", [3]),
    ("b", 0, [NO_ANSWER], "Unavailable: Unavailable", []),
]


@pytest.mark.parametrize(("node", "epoch", "answers", "outcome", "epochs"), CASES)
async def test_a_switch_is_ordered_once_and_says_what_is_not_known(
    node: str, epoch: int, answers: list[Any], outcome: str, epochs: list[int]
) -> None:
    found, orders = await ordered(node, epoch, *answers)
    assert found == "" if not outcome else found.startswith(outcome), found
    assert orders == [(node, each) for each in epochs]


async def test_an_order_of_no_known_epoch_is_given_once() -> None:
    """A repeat could end another epoch."""
    cluster = Cluster(route(3, "a", group="unlisted"), NO_ANSWER, DONE)
    with pytest.raises(duolog.ResultUnknown, match=r"^Unavailable$"):
        await Switch(cast(Connection, cluster), "b", 0).order(10.0)
    assert cluster.answers == [DONE]


async def test_the_time_of_an_order_is_that_of_all_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(route(3, "a"), over(4, "c"), over(5, "c"), DONE)
    cluster.takes = 4.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: cluster.now)
    await Switch(cast(Connection, cluster), "b", 0)._try(10.0)
    assert cluster.timeouts == [10.0, 6.0, 2.0, 0.001]
