"""Masterships that follow each other, each cut off anywhere: in the end there is one log again."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ha.master import Master
from ha.progress import ConnectionState
from ha.slave import Slave
from ha.slaveevents import Received
from store.clocks import MonoMs
from tests.ha.pair import Link, close, fill, log_bytes, new_disk, open_master, open_slave, put

SEGMENT = 4096
SIZES = {"mapped_file_size_commit_log": SEGMENT, "max_message_size": 1024}
NODES = ("a", "b", "c")


class Group:
    """Three nodes, one of them the master; what is confirmed is remembered."""

    def __init__(self) -> None:
        self.disks = {name: new_disk(k) for k, name in enumerate(NODES)}
        self.sure = b""
        self.epoch = 0
        master, links = self.lead("a")  # logs that share nothing would not become one
        for link in links:
            link.pump()
        self.end(master, links)

    def able(self) -> list[str]:
        """Nodes that hold all that was ever confirmed."""
        found = []
        for name in NODES:
            slave = open_slave(self.disks[name], name, **SIZES)
            if log_bytes(slave.store).startswith(self.sure):
                found.append(name)
            close(slave)
        return found

    def lead(self, name: str) -> tuple[Master, list[Link]]:
        """The next mastership, with both others connected."""
        self.epoch += 1
        master = open_master(self.disks[name], name, self.epoch, self.epoch, **SIZES)
        slaves = [open_slave(self.disks[n], n, **SIZES) for n in NODES if n != name]
        return master, [Link(master, slave) for slave in slaves]

    def end(self, master: Master, links: list[Link]) -> None:
        """All are killed."""
        confirmed = master.store.confirm_offset
        if confirmed > len(self.sure):
            self.sure = log_bytes(master.store)[:confirmed]
        machines: list[Master | Slave] = [master, *(link.slave for link in links)]
        for machine in machines:
            machine.store.note_confirmed()
            machine.store.checkpoint.flush()
            close(machine)


def pump(link: Link, frames_max: int) -> None:
    """Let so many frames of the master arrive."""
    for _ in range(frames_max):
        frame = link.master.next_frame(link.number, MonoMs(0))
        if frame is None or link.closed:
            return
        link.from_slave(link.slave.step(Received(frame), MonoMs(0)))


def deliver(link: Link) -> None:
    """Let everything arrive, and no answer come back: nothing is confirmed by it."""
    while (frame := link.master.next_frame(link.number, MonoMs(0))) is not None:
        link.slave.step(Received(frame), MonoMs(0))


@settings(max_examples=120)
@given(st.integers(0, 1 << 32))
def test_logs_of_masterships_cut_off_anywhere_become_one(seed: int) -> None:
    """Also if one begins with the blank of a segment that another one could still use."""
    chance = random.Random(seed)
    group = Group()
    for _ in range(chance.randint(1, 4)):
        master, links = group.lead(chance.choice(group.able()))
        for _ in range(chance.randint(1, 3)):
            for link in links:
                pump(link, chance.choice((0, 1, 2, 100)))
            if chance.random() < 0.5:
                fill(master, chance.choice((chance.randint(8, 250), chance.randint(100, 190))))
            else:
                put(master, b"w" * chance.randint(0, 60))
        for link in links:
            pump(link, chance.choice((0, 1, 2, 100)))
        group.end(master, links)
    master, links = group.lead(chance.choice(group.able()))
    put(master, b"last")
    for link in links:
        link.pump()
        link.pump(5000)
        assert link.slave.state is ConnectionState.TRANSFER, link.slave.reason
    for link in links:
        assert log_bytes(link.slave.store) == log_bytes(master.store)
        assert link.slave.history.entries == master.history.entries
    assert log_bytes(master.store).startswith(group.sure)


def test_a_segment_closed_by_the_next_mastership_is_cut_where_its_blank_starts() -> None:
    """The barrier did not fit, an unconfirmed record of the mastership before it did."""
    group = Group()
    master, (to_b, to_c) = group.lead("a")
    fill(master, 150)
    to_b.pump()
    fits = put(master, b"fits")
    deliver(to_c)
    assert fits.end_offset < SEGMENT
    for machine in (master, to_b.slave, to_c.slave):
        close(machine)
    master, links = group.lead("b")
    assert master.history.entries[-1].start == SEGMENT, "the barrier did not fit"
    assert [link.slave.end for link in links] == [fits.end_offset] * 2
    for link in links:
        link.pump()
        assert link.slave.state is ConnectionState.TRANSFER, link.slave.reason
        assert link.slave.truncated_bytes == fits.end_offset - fits.physical_offset
        assert log_bytes(link.slave.store) == log_bytes(master.store)


def test_a_blank_that_came_without_its_barrier_gives_way_to_a_record() -> None:
    group = Group()
    master, (to_b, to_c) = group.lead("a")
    fill(master, 150)
    to_b.pump()
    to_c.pump()
    blank = master.store.log.max_offset
    put(master, b"fits")
    put(master, b"of the next segment")
    for machine in (master, to_b.slave, to_c.slave):
        close(machine)
    master, (to_a, to_c) = group.lead("b")
    pump(to_c, 2)  # the welcome, and the bytes up to the segment's end
    assert to_c.slave.end == SEGMENT
    assert to_c.slave.history.last_epoch == 2, "no barrier of epoch 3 yet"
    for machine in (master, to_a.slave, to_c.slave):
        close(machine)
    master, links = group.lead("a")
    for link in links:
        link.pump()
        assert link.slave.state is ConnectionState.TRANSFER, link.slave.reason
        assert log_bytes(link.slave.store) == log_bytes(master.store)
    assert links[1].slave.truncated_bytes == SEGMENT - blank
