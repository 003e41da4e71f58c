"""Programs that use a cluster with users: those who set it up, administrators, and callers."""

from typing import Any

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.identity.access.gate import Gate
from duolog_server.node.identity.access.rules import Facts
from sim.accessadmins import QUOTAS, AccessAdmins
from sim.accesscallers import ADDRESSES, AccessCallers
from sim.accesscalls import TOPICS, AccessCalls
from sim.accesshistory import OK, UNKNOWN
from sim.accesswatch import AccessWatch
from sim.channels import Caller
from sim.confirmedtables import ConfirmedTables
from sim.credentials import ROOT
from sim.intouch import LOOK_MS
from sim.loop import SimLoop
from sim.node import Node
from sim.nodeusers import FIRST
from sim.stage import Stage
from sim.watchedguard import WatchedGuard


class AccessClients:
    """All these programs."""

    def __init__(self, cluster: Stage, tables: ConfirmedTables) -> None:
        self.world = world = cluster.world
        self.watch = AccessWatch(tables)
        self._calls = AccessCalls(cluster, self.watch)
        self.history = self._calls.history
        self._admins = AccessAdmins(self._calls)
        self._callers = AccessCallers(self._calls, self._admins)
        self._loop = SimLoop(
            lambda delay, do: world.after(delay, do),
            lambda: world.now / 1000,
            world.chance("access loop"),
        )
        for node in cluster.nodes:
            node.guard_of = self._guard
            node.on_answered.append(self.watch.answered)
            node.on_settled.append(self.watch.settled)

    def _guard(self, node: Node, gate: Gate, facts: Facts) -> MethodGuard:
        return WatchedGuard(node, gate, facts, self.watch)

    def begin(self) -> None:
        """Start all programs."""
        self.world.after(LOOK_MS, self._calls.touch.look)
        self._loop.run_now(self._begin)

    def _begin(self) -> None:
        programs = [self._set_up(), self._callers.listen(), self._callers.feed()]
        programs += [self._admins.administer(who) for who in range(len(QUOTAS))]
        programs += [self._callers.call(address) for address in ADDRESSES]
        for program in programs:
            self._loop.create_task(program)

    def drain(self) -> None:
        """Nothing more is changed."""
        self._calls.draining = True

    def unfinished(self) -> str:
        """What is still to be done; empty for nothing."""
        if not self._calls.ready:
            return "there are no users yet"
        return "an administrator waits for an answer" if self._admins.working else ""

    def stop(self) -> None:
        """The run is over."""
        self._loop.close()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        outcomes = [one.outcome for one in self.history.changes]
        return {
            "access_changed": outcomes.count(OK),
            "access_unknown": outcomes.count(UNKNOWN),
            "access_admitted": self.watch.admitted,
            "access_denied": self.watch.denied,
            "access_strangers": self.watch.unknown,
            "access_batches": self._callers.batches,
            "quota_passed": self.watch.quotas.passed,
            "quota_throttled": self.watch.quotas.throttled,
            "quota_waits_kept": self.watch.quotas.kept,
        }

    async def _set_up(self) -> None:
        """The first user makes a super user, who makes the topics."""
        made = wire.PutUserRequest(user=ROOT, password=self._calls.credentials.passwords[ROOT][0])
        made.super = made.create = True
        await self._until_done(stubs.AccessStub, "PutUser", made, Caller(certificate=FIRST))
        for topic in TOPICS:
            request = wire.TopicRequest(topic=topic, queues=1)
            root = Caller(certificate=ROOT)
            await self._until_done(stubs.AdminStub, "CreateTopic", request, root)
        self._calls.ready = True

    async def _until_done(self, service: Any, method: str, request: Any, caller: Caller) -> None:
        log = self.watch.log
        while True:
            try:
                await self._calls.ask(service, method, request, caller)
            except sdk.TopicExists:
                return
            except sdk.DuologError:
                if method == "PutUser" and ROOT in log.at(len(log)).users:
                    return  # an attempt before has done it
                await self._calls.pause(50)
            else:
                return
