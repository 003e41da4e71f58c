"""One run: clients at work, faults one after the other, then all healed, drained, compared."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import duolog
from duolog._background import Background

from duolog_server.chaos import checkers, linearizable
from duolog_server.chaos.checkers import Finding
from duolog_server.chaos.history import OK, History
from duolog_server.chaos.target import Target
from duolog_server.chaos.timeline import MASTER, SLAVE, Fault
from duolog_server.chaos.workload import Load, Workload, drain

HEALTHY_SECONDS = 90.0
SWITCH_ORDERS = 4  # a group that was healthy before each, and refuses all of them, is at fault
FIRST_ACK_SECONDS = 60.0
ENOUGH_SECONDS = 60.0  # at the end, for sends that are still wanting
CALL_SECONDS = 2.0
SAMPLE_SECONDS = 0.5
WORTH_OK = 0.5  # of all sends; a run in which fewer succeeded says little
LEFT_SECONDS = 60.0  # until a node that left the group can be forgotten
MASTER_STAYS = ("disk_full", "disk_hang", "etcd_kill", "stall")  # or is replaced: both are right
GAP_SECONDS = 0.5  # without an answer for so long puts are not available


class Invalid(Exception):
    """The run proves nothing: a fault did not happen, or nothing could be compared."""


@dataclass(slots=True)
class Failover:
    """One loss of the master: when, and how long until another one answered a put."""

    kind: str
    at: float
    seconds: float


@dataclass(slots=True)
class Result:
    """Settings and findings of a run."""

    history: History
    faults: list[Fault] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    epochs: list[tuple[float, int, str]] = field(default_factory=list)  # time, epoch, master
    refusals: list[str] = field(default_factory=list)  # of orders to switch that were given again
    findings: list[Finding] = field(default_factory=list)
    invalid: str = ""
    seconds: float = 0.0
    log_bytes: int = 0

    @property
    def passed(self) -> bool:
        """Whether the run found no fault and counts."""
        return not self.findings and not self.invalid

    def unavailable(self) -> list[tuple[float, float]]:
        """Spans without an answered put."""
        ends = [send.end for send in self.history.acknowledged()]
        return [(a, b) for a, b in itertools.pairwise(ends) if b - a > GAP_SECONDS]

    @property
    def longest_pause(self) -> float:
        """The longest time between two answered puts, in seconds."""
        ends = [send.end for send in self.history.acknowledged()]
        return max((b - a for a, b in itertools.pairwise(ends)), default=0.0)

    def quantile(self, kinds: tuple[str, ...], share: float) -> float:
        """Failover seconds after faults of these kinds; 0 where there were none."""
        found = sorted(row.seconds for row in self.failovers if row.kind in kinds)
        return found[min(len(found) - 1, int(share * len(found)))] if found else 0.0


class Run:
    """Carries a list of faults out on a target."""

    def __init__(
        self,
        target: Target,
        faults: list[Fault],
        load: Load,
        *,
        say: Callable[[str], None] = lambda text: None,
        quiet: float = 0.0,
    ) -> None:
        """quiet: seconds of work without any fault at the end."""
        self.target = target
        self.planned = faults
        self._say = say
        self._quiet = quiet
        self.history = History()
        self.result = Result(self.history)
        endpoints = [target.endpoint(node) for node in target.nodes]
        self.workload = Workload(endpoints, self.history, load)
        self._watching = Background(self._watch_failed)
        self._clients = {n: duolog.Client(target.endpoint(n), timeout=1.5) for n in target.nodes}
        self._master = ""
        self._epoch = 0
        self._before = 0  # the epoch that a fault meets

    async def carry_out(self) -> Result:
        """The whole run; a broken target is an invalid result, not an exception."""
        result, workload = self.result, self.workload
        try:
            await asyncio.to_thread(self.target.start)
            self._watching.start(self._watch())
            await self._healthy()
            workload.began = time.monotonic()
            await workload.start()
            for number, fault in enumerate(self.planned, 1):
                result.faults.append(await self._strike(fault))
                done = result.faults[-1]
                ok = self.history.outcomes()[OK] if number % 10 == 0 else 0
                told = f", {ok} acknowledged so far" if ok else ""
                self._say(f"{number}/{len(self.planned)} {done.kind} {done.hit}{told}")
            await asyncio.sleep(self._quiet)
            await self._healthy()
            await self._enough()
            await workload.stop()
            await self._compare()
            await workload.ask_all()
        except Invalid as error:
            result.invalid = str(error)
        except Exception as error:
            result.invalid = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                await workload.stop()
            await self._watching.stop()
            for client in self._clients.values():
                await client.close()
        result.seconds = workload.now()
        result.findings = checkers.check(self.history)
        result.findings += linearizable.findings(self.history)
        self._judge()
        return result

    def _judge(self) -> None:
        outcomes = self.history.outcomes()
        total = sum(outcomes.values())
        missing = [fault for fault in self.result.faults if not fault.happened]
        if self.result.invalid:
            return
        if len(self.result.faults) < len(self.planned) or missing:
            self.result.invalid = f"{len(missing) or 'some'} faults did not happen"
        elif outcomes[OK] < max(self.workload.load.least_ok, WORTH_OK * total):
            self.result.invalid = f"only {outcomes[OK]} of {total} sends were answered"
        elif never := [kind for kind, count in self.history.other_outcomes().items() if not count]:
            self.result.invalid = f"no data about {', '.join(never)}"

    async def _enough(self) -> None:
        """Wait until as many sends are answered as are asked for, on a slow machine, too."""
        least, until = self.workload.load.least_ok, time.monotonic() + ENOUGH_SECONDS
        while self.history.outcomes()[OK] < least and time.monotonic() < until:
            await asyncio.sleep(1)

    # -- watching ------------------------------------------------------------------------------

    def _watch_failed(self, error: Exception) -> None:
        """Epochs are missing: nothing can be said of the run."""
        self.result.invalid = f"the watcher failed: {type(error).__name__}: {error}"

    async def _watch(self) -> None:
        """Note masters and epochs as they come."""
        while True:
            await self._look()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _look(self) -> None:
        """Note the master of a later epoch than the last one known."""
        for status in await self._statuses():
            part = status.replication
            if part.role == "LEADING" and part.epoch > self._epoch:
                self._master, self._epoch = status.name, part.epoch
                row = (self.workload.now(), part.epoch, status.name)
                self.result.epochs.append(row)

    async def _statuses(self) -> list[Any]:
        async def ask(client: duolog.Client) -> Any:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    return await client.admin.node_status()
            except (duolog.DuologError, TimeoutError):
                return None

        found = await asyncio.gather(*(ask(client) for client in self._clients.values()))
        return [status for status in found if status is not None]

    async def _healthy(self) -> list[Any]:
        """Wait until one node leads and all are in its SyncStateSet. Raises Invalid."""
        until = time.monotonic() + HEALTHY_SECONDS
        statuses: list[Any] = []
        while time.monotonic() < until:
            statuses = await self._statuses()
            leading = [s for s in statuses if s.replication.role == "LEADING"]
            if len(statuses) == len(self.target.nodes) and len(leading) == 1:
                part = leading[0].replication
                if len(part.sync_state_set) == len(statuses) == part.in_sync_replicas:
                    self._master, self._epoch = leading[0].name, max(self._epoch, part.epoch)
                    return statuses
            await asyncio.sleep(0.05)
        told = [f"{s.name} {s.replication.role} {s.replication.reason}" for s in statuses]
        raise Invalid(f"not healthy again within {HEALTHY_SECONDS:g} s: {told}")

    # -- faults --------------------------------------------------------------------------------

    async def _strike(self, fault: Fault) -> Fault:
        if fault.healthy:
            await self._healthy()
        await asyncio.sleep(fault.gap)
        # A master that stalled for its lease was replaced: its death would be no failover.
        await self._look()
        master = self._master
        others = [node for node in self.target.nodes if node != master]
        roles = {MASTER: master, SLAVE: others[len(self.result.faults) % len(others)]}
        hit = roles.get(fault.node, fault.node)
        fault = replace(fault, other=roles.get(fault.other, fault.other))
        struck = self.workload.now()
        self._before = max([self._epoch, *self.workload.answered])
        undone = await self._act(fault, hit)
        return replace(fault, struck=struck, undone=undone, hit=hit)

    async def _first_answer(self, kind: str, since: float, epoch: int) -> None:
        """Wait for the first put that a master of a later epoch answered."""
        until = time.monotonic() + FIRST_ACK_SECONDS
        while not (later := [at for e, at in self.workload.answered.items() if e > epoch]):
            if time.monotonic() > until:
                raise Invalid(f"no put was answered within {FIRST_ACK_SECONDS:g} s after {kind}")
            await asyncio.sleep(0.002)
        row = Failover(kind, since - self.workload.began, min(later) - since)
        self.result.failovers.append(row)

    async def _lasting(
        self, fault: Fault, struck: float, undo: Callable[[], object], failover: bool
    ) -> float:
        """Wait as long as the fault lasts, but until another master answers at least; undo it."""
        since = time.monotonic()
        if failover:
            await self._first_answer(fault.kind, struck, self._before)
        await asyncio.sleep(max(0.0, since + fault.lasts - time.monotonic()))
        await asyncio.to_thread(undo)
        return self.workload.now()

    async def _act(self, fault: Fault, node: str) -> float:
        """Do what a fault is, and undo it when it has lasted. Raises Invalid for an unknown one."""
        if fault.kind == "switch":
            return await self._switch(fault)
        if fault.kind == "member":
            return await self._member(fault)
        target, member, nothing = self.target, len(self.result.faults) % 3, lambda: None
        acts: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "kill": (lambda: target.kill(node), lambda: target.revive(node)),
            "stall": (lambda: target.pause(node), lambda: target.resume(node)),
            "pause": (lambda: target.pause(node), lambda: target.resume(node)),
            "disconnect": (
                lambda: target.cut(node, "all", both=True),
                lambda: target.mend(node),
            ),
            "cut_one_way": (
                lambda: target.cut(node, fault.other or "all", both=False),
                lambda: target.mend(node),
            ),
            "restart": (lambda: target.restart(node), nothing),
            "etcd_kill": (lambda: target.kill_etcd(member), lambda: target.revive_etcd(member)),
            "disk_full": (lambda: target.fill_disk(node), lambda: target.free_disk(node)),
            "disk_hang": (lambda: target.hang_disk(node), lambda: target.free_hung_disk(node)),
            "power_cut_all": (target.power_cut_all, nothing),
        }
        if fault.kind not in acts:
            raise Invalid(f"unknown fault {fault.kind!r}")
        do, undo = acts[fault.kind]
        began, lost = time.monotonic(), node == self._master
        await asyncio.to_thread(do)
        # A process is gone as soon as it is struck, and comes back within the act of a restart.
        struck = began if fault.kind in ("kill", "restart") else time.monotonic()
        lost = lost and fault.kind not in MASTER_STAYS and fault.other not in target.nodes
        return await self._lasting(fault, struck, undo, lost or fault.kind == "power_cut_all")

    async def _switch(self, fault: Fault) -> float:
        async def order() -> None:
            async with duolog.Client(self.target.endpoint(self._master), timeout=10) as client:
                await client.admin.failover()

        async def refused(why: str) -> None:
            self.result.refusals.append(why)
            await self._healthy()
            self._before = max([self._epoch, *self.workload.answered])

        struck = await ordered(order, refused)
        return await self._lasting(fault, struck, lambda: None, True)

    async def _member(self, fault: Fault) -> float:
        """A node joins, counts as a member for a while, leaves, and is forgotten."""
        name = await asyncio.to_thread(self.target.join)
        self._clients[name] = duolog.Client(self.target.endpoint(name), timeout=1.5)
        await self._healthy()
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(self.target.leave, name)
        await self._clients.pop(name).close()
        await self._forgotten(name)
        return self.workload.now()

    async def _forgotten(self, node: str) -> None:
        """Have the master forget a node, which it does once the node has left the SyncStateSet."""
        until = time.monotonic() + LEFT_SECONDS
        while True:
            await self._healthy()
            try:
                return await self._clients[self._master].admin.forget(node)
            except duolog.DuologError as error:
                if time.monotonic() > until:
                    raise Invalid(f"{node} left, and cannot be forgotten: {error}") from error
            await asyncio.sleep(0.1)

    # -- the end -------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Read every replica from the beginning, and compare the logs byte by byte."""
        until = time.monotonic() + HEALTHY_SECONDS
        while True:
            statuses = await self._healthy()
            ends = {(status.max_offset, status.confirm_offset) for status in statuses}
            if len(ends) == 1 and len(set(*ends)) == 1:
                break
            if time.monotonic() > until:
                raise Invalid(f"the replicas do not come to one end: {sorted(ends)}")
            await asyncio.sleep(0.05)
        end = statuses[0].max_offset
        for node in self.target.nodes:
            endpoint = self.target.endpoint(node)
            self.history.drains[node] = {
                **await drain(endpoint, self.workload.topic, self.workload.queues, 30),
                **await drain(endpoint, self.history.transacted[0], 1, 30),
            }
        digests = {
            node: await asyncio.to_thread(self.target.log_digest, node, end)
            for node in self.target.nodes
        }
        self.result.log_bytes = end
        if len(set(digests.values())) != 1:
            raise Invalid(f"the logs differ below {end}: {digests}")


async def ordered(
    order: Callable[[], Awaitable[None]], refused: Callable[[str], Awaitable[None]]
) -> float:
    """Order a switch until the order is taken; when that was. Raises Invalid.

    Where all cores are in use, a node stalls for a lease now and then: the master was
    replaced by then, or its slave has left the set, and the order is refused for a good reason.
    refused: waits until the group is healthy again. One that is, and refuses all the same, is not
    asked for long: the order that it takes at last would hide what it said before.
    """
    for left in reversed(range(SWITCH_ORDERS)):
        struck = time.monotonic()
        try:
            await order()
        except duolog.DuologError as error:
            if not left:
                raise Invalid(f"{SWITCH_ORDERS} orders to switch were refused: {error}") from error
            await refused(str(error))
        else:
            break
    return struck
