"""Who led, as the barriers of a log tell it."""

import pytest

from duolog_server.ha.beginnings import STARTED
from duolog_server.ha.epochs import KEPT, Epoch, EpochHistory, Mastership, Masterships
from duolog_server.store.clocks import WallMs
from tests.ha.pair import close, open_master


def test_the_newest_masterships_are_those_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    master = open_master()
    try:
        first = master.history.last_epoch
        for number in range(KEPT + 3):
            master.open_epoch(number, WallMs(1_700_000_000_000 + number))
        end = master.store.max_offset
        known = Masterships(master.store)
        found = known.newest(master.history, end)
        assert len(found) == KEPT
        assert found[-1] == Mastership(
            Epoch(first + KEPT + 3), master.me.node, 1_700_000_000_000 + KEPT + 2, STARTED
        )
        assert [one.epoch for one in found] == sorted(one.epoch for one in found)
        last = master.history.entries[-1]
        assert known.newest(master.history, last.start)[-1].epoch == last.epoch - 1, "unconfirmed"
        read = 0
        plain = master.store.log.get_message

        def counted(offset: int) -> object:
            nonlocal read
            read += 1
            return plain(offset)

        monkeypatch.setattr(master.store.log, "get_message", counted)
        assert known.newest(master.history, end) == found
        assert read == 1, "only the one that had been left out"
        assert known.newest(EpochHistory(), end) == []
    finally:
        close(master)


def test_a_barrier_that_is_gone_is_left_out() -> None:
    master = open_master()
    try:
        newest = master.history.entries[-1]
        history = EpochHistory((newest, type(newest)(Epoch(newest.epoch + 1), 1 << 40, 7)))
        found = Masterships(master.store).newest(history, 1 << 50)
        assert [one.epoch for one in found] == [newest.epoch]
    finally:
        close(master)
