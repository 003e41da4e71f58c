"""Polls that wait: what ends a wait, and that very many do not go on in one turn."""

import asyncio

import pytest

from duolog_server.node.consuming import waiting as module
from duolog_server.node.consuming.waiting import Turns, Waiting
from duolog_server.node.engine.arrivals import ArrivalBoard

KEY = ("T", 0)


@pytest.fixture
def board() -> ArrivalBoard:
    return ArrivalBoard()


def wait(board: ArrivalBoard, turns: Turns, seconds: float = 60.0) -> Waiting:
    return Waiting(board, turns, KEY, asyncio.get_running_loop().time() + seconds)


async def test_a_wait_ends_when_the_queue_has_more_and_at_its_deadline(board: ArrivalBoard) -> None:
    waiting = wait(board, Turns())
    task = asyncio.ensure_future(waiting.arrived())
    await asyncio.sleep(0)
    board.arrived([("T", 1)])
    await asyncio.sleep(0)
    assert not task.done()
    board.arrived([KEY])
    assert await task
    waiting.end()
    assert len(board) == 0
    waiting = wait(board, Turns())
    board.arrived([KEY])
    assert await waiting.arrived()
    waiting.look()
    task = asyncio.ensure_future(waiting.arrived())
    await asyncio.sleep(0)
    assert not task.done()
    board.arrived([KEY])
    assert await task
    waiting.end()
    waiting = wait(board, Turns(), 0.0)
    assert not await waiting.arrived()
    assert not await waiting.arrived()
    waiting.end()


async def test_very_many_waits_that_are_over_at_once_go_on_in_several_turns(
    board: ArrivalBoard,
) -> None:
    turns, count = Turns(), 2 * module.AT_ONCE + 5
    waits = [wait(board, turns) for _ in range(count)]
    order: list[int] = []

    async def one(number: int) -> None:
        await waits[number].arrived()
        order.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    board.arrived([KEY])
    most, seen = 0, 0
    while len(order) < count - 1:
        await asyncio.sleep(0)
        most, seen = max(most, len(order) - seen), len(order)
    assert most == module.AT_ONCE
    assert order == [number for number in range(count) if number != 3]
    for waiting in waits:
        waiting.end()
    assert tasks[3].cancelled()


async def test_one_after_another_does_not_wait_for_turns(board: ArrivalBoard) -> None:
    turns = Turns()
    for _ in range(3 * module.AT_ONCE):
        waiting = wait(board, turns)
        task = asyncio.ensure_future(waiting.arrived())
        await asyncio.sleep(0)
        board.arrived([KEY])
        await asyncio.sleep(0)
        assert task.done()
        waiting.end()


async def test_a_wait_that_ended_wakes_nobody_later(board: ArrivalBoard) -> None:
    """Neither by its timer, nor by a message: another wait may be under its key by then."""
    turns = Turns()
    waiting = wait(board, turns, 0.01)
    waiting.end()
    assert waiting._timer.cancelled()
    other = wait(board, turns)
    task = asyncio.ensure_future(other.arrived())
    waiting = wait(board, turns)
    gone = asyncio.ensure_future(waiting.arrived())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    waiting.set()
    await asyncio.sleep(0)
    assert not task.done()
    other.set()
    assert await task
    for one in (waiting, other):
        one.end()
