"""A simulated node: the real store and the real machines, driven by the scheduler."""

import asyncio
import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from duolog_server.ha import identity, masterevents
from duolog_server.ha.beginnings import beginning
from duolog_server.ha.epochs import Epoch, holds_what_it_noted, recover_history
from duolog_server.ha.failover import Failover
from duolog_server.ha.failoverevents import Contradicted, FoundOlder, Lead
from duolog_server.ha.frames import encode
from duolog_server.ha.identity import Identity, LastRun
from duolog_server.ha.localreplica import LocalReplica, Member
from duolog_server.ha.master import Master
from duolog_server.ha.options import HaOptions
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Connected, Effect, Flushed, Lost, Received, Tick, perform
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.broker import Broker
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.node.identity.access.gate import Gate
from duolog_server.node.identity.access.rules import Facts
from duolog_server.store.clocks import AgeClock, MonoMs, StoreClock, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.disk import no_room
from duolog_server.store.errors import BadStoreDirectory, RepeatUnknown, StoreError
from duolog_server.store.flush import FlushSchedule, QueuesFlush
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueflushes import at_once
from duolog_server.store.reader import GetResult, Wanted
from duolog_server.store.status import WEAK, BrokerRole, PutMessageStatus
from sim.agent import Agent
from sim.answers import Answers
from sim.config import RESERVED_MS, Setup
from sim.decay import decay
from sim.disk import SimDisk
from sim.etcd import SimEtcd
from sim.ghost import Ghost
from sim.network import End, Network, stream
from sim.platter import LogBytes
from sim.registryview import RegistryView
from sim.services import Services, SimClock
from sim.standstill import Standstill
from sim.stepfaults import Stopped, Trap, TrappedStore, Traps
from sim.witness import Violation
from sim.world import World

WALL_MS = 1_700_000_000_000
TICK_MS = 60.0
FORGETTING = 0.03  # how often one is forgotten before it gets a message
FLUSH_TICK_MS = 100.0
RECONNECT_MS = 60.0
MAPPED_MAX = 60  # of a node with services: their topics have queues, too
MANY_BYTES = 1  # of a chunk whose records dispatch need not scan: of every one, as all are small
ROUND_MS = 200.0  # between rounds of retention
DAMAGED = "damaged"  # why a node lacks what it had, beside the kinds of older copies

Reply = Callable[[PutMessageStatus, PutResult | None], None]


class Node:
    """One replica. `boot` counts its processes: events scheduled by an older one are dropped."""

    def __init__(
        self, world: World, network: Network, name: str, setup: Setup, ghost: Ghost
    ) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.setup = setup
        self.ghost = ghost
        self.chance = world.chance(f"node:{name}")
        self.forgetting = world.chance(f"forgetting:{name}")
        self.decaying = world.chance(f"decay:{name}")
        self.chance_of_reset = world.chance(f"resets:{name}")
        self.disk = SimDisk(world.chance(f"disk:{name}"), self.wall)
        self.rate = self.chance.uniform(0.99, 1.01)
        self.base = self.chance.randint(0, 1 << 40)
        self.wall_rate = world.chance(f"wall:{name}").uniform(0.99, 1.01)
        self.wall_offset = 0
        self.boot = 0
        self.up = False
        self.bytes = LogBytes(self.disk)
        self.lost_power = False  # since it last held everything
        self.lost_disk = False  # since it last held everything
        self.adopted = b""  # the master's tables, as they came with the last handshake
        self.needs_reboot = False  # a sync failed: the page cache differs from the platter
        self.cuts = 0
        self.truncated_bytes = 0  # of the running slave's, as far as it was looked at
        self.standstill = Standstill(world)
        self.sync_ms = 1.0
        self.follows = ""
        self.ordered = BrokerRole.SLAVE  # its role, as it was told at its start
        self.weak = False  # starts with settings that ask for less than its group promises
        self.is_weak = False  # its process has them
        self.misled = False  # advertises a replication address of nobody, once its group is open
        self.unreachable = False  # its process does
        self.etcd: SimEtcd
        self.agent: Agent | None = None
        self.incarnation = 0
        self.older = ""  # it runs on an older copy, or without a segment, and has not caught up
        self.tainted = False  # lost power, and has not detected it yet
        self.store: MessageStore
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.services: Services | None = None
        self.answers: Answers | None = None  # those of its own log, where a run asks for them
        # Called with the broker of a process, which has read nothing yet.
        self.on_made: Callable[[Node, Broker], None] = lambda *_: None
        # Called with the result of a call before it is sent: request, reply, time of arrival.
        self.on_answered: list[Callable[[Node, Any, Any, float], None]] = []
        # Makes what asks the gate before calls, where there are users.
        self.guard_of: Callable[[Node, Gate, Facts], MethodGuard] = lambda _, gate, facts: (
            MethodGuard(gate, facts)
        )
        # Sends a check to a half message's producer.
        self.on_check: Callable[[Node, Check], None] = lambda node, check: None
        self.on_settled: list[Callable[[Node], None]] = []  # after each event, with services
        self.peers: dict[str, Node] = {}
        self.others: dict[str, Node] = {}  # of other replica groups
        self.registry: RegistryView | None = None  # as its process reads it, where these are
        self.traps = Traps()  # of the whole run
        self.on_stopped: Callable[[Node, Trap], None] = lambda node, trap: None
        self.problems: list[str] = []
        self._ends: dict[int, End] = {}
        self._stream: End | None = None
        self._spare: End | None = None
        self._flushing = False
        self._flush_again = False
        self._cuttings = 0
        self._unnamed = -1  # start of a segment that it lost, and has not told of yet
        self.lost_segments = 0
        self.expires_below = 0  # segments up to here may be deleted, once they have expired
        self.unknowing = False  # nothing in its directory knows how far expired queues reached

    @property
    def group(self) -> str:
        """Its replica group."""
        return self.etcd.keys.group

    @property
    def machine(self) -> Failover | None:
        """Its failover machine, if masters are elected."""
        return self.agent.machine if self.agent is not None else None

    # -- clocks and events ---------------------------------------------------------------------

    def mono(self) -> MonoMs:
        """Monotonic ms: runs a little fast or slow, and differs from every other node's."""
        return MonoMs(self.base + int(self.world.now * self.rate))

    def seconds(self) -> float:
        """The monotonic clock, as an event loop reads it."""
        return (self.base + self.world.now * self.rate) / 1000

    def wall(self) -> WallMs:
        """Wall clock in ms: runs at its own rate, and may jump."""
        return WallMs(WALL_MS + int(self.world.now * self.wall_rate) + self.wall_offset)

    def store_ms(self) -> WallMs:
        """The time for the next record, as in a node."""
        return self._store_clock.now(self.wall(), self.mono(), self.store.log.last_store_time)

    def guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        """An action of this process: dropped after its death, delayed while it is paused."""
        boot = self.boot

        def run(*arguments: Any) -> None:
            if self.boot != boot or not self.up:
                return
            if self.standstill.defers(lambda: run(*arguments)):
                return
            try:
                do(*arguments)
            except OSError as error:
                self._end(error)
                return
            except Stopped:
                pass  # in the middle of what it did
            self._settle()

        return run

    def _end(self, error: OSError) -> None:
        """The disk fails: the process ends."""
        self.world.note(f"{self.name} dies: {error.strerror}")
        self.ghost.failed(self)
        self.die()

    def _stopped(self, trap: Trap, store: TrappedStore) -> None:
        """The process stops in the middle of a step; its log is still copied, then it is killed."""
        self.world.note(f"{self.name} stops {trap.fault.other}")
        if self.services is not None:
            self.services.freeze()

        def gone() -> None:
            if self.up and self.store is store:
                self.on_stopped(self, trap)

        self.world.after(trap.hold_ms, gone)

    @property
    def stopped(self) -> bool:
        """It only copies."""
        return isinstance(self.store, TrappedStore) and self.store.stopped

    def later(self, delay: float, do: Callable[..., None]) -> None:
        """Run an action after some ms, if the process is still alive."""
        self.world.after(delay, self.guarded(do))

    def _settle(self) -> None:
        """After every event: dispatch, send, check."""
        if not self.up:
            return
        while self.store.dispatch():
            pass
        if self.services is None:
            self.store.take_arrivals()
        elif not self.stopped:
            try:
                self.services.settle()
            except OSError as error:
                self._end(error)
                return
            for look in self.on_settled:
                look(self)
        if self.master is not None:
            self._send()
        self.ghost.settled(self)

    # -- life ----------------------------------------------------------------------------------

    def start(self, role: BrokerRole, follows: str = "") -> bool:
        """Recover and start in a role; False if the disk prevents it."""
        assert not self.up, "a node runs once"
        self.boot += 1
        self.bytes = LogBytes(self.disk)
        self.truncated_bytes = 0
        self.follows = follows
        self.ordered = role
        decayed = decay(self.disk, self.decaying, self.setup.decay_share)
        if decayed:
            self.ghost.mark("decayed")
            self.world.note(f"{self.name} finds {decayed}")
        self.agent = self.services = self.answers = None
        if self.setup.services:
            self.disk.mapped_max = MAPPED_MAX
        options = self.setup.store_options(role)
        self.store = store = TrappedStore(self.disk, options, boot_id=f"boot-{self.cuts}")
        store.traps, store.stop = self.traps, lambda trap: self._stopped(trap, store)
        self.store.events.problem = self.problems.append
        self._store_clock = StoreClock()
        self.master = self.slave = None
        self._ends, self._stream, self._spare = {}, None, None
        self._flushing = self._flush_again = False
        self._unflushed: list[tuple[int, Callable[[], None]]] = []
        failed_syncs = self.disk.failed_syncs
        try:
            self._recover(role)
        except OSError as error:
            return self._cannot_start(error, failed_syncs)
        except BadStoreDirectory as error:
            return self._refused(error)
        self._age_clock = AgeClock(store.log.last_store_time)
        self._knows_what_it_gave()
        self._names_what_it_lost()
        self.up = True
        if self.setup.services:
            self.services = Services(self)
        if self.setup.classic:
            self.answers = self._own_answers()
        if role is BrokerRole.AUTO:
            try:
                promised = self.etcd.promised(self.setup.in_sync)
                self.is_weak, self.unreachable = self.weak and promised, self.misled and promised
                self.agent = Agent(
                    self, self.etcd, self.incarnation, f"{self.chance.getrandbits(64):x}"
                )
            except OSError as error:
                return self._cannot_start(error, failed_syncs)
        self.ghost.started(self)
        log = self.store.log
        self.world.note(f"{self.name} up {role.value} [{log.min_offset}, {log.max_offset})")
        self.later(TICK_MS, self._tick)
        self._schedule = FlushSchedule.of(self.store.options)
        self.later(FLUSH_TICK_MS, self._flush_what_is_due)
        self._segments: dict[int, float] | None = None  # when those of the log were made, at most
        if self.setup.expires:
            self.later(0.0, self._delete_expired)
        if self.setup.durable:
            self.flush_soon()
        if self.follows:
            self.later(1.0, self._connect)
        self._settle()
        return True

    def _cannot_start(self, error: OSError, failed_syncs: int) -> bool:
        """failed_syncs: of the disk, when the start began; one more needs a reboot as well."""
        self.world.note(f"{self.name} cannot start: {error.strerror}")
        self.up = False
        self.disk.kill()
        self.stop_loops()
        if self.disk.failed_syncs > failed_syncs:
            self.ghost.sync_failed(self)
        return False

    def _refused(self, error: BadStoreDirectory) -> bool:
        """It would give queue offsets again: its operator has it copied from another node."""
        if not self.unknowing:
            raise Violation(f"{self.name} refuses to start: {error}")
        self.ghost.mark("refused_as_unknowing")
        self.disk.kill()
        self.empty_disk()
        self.lost_disk, self.unknowing, self.tainted = True, False, False
        return False

    def _knows_what_it_gave(self) -> None:
        if self.unknowing and self.store.log.min_offset:
            raise Violation(f"{self.name} starts, and nothing tells it how far its queues reached")

    def reboot_if_needed(self) -> None:
        """Reboot after a failed sync, as the page cache then differs from the platter."""
        if self.needs_reboot:
            self.needs_reboot = False
            self.disk.power_cut()
            self.cuts += 1

    def _recover(self, role: BrokerRole) -> None:
        store = self.store
        report = store.start()
        history = recover_history(store)
        held_all = holds_what_it_noted(store, history)
        who = identity.settle(
            self.disk,
            Identity(self.name, self.chance.getrandbits(64), boot_id=f"boot-{self.cuts}"),
            LastRun(
                log_empty=store.log.max_offset == store.log.min_offset,
                abnormal=report.abnormal,
                acks_durable=self.setup.durable,
                lacks_confirmed=report.lacks_confirmed or not held_all,
            ),
        )
        store.checkpoint.settle()
        self.incarnation, self.tainted = who.incarnation, False
        me = Member("sim", self.group, self.name, f"{self.name}:1")
        replica = LocalReplica(store, me, who, history)
        if store.role is BrokerRole.SLAVE:
            self.slave = Slave(replica)
            self.slave.many_bytes = MANY_BYTES
        else:
            self.master = Master(replica, self.ha_options(), self._tables)
            self.master.open_epoch(self.chance.getrandbits(64), self.store_ms())

    def ha_options(self) -> HaOptions:
        """Of replication. A weak node asks for one replica since its group promised more."""
        options = self.setup.ha_options()
        return replace(options, in_sync_replicas=1) if self.is_weak else options

    def _tables(self) -> bytes:
        """A master's metadata, for new slaves."""
        assert self.master is not None, "masters are asked"
        told = f"{self.name} {self.master.epoch} {self.boot}".encode()
        return told if self.services is None else self.services.tables() + b"\n" + told

    def become_master(self, lead: Lead) -> Master:
        """Become the master. Raises OSError or StoreError if the disk prevents it."""
        assert self.slave is not None, "slaves are elected"
        self.follow("")
        slave = self.slave
        self._cuttings += 1
        self.store.change_role(BrokerRole.SYNC_MASTER)
        master = Master(slave.replica, self.ha_options(), self._tables, mandate=lead.mandate)
        began = beginning(lead.cause, lead.unled_since_ms, slave.followed_ms, self.mono())
        master.open_epoch(self.chance.getrandbits(64), self.store_ms(), lead.epoch, began)
        self.world.note(f"{self.name} leads epoch {lead.epoch}")
        self.master, self.slave = master, None
        if self.services is not None:
            self.services.roles_changed()
        if self.setup.durable:
            self.flush_soon()
        return master

    def become_slave(self) -> None:
        """End the mastership, if there is one."""
        if self.slave is not None:
            self.store.change_role(BrokerRole.SLAVE)  # of a mastership that could not begin
            return
        assert self.master is not None, "it is one of both"
        master, self.master = self.master, None
        masterevents.perform(master.step(masterevents.Ended(), self.mono()), self)
        for number in list(self._ends):
            end = self._ends.pop(number)
            end.close()
        self.store.change_role(BrokerRole.SLAVE)
        self.slave = Slave(master.replica)
        self.slave.many_bytes = MANY_BYTES
        self.truncated_bytes = 0
        if self.services is not None:
            self.services.roles_changed()

    def follow(self, target: str) -> None:
        """Copy another node's log from now on; empty: none."""
        self.follows = target
        if self._stream is not None:
            end = self._stream
            end.close()
            self._lost(end, "another master")
        elif target:
            self.later(1.0, self._connect)

    def die(self) -> None:
        """SIGKILL: no goodbye; whether the kernel resets streams is random."""
        if not self.up:
            return
        self.up = False
        self.disk.kill()
        self.stop_loops()
        ends = [*self._ends.values(), self._stream, self._spare]
        for end in ends:
            if end is not None and self.chance.random() < 0.7:
                end.close()
            elif end is not None:
                end.closed = True
        self.ghost.died(self)

    def _own_answers(self) -> Answers:
        if self.services is not None:
            return Answers(self.services.broker.log, self.services.loop)
        chance = self.world.chance(f"answers:{self.name}:{self.boot}")
        return Answers.of_node(self, SimClock(self), chance)

    def stop_loops(self) -> None:
        """The process, or the run, is over: none of its coroutines outlives it."""
        if self.registry is not None:
            self.registry.stop()
        if self.services is not None:
            self.services.stop()
        elif self.answers is not None:
            self.answers.stop()

    def empty_disk(self) -> None:
        """Its directory is removed."""
        self.incarnation = 0
        self.replace_disk(SimDisk(self.chance, self.wall))

    def replace_disk(self, disk: SimDisk) -> None:
        """Its directory is another one from now on."""
        self.disk = disk
        self.bytes = LogBytes(disk)
        self.ghost.disk_replaced(self)

    def lose_disk(self) -> None:
        """The machine gets an empty disk."""
        self.die()
        self.empty_disk()
        self.lost_disk = True

    def lose_segment(self, name: str) -> None:
        """A file of its log is lost, which it must report when it starts."""
        self.die()
        path = f"commitlog/{name}"
        self.disk.remove(path)
        self.disk.sync_dir("commitlog")
        self.bytes = LogBytes(self.disk)
        self.older, self.lost_disk = DAMAGED, True
        self._unnamed = int(name)
        self.lost_segments += 1

    def _names_what_it_lost(self) -> None:
        start, self._unnamed = self._unnamed, -1
        if start >= 0 and not any(f"[{start}, " in problem for problem in self.problems):
            raise Violation(f"{self.name} starts without its segment {start}, and names it nowhere")

    def begin_anew(self) -> bool:
        """Follow the advice of a refusal: empty the directory, unless any of it was confirmed."""
        if self.store.known_confirmed:
            return False
        self.ghost.mark("emptied")
        self.die()
        self.empty_disk()
        return True

    def power_cut(self) -> None:
        """The machine loses power, and all unsynced data."""
        self.die()
        self.disk.power_cut()
        self.cuts += 1
        self.lost_power = self.tainted = True
        self.ghost.lost_power(self)

    # -- puts and reads ------------------------------------------------------------------------

    def told_end(self) -> tuple[int, int]:
        """Up to where the log is confirmed, as clients are told: offset, nonce of its epoch."""
        end = self.store.confirm_offset
        part = self.master or self.slave
        return (end, part.history.entry_at(end - 1).nonce) if part is not None else (0, 0)

    def put(self, batch: PutBatch, known_end: tuple[int, int], reply: Reply) -> None:
        """A producer's request.

        known_end: confirmed before its first attempt, as it was told. The network may repeat any
        request, so each counts as one that was sent before.
        """
        master = self.master
        if self.stopped:
            return
        if master is None or master.stopped(self.mono()):
            reply(PutMessageStatus.SERVICE_NOT_AVAILABLE, None)
            return
        if master.refusal():
            self.ghost.mark("in_sync_replicas_not_enough")
            reply(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, None)
            return
        try:
            self.ghost.accepts(self, master, self._wanted_in_sync())
            if batch.light_queues and self.forgetting.random() < FORGETTING:
                self._forget(batch.light_queues[0], master)
            batch = replace(batch, repeat_of=master.history.held_from(*known_end))
            result = self.store.put(batch, self.store_ms())
        except RepeatUnknown:
            self.ghost.mark("repeat_unknown")
            reply(PutMessageStatus.UNKNOWN_ERROR, None)
            return
        if result.status is not PutMessageStatus.PUT_OK:
            reply(result.status, result)
            return
        if self.setup.durable:
            self.flush_soon()
        ends = batch.columns.body_offsets
        last = batch.columns.bodies[int(ends[-2]) : int(ends[-1])].tobytes()

        def answer(status: PutMessageStatus) -> None:
            if self.master is not master:
                pass  # an answer on its way, of a mastership that is over
            elif status in WEAK:
                self.ghost.stored(self, last)
            elif status is PutMessageStatus.PUT_OK:
                if (
                    self.answers is None
                    and self.agent is not None
                    and self.mono() >= self.agent.deadline_ms
                ):
                    raise Violation(f"{self.name} acknowledges after its lease's deadline")
                self.ghost.acknowledged(self, last)
            self.ghost.mark(status.value.lower())
            reply(status, result)

        if self.answers is not None:
            self.answers.when_settled(result.end_offset, answer)
            return
        status = master.await_slaves(result.end_offset, self.mono(), answer)
        if status is not None:
            self._answer_when_flushed(result.end_offset, lambda: answer(status))
        elif self.agent is None:
            self.ghost.accepts(self, master, self.setup.in_sync)

    def _answer_when_flushed(self, end: int, answer: Callable[[], None]) -> None:
        """Who waits for no slave waits for this node's own sync, where that was asked for."""
        if self.ordered is BrokerRole.ASYNC_MASTER and self.store.local_offset < end:
            self._unflushed.append((end, answer))
        else:
            answer()

    def _wanted_in_sync(self) -> int:
        """The number of replicas that must be in sync for a put."""
        setup = self.setup
        if self.ordered is BrokerRole.ASYNC_MASTER:
            return 1
        return setup.min_in_sync if self.agent is None else setup.in_sync

    def _forget(self, name: str, master: Master) -> None:
        """Forget a light queue as the broker does: by a record that is safe before it counts."""
        store = self.store
        batch = PutBatch("forgotten", 0, Columns.of([name.encode()]), WALL_MS)
        result = store.put(batch, self.store_ms())
        if result.status is not PutMessageStatus.PUT_OK:
            return
        if self.setup.durable:
            self.flush_soon()
        store.hold_light_queues([name])

        def decided(status: PutMessageStatus) -> None:
            safe = status is PutMessageStatus.PUT_OK and self.store is store
            if safe:
                self.ghost.forgotten(name, store.topic_queue_table.get((name, 0), 0))
            store.release_light_queues([name], forgotten=safe)

        status = master.await_slaves(result.end_offset, self.mono(), decided)
        if status is not None:
            decided(status)

    def read(self, topic: str, queue_id: int, offset: int) -> GetResult:
        """A consumer's request."""
        return self.store.get(topic, queue_id, QueueOffset(offset), Wanted(32, 16 << 10))

    def known_master(self) -> tuple[str, int]:
        """Client address of the master that the registry names, and its epoch."""
        if self.agent is None:
            return "", 0
        machine = self.agent.machine
        master, state = machine.known_master, machine.view.state
        return (master.endpoint, state.epoch) if master and state else ("", 0)

    def join_others(self, broker: Broker) -> None:
        """Have a broker of this process reach the other groups, if there are any."""
        if self.others:
            self.registry = RegistryView(self, broker)

    def ask_producer(self, check: Check) -> None:
        """Send a check for a half message."""
        self.on_check(self, check)

    def may_be_behind(self) -> bool:
        """Others may have confirmed more: a slave, a master that has only begun.

        With roles by hand nobody tells a master that its directory is an older copy.
        """
        if self.master is None or self.agent is None:
            return self.master is None or bool(self.older)
        return not self.master.epoch_confirmed

    # -- flushing ------------------------------------------------------------------------------

    def flush_soon(self, pages: int = 0) -> None:
        """Group commit: one sync at a time; the next one covers all puts that came meanwhile."""
        if self._flushing:
            self._flush_again = True
            return
        self.store.log.commit()
        job = self.store.log.queue.flush_job(pages)
        if job is None:
            return
        self._flushing = True
        self._sync(job.run)
        before = self._cuttings
        self.later(self.sync_ms * self.chance.uniform(0.3, 2.0), lambda: self._flushed(job, before))

    def _sync(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            # The node fences itself and ends; the page cache cannot be trusted after that.
            self.store.fence("sync failed")
            self.tell(masterevents.Ended())
            self.ghost.sync_failed(self)
            raise OSError(errno.EIO, "fenced") from error

    def _flushed(self, job: FlushJob, cuttings: int) -> None:
        self._flushing = False
        if cuttings == self._cuttings:  # what cuts files waits for syncs in a node
            self._take_flushed(job)
        if self._flush_again:
            self._flush_again = False
            self.flush_soon()

    def _take_flushed(self, job: FlushJob) -> None:
        self.store.commit_log_flushed(job)
        self.ghost.check(self)
        if self.services is not None:
            self.services.flushed()
        elif self.answers is not None:
            self.answers.flushed()
        while self._unflushed and self._unflushed[0][0] <= self.store.local_offset:
            self._unflushed.pop(0)[1]()
        self.tell(masterevents.Flushed())
        if self.slave is not None:
            self._do(self.slave.step(Flushed(), self.mono()))

    def tell(self, event: masterevents.Event) -> None:
        """Pass an event to the master's machine; does nothing on a slave."""
        if self.master is not None:
            masterevents.perform(self.master.step(event, self.mono()), self)

    def schedule_ms(self) -> MonoMs:
        """The clock of the flush schedule, as in a node."""
        return self.mono()

    def _flush_what_is_due(self) -> None:
        """Run the due flushes, by the schedule of a node and in its order."""
        store, schedule, now = self.store, self._schedule, self.schedule_ms()
        pages = schedule.commit_log.due(now)
        if pages is not None and not self.setup.durable:
            self.flush_soon(pages)
        pages = schedule.queues.due(now)
        if pages is not None:
            store.retention.check_space()
            work = QueuesFlush(store, pages)
            at_once(work.gather())  # a node has other work between the steps, and more queues
            self._sync(work.sync)
            if work.settle():
                self._sync(store.checkpoint.flush)
        if schedule.note.due(now) is not None and store.checkpoint.note.unsynced:
            store.note_confirmed()
            self._sync(store.checkpoint.flush)
        self.later(FLUSH_TICK_MS, self._flush_what_is_due)

    def _delete_expired(self) -> None:
        """A round of retention, as in a node. No segment goes before its time."""
        store, now = self.store, self.world.now
        since, known = -math.inf if self._segments is None else now - ROUND_MS, self._segments or {}
        made = {mapped.start: known.get(mapped.start, since) for mapped in store.log.queue.files}
        age_ms = self._age_clock.now(self.wall(), self.mono())
        limit = min(store.dispatcher.reput_from, self.expires_below)
        if store.retention.round(age_ms, 4, limit).segments:
            self.ghost.mark("expired")
        for start, began in made.items():
            if start < store.log.min_offset and now - began < 0.97 * RESERVED_MS:
                raise Violation(f"{self.name} deletes segment {start} after {now - began:.0f} ms")
        self._segments = made
        self.later(ROUND_MS, self._delete_expired)

    @property
    def is_flushed(self) -> bool:
        """Log and queues are on disk."""
        return self.store.flushed_offset >= self.store.log.max_offset and not (
            self.store.queues.touched
        )

    def _tick(self) -> None:
        self.tell(masterevents.Tick())
        if self.slave is not None:
            self._do(self.slave.step(Tick(), self.mono()))
        self.later(TICK_MS, self._tick)

    # -- as a master ---------------------------------------------------------------------------

    def accept(self, end: End) -> None:
        """A slave's stream arrives."""
        if self.master is None:
            end.close()
            return
        number = self.master.connect(self.mono())
        if number is None:
            end.close()
            return
        self._ends[number] = end
        end.on_frame = self.guarded(lambda data: self._received(number, data))
        end.on_close = self.guarded(lambda: self._hung_up(number))

    def _received(self, number: int, data: bytes) -> None:
        self.tell(masterevents.Received(number, data))

    def _hung_up(self, number: int) -> None:
        self._ends.pop(number, None)
        self.tell(masterevents.Disconnected(number))

    def release(self, tokens: Sequence[Any], status: PutMessageStatus) -> None:
        """Answer the puts that waited."""
        for token in tokens:
            if isinstance(token, asyncio.Future):
                part = self.services or self.answers
                assert part is not None, "whose puts these are"
                part.released(token, status)
            else:
                token(status)

    def confirmed(self) -> None:
        """Every event ends with dispatch and sending."""

    def close(self, session: int, reason: str) -> None:
        """End a connection."""
        self.world.note(f"{self.name} closes {session}: {reason}")
        end = self._ends.pop(session, None)
        if end is not None:
            end.close()

    def _send(self) -> None:
        assert self.master is not None, "masters send"
        now = self.mono()
        for number, end in list(self._ends.items()):
            frame = self.master.next_frame(number, now)
            while frame is not None:
                end.send(frame)
                frame = self.master.next_frame(number, now)

    def reset_streams(self) -> None:
        """All connections break."""
        for end in [*self._ends.values(), self._stream]:
            if end is not None:
                end.close()
        for number in list(self._ends):
            self._hung_up(number)
        if self._stream is not None:
            self._lost(self._stream, "reset")

    # -- as a slave ----------------------------------------------------------------------------

    def _connect(self) -> None:
        target = self.peers.get(self.follows)
        if self.slave is None or self._stream is not None or not self.follows:
            return
        network = self.network
        if target is None or not target.up or network.is_cut(self.name, target.name):
            self.later(RECONNECT_MS * self.chance.uniform(0.5, 2), self._connect)
            return
        ours, theirs = stream(network, self.name, target.name)
        self._stream = ours
        ours.on_frame = self.guarded(lambda data: self._got(ours, data))
        ours.on_close = self.guarded(lambda: self._lost(ours, "closed by the master"))
        self.world.after(network.delay(), target.guarded(lambda: target.accept(theirs)))
        self.later(2 * network.weather.delay_max, lambda: self._hello(ours))

    def _hello(self, ours: End) -> None:
        if self._stream is ours and self.slave is not None:
            self.adopted = b""
            self._do(self.slave.step(Connected(), self.mono()))

    def double_connect(self) -> None:
        """Open a second connection of this slave, which repeats everything on the first one."""
        target = self.peers.get(self.follows)
        if self.slave is None or target is None or not target.up or self._stream is None:
            return
        ours, theirs = stream(self.network, self.name, target.name)
        target.guarded(lambda: target.accept(theirs))()
        self._spare = ours
        ours.send(encode(self.slave.hello()))

    def _got(self, ours: End, data: bytes) -> None:
        if self._stream is not ours or self.slave is None:
            return
        if self.slave.state is ConnectionState.HANDSHAKE:
            self._cuttings += 1
        try:
            effects = self.slave.step(Received(data), self.mono())
        except OSError as error:
            if not no_room(error):
                raise
            self.ghost.mark("slave_disk_full")
            effects = self.slave.suspend("no room")
        except StoreError as error:
            effects = self.slave.suspend(str(error))
        self._do(effects)
        self.ghost.applied(self)

    def _do(self, effects: list[Effect]) -> None:
        perform(effects, self)

    def send(self, data: bytes) -> None:
        """Send a frame to the master."""
        for end in (self._stream, self._spare):
            if end is not None:
                end.send(data)

    def applied(self) -> None:
        """Every event ends with dispatch."""

    def adopt(self, metadata: bytes) -> None:
        """Take the master's tables for this node's own; the observer looks for what came."""
        tables, _, self.adopted = metadata.rpartition(b"\n")
        if self.services is not None:
            self.services.adopt(tables)

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks what was confirmed."""
        self.world.note(f"{self.name} contradicts epoch {epoch}: {reason}")
        self.ghost.mark("contradicted")
        if self.agent is not None:
            self.agent.step(Contradicted(epoch, reason))

    def older_copy(self, reason: str) -> None:
        """This node lacks what it has acknowledged."""
        self.ghost.mark("refused_as_older")
        if self.agent is not None:
            self.agent.step(FoundOlder(reason))

    def close_stream(self, reason: str) -> None:
        """End the connection."""
        if self._stream is not None:
            end = self._stream
            end.close()
            self._lost(end, reason)

    def _lost(self, ours: End, reason: str) -> None:
        if self._stream is not ours or self.slave is None:
            return
        suspended = self.slave.state is ConnectionState.SUSPEND
        self.world.note(f"{self.name} lost its master: {self.slave.reason or reason}")
        if suspended:
            self.ghost.mark("suspended")
        self._stream = None
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        self.slave.step(Lost(reason), self.mono())
        self.later(RECONNECT_MS * self.chance.uniform(0.5, 2), self._connect)

    # -- facts ---------------------------------------------------------------------------------

    def log_bytes(self, start: int, end: int) -> bytes:
        """Bytes of the log; short where it does not have them all."""
        log = self.store.log
        found = bytearray()
        while start < end:
            piece = log.get_data(start)[: end - start].tobytes()
            if not piece:
                break
            found += piece
            start += len(piece)
        return bytes(found)
