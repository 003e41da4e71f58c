"""A master's and slaves' machines, joined without a network: frames go straight across."""

import random
from dataclasses import replace
from typing import Any

from duolog_server.ha import frames, identity, masterevents
from duolog_server.ha.epochs import Epoch, recover_history
from duolog_server.ha.frames import Ack, Hello
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.handshake import tail_of
from duolog_server.ha.identity import Identity, LastRun
from duolog_server.ha.localreplica import LocalReplica, Member
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Close, Effect
from duolog_server.ha.options import HaOptions
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import (
    CloseStream,
    Connected,
    Contradicts,
    Flushed,
    FlushSoon,
    OlderCopy,
    Received,
    Send,
)
from duolog_server.ha.waiters import Release
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.options import StoreOptions
from duolog_server.store.status import BrokerRole, PutMessageStatus
from sim.disk import SimDisk
from tests.support import flush_log, options

NOW = WallMs(1_700_000_000_000)


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed), lambda: 0.0)


def open_store(disk: SimDisk, role: BrokerRole, **changes: Any) -> MessageStore:
    chosen: StoreOptions = options(broker_role=role, message_index_enable=False, **changes)
    store = MessageStore(disk, chosen)
    store.start()
    return store


def mandate_of(
    me: Replica, *others: Replica, deadline: int = 1 << 60, opened: bool = True
) -> Mandate:
    """Of a master whose set is settled."""
    members = frozenset((me, *others))
    return Mandate(me, members, members, MonoMs(deadline), opened)


def new_master(disk: SimDisk | None = None, name: str = "m", **how: Any) -> Master:
    """A SYNC_MASTER that needs one slave, whose epoch is not opened yet.

    mandate: of an elected master.
    """
    ha = {key: how.pop(key) for key in list(how) if key in HaOptions.__dataclass_fields__}
    role = how.pop("role", BrokerRole.SYNC_MASTER)
    has_slaves = how.pop("has_slaves", True)
    mandate = how.pop("mandate", None)
    store = open_store(disk or new_disk(), role, **how)
    who = identity.settle(
        store.disk,
        Identity(name, 1, boot_id="boot"),
        LastRun(log_empty=False, abnormal=False, acks_durable=False),
    )
    return Master(
        LocalReplica(store, Member("c", "g", name, "m:1"), who, recover_history(store)),
        HaOptions(**ha),
        has_slaves=has_slaves,
        mandate=mandate,
    )


def open_master(
    disk: SimDisk | None = None, name: str = "m", nonce: int = 7, number: int = 0, **how: Any
) -> Master:
    """A master as `new_master` makes it, on a disk that may hold something already.

    number: of its epoch; 0: the next one that is known there.
    """
    master = new_master(disk, name, **how)
    master.open_epoch(nonce, NOW, Epoch(number))
    return master


def open_slave(disk: SimDisk | None = None, name: str = "s", **how: Any) -> Slave:
    """role: AUTO for a slave of an elected group; with roles by hand where it is not given."""
    role = how.pop("role", BrokerRole.SLAVE)
    store = open_store(disk or new_disk(1), role, **how)
    who = identity.settle(
        store.disk,
        Identity(name, 2, boot_id="boot"),
        LastRun(log_empty=False, abnormal=False, acks_durable=False),
    )
    me = Member("c", "g", name, f"{name}:1")
    return Slave(LocalReplica(store, me, who, recover_history(store)))


def close(machine: Master | Slave) -> SimDisk:
    """Let go of a store as a kill does; its disk."""
    disk = machine.store.disk
    assert isinstance(disk, SimDisk)
    disk.kill()
    return disk


def put(master: Master, *bodies: bytes, topic: str = "T", sequence: int = 0) -> PutResult:
    result = master.store.put(
        PutBatch(topic, 0, Columns.of(list(bodies)), NOW, sequence=sequence), NOW
    )
    assert result.status is PutMessageStatus.PUT_OK
    return result


def fill(master: Master, left: int) -> None:
    """Put one message after which so many bytes are left in the segment."""
    first = put(master, b"x")
    overhead = first.end_offset - first.physical_offset - 1
    body = -first.end_offset % master.store.log.queue.file_size - left - overhead
    while body > 1000:
        result = put(master, b"y" * 900)
        body -= result.end_offset - result.physical_offset
    if body > 0:
        put(master, b"z" * body)


class Link:
    """One connection of a slave to a master."""

    def __init__(self, master: Master, slave: Slave, now: int = 0) -> None:
        self.master = master
        self.slave = slave
        self.closed = ""
        self.effects: list[Effect] = []
        self.told: list[Contradicts | OlderCopy] = []  # for the failover machine
        number = master.connect(MonoMs(now))
        assert number is not None
        self.number = number
        self.from_slave(slave.step(Connected(), MonoMs(now)), now)

    def from_slave(self, effects: list[Any], now: int = 0) -> None:
        for effect in effects:
            match effect:
                case Send(data):
                    self.to_master(data, now)
                case CloseStream(reason):
                    self.closed = reason
                    self.master.step(masterevents.Disconnected(self.number), MonoMs(0))
                case Contradicts() | OlderCopy():
                    self.told.append(effect)
                case FlushSoon():
                    flush(self.slave)
                    self.from_slave(self.slave.step(Flushed(), MonoMs(now)), now)

    def to_master(self, data: bytes, now: int = 0) -> None:
        for effect in self.master.step(masterevents.Received(self.number, data), MonoMs(now)):
            self.effects.append(effect)
            if isinstance(effect, Close) and effect.session == self.number:
                self.closed = effect.reason

    def pump(self, now: int = 0) -> None:
        """Let everything flow until nothing is left to say."""
        while not self.closed:
            frame = self.master.next_frame(self.number, MonoMs(now))
            if frame is None:
                return
            self.from_slave(self.slave.step(Received(frame), MonoMs(now)), now)

    @property
    def released(self) -> list[Any]:
        return [
            token
            for effect in self.effects
            if isinstance(effect, Release)
            for token in effect.tokens
        ]


def flush(machine: Master | Slave) -> None:
    flush_log(machine.store)


def log_bytes(store: MessageStore) -> bytes:
    found, at = bytearray(), int(store.log.min_offset)
    while at < store.log.max_offset:
        piece = store.log.get_data(at).tobytes()
        found += piece
        at += len(piece)
    return bytes(found)


def hello_of(slave: Slave, **changes: Any) -> Hello:
    return replace(slave.hello(), **changes)


def ack(master: Master, number: int, received: int, durable: int = 0, **changes: Any) -> list[Any]:
    """An acknowledgement as the session's own slave would send it, with changes."""
    session = master.sessions[number]
    frame = Ack(master.epoch, received, durable, session.node, session.incarnation)
    return master.step(
        masterevents.Received(number, frames.encode(replace(frame, **changes))), MonoMs(0)
    )


__all__ = ["ConnectionState", "Link", "ack", "hello_of", "open_master", "open_slave", "tail_of"]
