"""The memory of answers that clients have not taken."""

import asyncio

import duolog
import pytest

from duolog_server.node.core import untaken as module
from duolog_server.node.core.untaken import LITTLE_BYTES, Untaken
from duolog_server.node.core.waitingcalls import WaitingCalls

MIB = 1 << 20


def untaken(most: int, largest: int, calls_max: int = 100) -> Untaken:
    return Untaken(most, largest, WaitingCalls(calls_max))


def test_an_address_holds_its_share_and_all_together_hold_the_limit() -> None:
    answers = untaken(8 * MIB, MIB)
    answers.take("a", MIB)
    assert answers.room("a") == MIB
    answers.take("a", MIB)
    assert answers.room("a") == 0
    assert answers.room("b") == 2 * MIB
    for address in "bcd":
        answers.take(address, 2 * MIB)
    assert answers.held_bytes == 8 * MIB
    assert answers.room("e") == LITTLE_BYTES  # others never keep it from reading
    answers.take("e", LITTLE_BYTES)
    assert answers.room("e") == 0
    answers.give("b", 2 * MIB)
    assert answers.room("b") == 2 * MIB - LITTLE_BYTES
    assert answers.validate() == ""
    assert untaken(8 * MIB, 8 * MIB).room("a") == 8 * MIB
    assert untaken(8 * MIB, 64 * MIB).room("a") == 8 * MIB


async def test_readers_of_an_address_wait_in_turn_until_it_takes_something() -> None:
    answers = untaken(4 * MIB, MIB)
    answers.take("a", MIB)
    served: list[int] = []

    async def read(number: int) -> None:
        await answers.some_room("a")
        answers.take("a", MIB)
        served.append(number)

    readers = [asyncio.ensure_future(read(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert served == []
    for number in range(3):
        answers.give("a", MIB)
        for _ in range(5):
            await asyncio.sleep(0)
        assert served == list(range(number + 1))
    await asyncio.gather(*readers)
    answers.give("a", MIB)
    assert (answers.held_bytes, answers.validate()) == (0, "")


async def test_a_reader_that_takes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    answers = untaken(4 * MIB, MIB)
    answers.take("a", MIB)
    reader = asyncio.ensure_future(answers.some_room("a"))
    asyncio.get_running_loop().call_soon(answers.give, "a", MIB)
    assert await reader == MIB
    assert answers.refused == 0
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    answers = untaken(4 * MIB, MIB)
    answers.take("a", MIB)
    with pytest.raises(duolog.Busy, match="answers_bytes_max"):
        await answers.some_room("a")
    assert answers.refused == 1
    assert await answers.some_room("b") == MIB
    assert answers._waiting == {}


async def test_readers_that_wait_are_bounded() -> None:
    answers = untaken(4 * MIB, MIB, calls_max=2)
    answers.take("a", MIB)
    readers = [asyncio.ensure_future(answers.some_room("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(duolog.Busy, match="polls_max"):
        await answers.some_room("a")
    assert await answers.some_room("b") == MIB  # who need not wait is not counted
    answers.give("a", MIB)
    assert await readers[0] == MIB
    answers.take("a", 0)
    assert await readers[1] == MIB


async def test_of_many_readers_of_an_address_that_takes_nothing_the_rest_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    answers = untaken(4 * MIB, MIB)
    answers.take("a", MIB)
    readers = [asyncio.ensure_future(answers.some_room("a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(duolog.Busy, match="answers_bytes_max"):
        await answers.some_room("a")
    assert answers.refused == 1
    assert await answers.some_room("b") == MIB
    answers.give("a", MIB)
    for reader in readers:
        assert await reader == MIB
        answers.take("a", 0)
