"""A simulated node's services: the node's own broker, on the node's simulated store and roles.

POP, delayed messages, transactions and the tables behind them run as they do in a process, on an
event loop of the simulation. Replication and elections are the simulated node's: the broker is told
of its roles, and its puts wait for what the machines say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from duolog import _errors as sdk

from duolog_server.ha.master import Master
from duolog_server.ha.slave import Slave
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.api.native import NodeFacts, moves_methods, native_methods
from duolog_server.node.broker import Broker
from duolog_server.node.core.turnbudget import without_budget
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.node.engine.log import Outcome
from duolog_server.node.identity.access.gate import Gate
from duolog_server.node.identity.access.rules import Facts
from duolog_server.node.net.methods import Methods
from duolog_server.node.replication.roles import Replication
from duolog_server.node.runtime.config import Config
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.errors import StoreError
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from sim.channels import GUARDED, SimServer
from sim.config import Setup
from sim.loop import SimLoop
from sim.nodeusers import users_of
from sim.witness import Violation
from sim.world import World

T = TypeVar("T")
Answer = Callable[[Any, Exception | None], None]

CHECK_AFTER_MS = 300
CHECK_AGAIN_MS = 250
CHECKS_MAX = 3
SNAPSHOT_SECONDS = 0.4
GROUP_GRACE_MS = 600
CALLBACKS_UNASKED = 3  # after so many the services are asked for their invariants: 3 % of a run


class Process(Protocol):
    """A simulated node, as its services see it."""

    name: str
    boot: int
    setup: Setup
    store: MessageStore
    master: Master | None
    slave: Slave | None
    world: World

    @property
    def group(self) -> str:
        """Its replica group."""

    def wall(self) -> WallMs:
        """The wall clock."""

    def mono(self) -> MonoMs:
        """The monotonic clock."""

    def seconds(self) -> float:
        """The monotonic clock, as an event loop reads it."""

    def later(self, delay: float, do: Callable[..., None]) -> None:
        """Do something after some ms, if the process still lives."""

    def flush_soon(self) -> None:
        """Have the commit log synced."""

    def known_master(self) -> tuple[str, int]:
        """Client address of the master that the registry names, and its epoch."""

    def ask_producer(self, check: Check) -> None:
        """Ask what became of a half message."""

    def join_others(self, broker: Broker) -> None:
        """Have the broker reach the cluster's other replica groups, if there are any."""

    def on_made(self, node: Any, broker: Broker) -> None:
        """The process has a broker, which has read nothing yet."""

    def guard_of(self, node: Any, gate: Gate, facts: Facts) -> MethodGuard:
        """What asks the gate before calls, where there are users."""

    # Told of each answered call: node, request, reply, the world's time when the request came.
    on_answered: list[Callable[[Any, Any, Any, float], None]]


class SimClock:
    """A node's two clocks."""

    def __init__(self, node: Process) -> None:
        self._node = node

    def wall_ms(self) -> WallMs:
        """The wall clock."""
        return self._node.wall()

    def mono_ms(self) -> MonoMs:
        """The monotonic clock."""
        return self._node.mono()


class SimReplicas:
    """What the broker's log knows of the simulated replication."""

    def __init__(self, node: Process, replication: Replication) -> None:
        self._node = node
        self._replication = replication

    @property
    def waits(self) -> bool:
        """Puts wait for slaves."""
        return self._replication.waits

    @property
    def syncs(self) -> bool:
        """Puts wait for this node's disk, whatever its own settings say."""
        return self._replication.syncs

    def appended(self) -> None:
        """The log grew: it is sent after this event; durable acknowledgements want a sync."""
        if self._node.setup.durable:
            self._node.later(0.0, self._node.flush_soon)

    def await_slaves(self, end_offset: PhyOffset) -> Outcome:
        """What becomes of a stored put that waits for slaves."""
        return self._replication.await_slaves(end_offset)

    def flushed(self) -> None:
        """The node says so itself."""

    def tick(self) -> None:
        """The node does so itself."""


class SimBroker(Broker):
    """A broker whose background work fails the run."""

    group_grace_ms = GROUP_GRACE_MS
    failure: Exception | None = None

    def give_up(self, error: Exception) -> None:
        """The process ends."""
        self.failure = self.failure or error


class Services:
    """The broker of one process, and its event loop."""

    def __init__(self, node: Process) -> None:
        """After recovery."""
        self.node = node
        self.loop = SimLoop(
            node.later, node.seconds, node.world.chance(f"loop:{node.name}:{node.boot}")
        )
        without_budget(self.loop)
        self._validated = 0  # so many callbacks had run when the broker was last asked
        self.broker = self.loop.run_now(self._make)
        process = f"{node.name}:{node.boot}"
        self.access = users_of(self.broker, process) if node.setup.users else None
        self.rpc = SimServer(node, self._methods(), self._spawn, self._failed)  # type: ignore[arg-type]
        self.rpc.answered = self._answered
        self.loop.run_now(self._start)

    def _make(self) -> SimBroker:
        node = self.node
        config = Config.model_validate(
            {
                "node": {
                    "name": node.name,
                    "cluster": "sim",
                    "group": node.group,
                    "advertise": f"{node.name}:1",
                },
                "ha": asdict(node.setup.ha_options()),
                "limits": {"topics_max": node.setup.topics_max},
                "transactions": {
                    "timeout_ms": CHECK_AFTER_MS,
                    "check_interval_ms": CHECK_AGAIN_MS,
                    "check_max": CHECKS_MAX,
                },
            }
        )
        broker = SimBroker(config, node.store, SimClock(node))
        replication = broker.replication
        replication.slave, replication.elected = node.slave, True
        replication.known_master = node.known_master
        node.join_others(broker)
        broker.log.connect(SimReplicas(node, replication), broker.admission.refused_put)
        node.on_made(node, broker)
        broker.metadata.load()
        broker.filters.start()
        broker.transactions.askers.append(self._ask)
        return broker

    def _methods(self) -> Methods:
        """For programs that name no user, and with a guard before them for others."""
        methods, access = native_methods(self.broker), self.access
        methods.by_path |= moves_methods(self.broker).by_path
        if access is not None:
            guard = self.node.guard_of(self.node, access.gate, NodeFacts(self.broker))
            for path, handler in native_methods(self.broker, access, guard).by_path.items():
                methods.by_path[GUARDED + path] = handler
        return methods

    def _answered(self, request: Any, reply: Any, came: float) -> None:
        for tell in self.node.on_answered:
            tell(self.node, request, reply, came)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self.loop.run_now(lambda: self.loop.create_task(work))

    def _failed(self, error: Exception) -> None:
        """A call met what no call may meet."""
        self.broker.failure = self.broker.failure or error

    def _start(self) -> None:
        broker = self.broker
        for part in broker.parts:
            broker.background.start(part.run())
        if self.access is not None or self.node.setup.expires:
            broker.background.start(self._save_tables())

    async def _save_tables(self) -> None:
        """Snapshots, as a node writes them: at its start, and then more often."""
        while True:
            await self.broker.metadata.save()
            await asyncio.sleep(SNAPSHOT_SECONDS)

    async def _ask(self, check: Check) -> bool:
        """Ask the producer of a half message, who may answer later."""
        self.node.ask_producer(check)
        return True

    # -- what the node tells -------------------------------------------------------------------

    def roles_changed(self) -> None:
        """The node became a master or a slave."""
        replication = self.broker.replication
        led = replication.master is not None
        replication.master, replication.slave = self.node.master, self.node.slave
        if replication.master is not None:
            self.loop.run_now(self.broker.leads)
        elif led:
            self.loop.run_now(self.broker.follows)

    def tables(self) -> bytes:
        """What a master tells whoever begins to follow it."""
        return self.broker.metadata.snapshot_bytes()

    def adopt(self, tables: bytes) -> None:
        """A slave takes its master's tables."""
        self.loop.run_now(lambda: self.broker.metadata.adopt_snapshot(tables))

    def flushed(self) -> None:
        """The commit log was synced."""
        self.loop.run_now(self.broker.log.group_commit.release)

    def freeze(self) -> None:
        """The process does nothing any more."""
        self.loop.frozen = True

    def settle(self) -> None:
        """After every event: tell of what was dispatched. Raises what the background work did."""
        self.loop.run_now(self.broker.log.announce)
        self.loop.run_now(self.broker.replication.refusals.release_if_settled)
        if self.broker.failure is not None:
            failure, self.broker.failure = self.broker.failure, None
            raise failure
        if self.loop.handled >= self._validated + CALLBACKS_UNASKED:
            self._validated = self.loop.handled
            wrong = self.broker.validate()
            if wrong:
                raise Violation(f"{self.node.name}: {wrong}")

    def released(self, token: Any, status: Any) -> None:
        """A put of the broker is answered."""
        if not token.done():
            self.loop.run_now(lambda: token.set_result(status))

    def stop(self) -> None:
        """The process dies."""
        self.rpc.stop()
        self.loop.close()

    # -- calls ---------------------------------------------------------------------------------

    def serve(self, work: Callable[[Broker], Awaitable[T]], answer: Answer) -> None:
        """A client's call: what it came to, unless the process dies before."""
        self.loop.run_now(lambda: self.loop.create_task(self._serve(work, answer)))

    async def _serve(self, work: Callable[[Broker], Awaitable[T]], answer: Answer) -> None:
        try:
            result = await work(self.broker)
        except asyncio.CancelledError:
            raise
        except (sdk.DuologError, StoreError) as error:
            answer(None, error)
        except Violation as violation:
            self.broker.failure = violation
        except Exception as error:
            self.broker.failure = error
        else:
            answer(result, None)
