"""A master's session with one slave in each of its states, and all that may happen to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from duolog_server.ha import frames, masterevents
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import Ack, Frame, Heartbeat
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Effect
from duolog_server.ha.slave import Slave
from duolog_server.store.clocks import MonoMs
from tests.ha.pair import Link, close, hello_of, mandate_of, open_master, open_slave, put
from tests.ha.scenes import Scene, names
from tests.known import known
from tests.support import drain

STATES = ("HANDSHAKE", "TRANSFER", "SUSPEND")
SEGMENT_RECORD = b"x" * 3000  # a few of them fill a segment
M, S = Replica("m", 1), Replica("s", 2)


@dataclass(slots=True)
class Session:
    """An elected master whose set is itself and one slave, and the connection looked at."""

    master: Master
    slave: Slave
    number: int

    @classmethod
    def made(
        cls, state: str, slave: Slave | None = None, master: Master | None = None
    ) -> "Session":
        """A put that only the slave can confirm waits; in TRANSFER it has been sent."""
        slave = slave or open_slave()
        master = master or elected(S)
        number = known(master.connect(MonoMs(0)))
        session = cls(master, slave, number)
        if state == "TRANSFER":
            session.receive(slave.hello())
            session.next_frame()
            end = put(master, b"x").end_offset
            assert master.await_slaves(end, MonoMs(0), "the put") is None
            session.next_frame()
        if state == "SUSPEND":
            session.receive(hello_of(slave, cluster="another"))
            session.next_frame()
        assert session.state == state, "as the scene begins"
        return session

    @property
    def state(self) -> str:
        session = self.master.sessions.get(self.number)
        return session.state.value if session is not None else "SHUTDOWN"

    def receive(self, frame: Frame) -> list[Effect]:
        return self.master.step(masterevents.Received(self.number, frames.encode(frame)), MonoMs(0))

    def next_frame(self, now: int = 0) -> tuple[str, ...]:
        data = self.master.next_frame(self.number, MonoMs(now))
        return (f"sends {type(frames.decode(data)).__name__}",) if data is not None else ()

    def ack(self, **changes: Any) -> Ack:
        end = self.master.store.log.max_offset
        return replace(Ack(self.master.epoch, end, 0, S.node, S.incarnation), **changes)

    def waiting(self) -> tuple[str, ...]:
        """Frames that are to be sent next."""
        session = self.master.sessions.get(self.number)
        waiting = [frames.decode(data) for data in session.outbox] if session is not None else []
        return tuple(f"sends {type(frame).__name__}" for frame in waiting)


def elected(*members: Replica) -> Master:
    """A master with a SyncStateSet, and its epoch open."""
    return open_master(mandate=mandate_of(M, *members))


def parted() -> Session:
    """The slave has records of an epoch that the master never saw."""
    first, slave = elected(S), open_slave()
    Link(first, slave).pump()
    put(first, b"of the first master only")
    Link(first, slave).pump()
    disk = close(open_master())
    master = open_master(disk, nonce=9, number=2, mandate=mandate_of(M))
    return Session.made("HANDSHAKE", slave, master)


def outlived(*members: Replica) -> Session:
    """The slave's log ends below the master's first segment."""
    master, slave = elected(*members), open_slave()
    Link(master, slave).pump()
    lose_first_segment(master)
    return Session.made("HANDSHAKE", slave, master)


def lose_first_segment(master: Master) -> None:
    while len(master.store.log.queue.files) < 3:
        put(master, SEGMENT_RECORD)
    drain(master.store)
    master.store.log.queue.remove(master.store.log.queue.files[0])


def twice() -> Session:
    """The same slave has another connection, in TRANSFER."""
    master, slave = elected(S), open_slave()
    Link(master, slave)
    return Session.made("HANDSHAKE", slave, master)


def acknowledged() -> Session:
    """The slave has all that there is and has said so."""
    session = Session.made("TRANSFER")
    session.receive(session.ack())
    return session


# A first Hello: its name, how the session is made.
HELLOS: tuple[tuple[str, Callable[[], Session]], ...] = (
    ("Hello: its log is a beginning of this one", lambda: Session.made("HANDSHAKE")),
    ("Hello: the same slave has an older connection", twice),
    ("Hello: its log diverges from this one", parted),
    ("Hello: its log ends below the first segment", outlived),
    ("Hello: a member of the set without what is confirmed", lambda: outlived(S)),
)
# What else a peer may send: its name, the frame.
FRAMES: tuple[tuple[str, Callable[[Session], Frame]], ...] = (
    ("Hello: of another cluster", lambda session: hello_of(session.slave, cluster="another")),
    ("Ack: all that was sent", lambda session: session.ack()),
    ("Ack: more than was sent", lambda session: session.ack(received=1 << 40)),
    ("Ack: of another node", lambda session: session.ack(node="other")),
    ("Ack: of another epoch", lambda session: session.ack(epoch=9)),
    ("Heartbeat: a master's frame", lambda session: Heartbeat(Epoch(1), 0, 0, 0)),
)


def scenes() -> Iterator[Scene]:
    """Every event in every state that it can meet."""
    for name, made in HELLOS:
        session = made()
        yield _received(session, name, session.slave.hello())
    for state in STATES:
        if state != "HANDSHAKE":
            session = Session.made(state)
            yield _received(session, "Hello: a second one", session.slave.hello())
        for name, frame in FRAMES:
            session = Session.made(state)
            yield _received(session, name, frame(session))
    session = acknowledged()
    yield _received(session, "Ack: the same once more", session.ack())
    session = acknowledged()
    yield _received(session, "Ack: less than before", session.ack(received=0))
    for state in STATES:
        session = Session.made(state)
        said = session.master.step(
            masterevents.Received(session.number, b"GET / HTTP/1.1"), MonoMs(0)
        )
        yield Scene(state, "bytes: that are no frame", names(said), session.state)
        yield from _of_time(state)
        session = Session.made(state)
        session.master.step(masterevents.Disconnected(session.number), MonoMs(0))
        yield Scene(state, "disconnect", (), session.state)


def _received(session: Session, name: str, frame: Frame) -> Scene:
    state, waiting = session.state, session.waiting()
    said = names(session.receive(frame))
    return Scene(state, name, said + session.waiting()[len(waiting) :], session.state)


def _of_time(state: str) -> Iterator[Scene]:
    session = Session.made(state)
    put(session.master, b"to come")
    yield Scene(state, "next_frame: the log goes on", session.next_frame(), session.state)
    session = Session.made(state)
    yield Scene(state, "next_frame: nothing is new", session.next_frame(), session.state)
    said = session.next_frame(5000)
    yield Scene(state, "next_frame: after the heartbeat interval", said, session.state)
    session = Session.made(state)
    said = names(session.master.step(masterevents.Tick(), MonoMs(1)))
    yield Scene(state, "tick: at once", said, session.state)
    said = names(session.master.step(masterevents.Tick(), MonoMs(10_000)))
    yield Scene(state, "tick: a put has waited too long", said, session.state)
    session = acknowledged() if state == "TRANSFER" else Session.made(state)
    said = names(session.master.step(masterevents.Tick(), MonoMs(20_001)))
    yield Scene(state, "tick: nothing received for the housekeeping interval", said, session.state)
    session = Session.made(state)
    lose_first_segment(session.master)
    said = names(session.master.step(masterevents.Tick(), MonoMs(1)))
    yield Scene(state, "tick: the segments it needs are removed", said, session.state)
