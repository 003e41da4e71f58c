"""How programs call nodes that have users, and what is noted of the changes that they ask for."""

import asyncio
from typing import Any

import grpc.aio
from duolog import _errors as sdk

from sim.accesshistory import OK, REFUSED, AccessHistory
from sim.accesswatch import AccessWatch
from sim.channels import Caller, SimChannel
from sim.credentials import ROOT, Credentials
from sim.intouch import InTouch
from sim.stage import Stage
from sim.witness import Violation

TOPICS = ("qa", "qb", "ra")
CALL_SECONDS = 0.9
ASKED_ANYWHERE = ("TestAccess", "Pull")
# Errors after which it is certain that nothing changed.
NOTHING = (
    sdk.BadRequest,
    sdk.NotMaster,
    sdk.Busy,
    sdk.Unauthenticated,
    sdk.NoPermission,
    sdk.TopicExists,
)


class AccessCalls:
    """The calls of one run's programs."""

    def __init__(self, cluster: Stage, watch: AccessWatch) -> None:
        self.chance = cluster.world.chance("access")
        self.watch = watch
        self.history = AccessHistory()
        self.credentials = Credentials(watch)
        self.touch = InTouch(cluster)
        self.ready = False  # there are users and topics
        self.draining = False  # nothing more is changed
        self._cluster = cluster

    async def pause(self, mean_ms: float) -> None:
        """Some time passes."""
        await asyncio.sleep(self.chance.expovariate(1 / mean_ms) / 1000)

    async def until_ready(self) -> None:
        """Wait until there are users and topics."""
        while not self.ready:
            await self.pause(50)

    def channel(self, caller: Caller, of_master: bool) -> SimChannel:
        """To a node; for changes mostly to the one that leads."""
        master = self._cluster.keeper.master
        node = self.chance.choice(self._cluster.nodes)
        if of_master and master is not None and self.chance.random() < 0.9:
            node = master
        return SimChannel(self._cluster.network, node, caller)

    async def ask(self, service: Any, method: str, request: Any, caller: Caller) -> Any:
        """Call a method. Raises what the SDK would raise."""
        stub = service(self.channel(caller, method not in ASKED_ANYWHERE))
        try:
            return await getattr(stub, method)(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise sdk.error_of(error) from None

    async def make(
        self,
        service: Any,
        method: str,
        request: Any,
        what: tuple[str, str, str],
        caller: Caller | None = None,
    ) -> None:
        """Ask for a change. what: its kind, its subject, and its mark. caller: in place of root."""
        log = self.watch.log
        change = self.history.begin(*what, len(log))
        try:
            await self.ask(service, method, request, caller or Caller(certificate=ROOT))
        except NOTHING:
            change.outcome = REFUSED
        except sdk.DuologError:
            pass
        else:
            change.outcome = OK
            end = self.history.place(change, log.changes(change.began)) + 1
            if getattr(request, "create", False) and change.subject in log.at(end - 1).users:
                raise Violation(f"{change} is answered as new, and was there")
            self.watch.acknowledge(end)
            self.touch.acknowledged(end)
