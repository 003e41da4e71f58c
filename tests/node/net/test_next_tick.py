"""A call in the next turn of the event loop."""

import asyncio

from duolog_server.node.net.next_tick import NextTick


async def test_a_planned_call_comes_once_a_turn_and_again_after_it() -> None:
    calls = list[int]()
    turn = NextTick(lambda: calls.append(1))
    for _ in range(2):
        calls.clear()
        turn.plan()
        turn.plan()
        assert not calls
        await asyncio.sleep(0)
        assert calls == [1]
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
    calls = list[int]()

    def fails() -> None:
        calls.append(1)
        raise ValueError("it failed")

    failed, turn = list[object](), NextTick(fails)
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failed.append(about))
    for _ in range(2):
        turn.plan()
        await asyncio.sleep(0)
    assert (len(calls), len(failed)) == (2, 2)
