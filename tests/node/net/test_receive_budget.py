"""The room for requests that have not arrived whole: who is let in, who waits, and who ends."""

from collections.abc import AsyncIterator

import pytest

from duolog_server.node.net import receive_budget as module
from duolog_server.node.net.receive_budget import Pace, ReceiveBudget
from tests.until import until

MOST = 10_000_000


class Client:
    """A connection."""

    def __init__(self, room: ReceiveBudget, address: str = "10.0.0.1") -> None:
        self.room = room
        self.address = address
        self.pace = Pace()
        self.is_held_up = False
        self.reads = 0
        self.ended = ""

    def begin(self, size: int) -> bool:
        return self.room.begin(self, size)

    def read_on(self) -> None:
        self.reads += 1

    def give_up(self, reason: str) -> None:
        self.ended = reason
        self.room.end(self)


@pytest.fixture
async def room() -> AsyncIterator[ReceiveBudget]:
    made = ReceiveBudget(MOST)
    yield made
    assert made.validate() == ""


def looks(room: ReceiveBudget, count: int) -> None:
    for _ in range(count):
        room.look()
        assert room.validate() == ""


async def test_frames_that_fit_are_let_in_and_the_others_wait(room: ReceiveBudget) -> None:
    one, other, third = (Client(room) for _ in range(3))
    assert one.begin(MOST - 100)
    assert not other.begin(101)
    assert not third.begin(102)
    assert room.taken == MOST - 100
    room.end(one)
    assert (other.reads, third.reads) == (1, 1)
    assert (room.taken, room.waiting) == (203, 0)


async def test_one_that_does_not_fit_is_passed_over_for_a_while(room: ReceiveBudget) -> None:
    slow, large, other = Client(room), Client(room), Client(room, "10.0.0.2")
    assert slow.begin(MOST // 2)
    assert not large.begin(MOST)
    slow.is_held_up = True
    for _ in range(module.PASSED_LOOKS):
        assert other.begin(100), "there is room"
        room.end(other)
        looks(room, 1)
    looks(room, 1)
    assert not other.begin(100), "what room there is is kept for the large one"
    room.end(slow)
    assert (large.reads, other.reads) == (1, 0)
    room.end(large)
    assert other.reads == 1


async def test_what_waits_behind_one_that_does_not_fit_passes_it(room: ReceiveBudget) -> None:
    slow, large = Client(room), Client(room, "10.0.0.2")
    short, other = Client(room, "10.0.0.3"), Client(room, "10.0.0.4")
    assert slow.begin(MOST // 2)
    assert other.begin(MOST // 2)
    assert not large.begin(MOST)
    assert not short.begin(100)
    room.end(other)
    assert (large.reads, short.reads) == (0, 1)


async def test_a_frame_longer_than_the_room_is_read_alone(room: ReceiveBudget) -> None:
    small, large, later = (Client(room) for _ in range(3))
    assert small.begin(10)
    assert not large.begin(5 * MOST)
    looks(room, module.PASSED_LOOKS + 1)
    assert not later.begin(10)
    room.end(small)
    assert (large.reads, later.reads) == (1, 0)
    room.end(large)
    assert later.reads == 1


async def test_addresses_have_their_turns_one_after_the_other(room: ReceiveBudget) -> None:
    crowd = [Client(room) for _ in range(5)]
    other = Client(room, "10.0.0.2")
    assert crowd[0].begin(MOST)
    for one in crowd[1:]:
        one.begin(MOST)
    other.begin(MOST)
    room.end(crowd[0])
    assert crowd[1].reads == 1
    room.end(crowd[1])
    assert other.reads == 1


async def test_what_leaves_makes_room_whether_it_waited_or_not(room: ReceiveBudget) -> None:
    one, other, third = (Client(room) for _ in range(3))
    one.begin(MOST)
    other.begin(MOST)
    third.begin(MOST)
    room.end(other)
    room.end(one)
    assert (other.reads, third.reads) == (0, 1)
    room.end(third)
    assert room.taken == 0


async def test_a_frame_that_hardly_goes_on_ends_while_others_wait(room: ReceiveBudget) -> None:
    stalled, slow, paused = (Client(room) for _ in range(3))
    size = MOST // 3
    for one in (stalled, slow, paused):
        assert one.begin(size)
    paused.is_held_up = True  # the node itself does not read it
    waiting = Client(room, "10.0.0.2")
    assert not waiting.begin(size)
    looks(room, module.GRACE_LOOKS)
    for _ in range(3):
        assert not stalled.ended
        slow.pace.arrived += size // module.LOOKS
        stalled.pace.arrived += size // module.LOOKS
        looks(room, 1)
    slow.pace.arrived += size // module.LOOKS
    stalled.pace.arrived += size // module.LOOKS - 1
    looks(room, 1)
    assert stalled.ended == module.LATE
    assert not slow.ended
    assert not paused.ended
    assert waiting.reads == 1


async def test_a_frame_that_now_and_then_goes_on_ends_as_well(room: ReceiveBudget) -> None:
    slow, waiting = Client(room), Client(room)
    size = MOST - 100
    assert slow.begin(size)
    waiting.begin(MOST)
    for look in range(module.GRACE_LOOKS + module.LOOKS // 2):
        slow.pace.arrived += size // module.LOOKS if look % 3 == 0 else 0
        looks(room, 1)
    assert slow.ended == module.LATE


async def test_without_others_a_frame_may_take_its_time(room: ReceiveBudget) -> None:
    one = Client(room)
    one.begin(MOST)
    looks(room, 10)
    assert not one.ended


async def test_a_frame_that_waits_for_too_long_ends(room: ReceiveBudget) -> None:
    busy, waiting = Client(room), Client(room)
    busy.begin(MOST)
    waiting.begin(MOST)
    for _ in range(module.WAIT_LOOKS + 1):
        busy.pace.arrived += MOST
        looks(room, 1)
    assert waiting.ended == module.FULL
    assert not busy.ended


async def test_looks_go_on_as_long_as_somebody_waits(
    room: ReceiveBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    one, other = Client(room), Client(room)
    one.begin(MOST)
    other.begin(MOST)
    await until(lambda: one.ended)
    assert other.reads == 1


def test_a_client_that_sends_hardly_anything_stalls() -> None:
    pace = Pace()
    for _ in range(module.STALLED_TICKS):
        pace.arrived += module.STALLED_BYTES - 1
        assert not pace.stalls(True)
    assert not pace.stalls(False)  # nothing has begun
    for _ in range(2 * module.STALLED_TICKS):
        pace.arrived += module.STALLED_BYTES
        assert not pace.stalls(True)
    for _ in range(module.STALLED_TICKS):
        assert not pace.stalls(True)
    assert pace.stalls(True)
