"""A slave in each of its states, and all that may happen to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from duolog_server.ha import frames
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import (
    Ack,
    Chunk,
    Frame,
    Heartbeat,
    Refusal,
    Refuse,
    Reset,
    Truncate,
    Welcome,
)
from duolog_server.ha.master import Master
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Connected, Event, Flushed, Lost, Received, Tick
from duolog_server.store.clocks import MonoMs
from duolog_server.store.status import BrokerRole
from tests.ha.pair import Link, close, flush, open_master, open_slave, put
from tests.ha.scenes import Scene, names

STATES = ("READY", "HANDSHAKE", "TRANSFER", "SUSPEND")
AT_MS = 1000  # when the connection was made


@dataclass(slots=True)
class Copy:
    """A slave that has more than was confirmed, but not all that its master has."""

    master: Master
    slave: Slave
    confirmed: int
    last: int  # where its last record begins, above what was confirmed
    end: int
    durable: bool = False  # the master counts what is on disk

    @classmethod
    def made(cls, state: str, durable: bool = False) -> "Copy":
        master, found = open_master(), open_slave()
        put(master, b"confirmed")
        for now in (0, 100):
            Link(master, found).pump(now)
        confirmed = found.end
        put(master, b"received")
        last = put(master, b"received as well").physical_offset
        end = master.store.log.max_offset
        copy = cls(master, found, confirmed, last, end, durable)
        copy.enter("TRANSFER")
        copy.receive(
            frames.chunk_frame(Epoch(1), confirmed, confirmed, master.store.log.get_data(confirmed))
        )
        put(master, b"to come")
        put(master, b"after that")
        copy.enter(state)
        assert (found.state.value, found.end) == (state, end), "as the scene begins"
        return copy

    def enter(self, state: str) -> None:
        self.slave.step(Lost("closed"), MonoMs(AT_MS))
        if state == "READY":
            return
        self.slave.step(Connected(), MonoMs(AT_MS))
        if state == "TRANSFER":
            self.receive(frames.encode(self.welcome()))
        if state == "SUSPEND":
            self.receive(frames.encode(Refuse(Epoch(1), Refusal.NAME, "why")))

    def receive(self, data: bytes) -> None:
        self.slave.step(Received(data), MonoMs(AT_MS))

    def welcome(self, **changes: Any) -> Welcome:
        epochs = self.master.history.entries
        plain = Welcome(
            Epoch(1), self.slave.end, self.confirmed, "m", "m:1", self.durable, True, 5000, 20_000,
            epochs, b"{}",
        )  # fmt: skip
        return replace(plain, **changes)

    def chunk(self, start: int, size: int = 1 << 20, **changes: Any) -> Chunk:
        data = self.master.store.log.get_data(start)[:size]
        return replace(Chunk(Epoch(1), start, self.end, np.array(data)), **changes)


def _damaged(copy: Copy) -> Chunk:
    chunk = copy.chunk(copy.end)
    chunk.data[60] ^= 1
    return chunk


def _encode(frame: Frame) -> bytes:
    if isinstance(frame, Chunk):
        return frames.chunk_frame(frame.epoch, frame.offset, frame.confirm, frame.data)
    return frames.encode(frame)


# What a master may send, and what else may come: the name, and the frame.
FRAMES: tuple[tuple[str, Callable[[Copy], Frame]], ...] = (
    ("Welcome: from this log's end on", lambda copy: copy.welcome()),
    ("Welcome: from another offset on", lambda copy: copy.welcome(start=copy.end + 1)),
    ("Welcome: of an older epoch", lambda copy: copy.welcome(epoch=0)),
    ("Truncate: above what was confirmed", lambda copy: Truncate(Epoch(1), copy.last)),
    ("Truncate: below what was confirmed", lambda copy: Truncate(Epoch(1), copy.confirmed - 1)),
    ("Truncate: inside a record", lambda copy: Truncate(Epoch(1), copy.last + 1)),
    ("Truncate: of an older epoch", lambda copy: Truncate(Epoch(0), copy.last)),
    ("Reset: to an offset above this log's end", lambda copy: Reset(Epoch(1), 1 << 20)),
    ("Reset: to an offset below this log's end", lambda copy: Reset(Epoch(1), copy.last)),
    ("Refuse: OLDER_COPY", lambda copy: Refuse(Epoch(1), Refusal.OLDER_COPY, "why")),
    ("Refuse: any other reason", lambda copy: Refuse(Epoch(1), Refusal.LINEAGE, "why")),
    ("Chunk: the bytes that come next", lambda copy: copy.chunk(copy.end)),
    ("Chunk: part of a record", lambda copy: copy.chunk(copy.end, 20)),
    ("Chunk: bytes that came already", lambda copy: copy.chunk(copy.last, copy.end - copy.last)),
    ("Chunk: after a gap", lambda copy: copy.chunk(copy.end, offset=copy.end + 1)),
    ("Chunk: no valid record", _damaged),
    ("Chunk: of another epoch", lambda copy: copy.chunk(copy.end, epoch=2)),
    ("Heartbeat: all that was sent is here", lambda c: Heartbeat(Epoch(1), c.end, c.end, c.end)),
    ("Heartbeat: something was lost", lambda c: Heartbeat(Epoch(1), c.end, c.end, c.end + 1)),
    ("Heartbeat: of another epoch", lambda c: Heartbeat(Epoch(2), c.end, c.end, c.end)),
    ("Ack: a slave's frame", lambda copy: Ack(Epoch(1), 0, 0, "m", 1)),
)
# What else a slave is told: the name, the event, and how long after the session's begin.
TOLD: tuple[tuple[str, Event, int], ...] = (
    ("Connected", Connected(), 0),
    ("Received: no frame", Received(b"GET / HTTP/1.1"), 0),
    ("Flushed: nothing new is on disk", Flushed(), 0),
    ("Tick: at once", Tick(), 0),
    ("Tick: after the heartbeat interval", Tick(), 5000),
    ("Tick: nothing received for the housekeeping interval", Tick(), 20_001),
    ("Lost", Lost("closed"), 0),
)


def scenes() -> Iterator[Scene]:
    """Every event in every state."""
    for state in STATES:
        for name, event, later in TOLD:
            yield _played(Copy.made(state), name, event, later)
        for name, frame in FRAMES:
            copy = Copy.made(state)
            yield _played(copy, f"Received {name}", Received(_encode(frame(copy))))
        copy = Copy.made(state, durable=True)
        chunk = Received(_encode(copy.chunk(copy.end)))
        yield _played(copy, "Received Chunk: the next, and the disk counts", chunk)
        copy = Copy.made(state, durable=True)
        yield _played(copy, "Flushed: more came meanwhile, and the disk counts", Flushed())
        yield _played(copy, "Tick: not all is on disk, and the disk counts", Tick())
        copy = Copy.made(state, durable=True)
        welcome = Received(_encode(copy.welcome()))
        yield _played(copy, "Received Welcome: not all is on disk, and the disk counts", welcome)
        copy = Copy.made(state)
        flush(copy.slave)
        yield _played(copy, "Flushed: what was received is on disk", Flushed())
    yield from _of_damage()


def _of_damage() -> Iterator[Scene]:
    """The log of an elected group's member has lost its first record."""
    disk = close(Copy.made("READY").slave)
    disk._names["commitlog/" + disk.list("commitlog")[0]].seen[60] ^= 1
    copy = Copy.made("READY")
    copy.slave = open_slave(disk, role=BrokerRole.AUTO)
    copy.enter("HANDSHAKE")
    welcome = Received(_encode(copy.welcome(start=0)))
    yield _played(copy, "Received Welcome: the log is damaged, and counts", welcome)
    copy.slave.renew(7)
    copy.enter("HANDSHAKE")
    yield _played(copy, "Received Welcome: the log is damaged, and does not count", welcome)


def _played(copy: Copy, name: str, event: Event, later: int = 0) -> Scene:
    state = copy.slave.state.value
    said = copy.slave.step(event, MonoMs(AT_MS + later))
    return Scene(state, name, names(said), copy.slave.state.value)
