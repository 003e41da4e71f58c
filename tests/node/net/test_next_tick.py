"""A call in the next turn of the event loop."""

import asyncio

from duolog_server.node.net.next_tick import NextTick


async def test_it_is_called_once_in_a_turn_however_often_it_is_asked_for() -> None:
    calls = list[int]()
    turn = NextTick(lambda: calls.append(1))
    for _ in range(2):
        calls.clear()
        turn.plan()
        turn.plan()
        assert not calls
        await asyncio.sleep(0)
        assert calls == [1]


async def test_one_that_is_planned_during_the_call_comes_in_the_turn_after() -> None:
    calls = list[int]()

    def call() -> None:
        calls.append(1)
        if len(calls) < 3:
            turn.plan()

    turn = NextTick(call)
    turn.plan()
    for count in (1, 2, 3, 3):
        await asyncio.sleep(0)
        assert len(calls) == count


async def test_one_that_fails_can_be_planned_again() -> None:
    calls = list[int]()

    def call() -> None:
        calls.append(1)
        raise ValueError("it failed")

    failed, turn = list[object](), NextTick(call)
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failed.append(about))
    for _ in range(2):
        turn.plan()
        await asyncio.sleep(0)
    assert (len(calls), len(failed)) == (2, 2)
