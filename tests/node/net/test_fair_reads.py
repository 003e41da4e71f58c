"""What is read of all connections in a turn of the event loop."""

import asyncio
from functools import partial

import pytest

from duolog_server.node.net.fair_reads import CALLS, SECONDS, FairReads


async def test_what_arrives_and_what_goes_on_have_their_turns_alternately() -> None:
    turns, read = FairReads(), list[str]()

    def go(name: str) -> None:
        read.append(name)
        turns.took(SECONDS * 0.4)

    turns.took(SECONDS)
    assert not turns.has_time
    for name in ("g1", "g2", "g3", "g4"):
        turns.go_on(partial(go, name))
    for name in ("a1", "a2"):
        turns.begin(partial(go, name))
    found = []
    for _ in range(3):
        await asyncio.sleep(0)
        found.append(len(read))
    assert (found, read) == ([3, 6, 6], ["a1", "g1", "a2", "g2", "g3", "g4"])
    assert turns.has_time


async def test_what_goes_on_has_its_turns_though_each_reading_takes_a_whole_one() -> None:
    turns, read = FairReads(), list[str]()

    def arrive() -> None:
        read.append("arrived")
        turns.begin(arrive)  # more of it has come by the next turn
        turns.took(SECONDS)

    def go_on() -> None:
        read.append("goes on")
        turns.go_on(go_on)
        turns.took(SECONDS)

    turns.begin(arrive)
    turns.go_on(go_on)
    for _ in range(4):
        await asyncio.sleep(0)
    assert read == ["arrived", "goes on"] * 2


async def test_one_that_goes_on_again_does_so_in_a_later_turn() -> None:
    turns, count = FairReads(), 0

    def go() -> None:
        nonlocal count
        count += 1
        turns.go_on(go)

    turns.go_on(go)
    for expected in (1, 2, 3):
        await asyncio.sleep(0)
        assert count == expected


async def test_those_that_go_on_share_the_calls_of_a_turn_too() -> None:
    turns, begun = FairReads(), list[int]()

    def go_on() -> None:
        turns.began()
        begun.append(1)

    for _ in range(CALLS + 1):
        turns.go_on(go_on)
    for expected in (CALLS, CALLS + 1):
        await asyncio.sleep(0)
        assert len(begun) == expected
    assert turns.has_calls
    await asyncio.sleep(0)


async def test_short_readings_plan_no_turn_each() -> None:
    turns, planned = FairReads(), list[object]()
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon", lambda *args, **_: planned.append(args))
        for _ in range(4):
            turns.took(SECONDS / 10)
        assert planned == []
        turns.took(SECONDS / 5)
        assert len(planned) == 1


async def test_one_that_fails_does_not_keep_the_others_from_their_turn() -> None:
    turns, went_on = FairReads(), list[int]()
    loop, told = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    turns.go_on(fail)
    turns.go_on(lambda: went_on.append(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(told), went_on) == (1, [1])
