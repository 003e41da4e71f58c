"""The replica groups of a cluster, and a connection to each that follows its master.

A cluster has one group or several; a topic's queues may lie in any of them. A client that knows one
node learns the rest from it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from duolog._background import Joint
from duolog._checks import checked_text
from duolog._connection import Connection
from duolog._errors import DuologError, Unavailable, UnknownTopic
from duolog._forks import Owned
from duolog._runtime import MACHINE, Runtime
from duolog.wire import duolog_pb2 as wire

T = TypeVar("T")
FRESH_SECONDS = 30.0
INCOMPLETE_SECONDS = 0.5  # while a group has no node with an address: it may have one soon


class Router(Owned):
    """Connections by group."""

    def __init__(self, endpoints: tuple[str, ...], runtime: Runtime = MACHINE) -> None:
        super().__init__()
        self.runtime = runtime
        self._seed = Connection(endpoints, runtime)
        self._connections: dict[str, Connection] = {}
        self._slaves: dict[str, Connection] = {}
        self._routes: dict[str, wire.GroupRoute] = {}
        self._left: list[Connection] = []  # of groups that have retired, for calls that run
        self._fresh_until = 0.0
        self._asking: Joint[None, None] = Joint()

    @property
    def seed(self) -> Connection:
        """A connection to any of the given nodes."""
        return self._seed

    async def groups(self, timeout: float) -> list[str]:
        """Names of the groups that can be reached, sorted. Raises Unavailable, Timeout."""
        self.check_process()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._fresh_until:
            deadline = loop.time() + timeout
            await self._asking.call(
                None, lambda: self._ask(max(0.001, deadline - loop.time())), deadline
            )
        return sorted(self._connections)

    @property
    def has_choice(self) -> bool:
        """More than one group can be reached."""
        return len(self._connections) > 1

    def reaches(self, group: str) -> bool:
        """Whether `connection` has one to a group."""
        return group in self._connections

    def unreachable(self) -> list[str]:
        """Groups of the cluster of which no node told an address yet: they may hold any topic."""
        return sorted(self._routes.keys() - self._connections.keys())

    async def staying(self, timeout: float) -> list[str]:
        """`groups` without those that retire now, which get no new topics and queues."""
        self._fresh_until = 0.0
        names = await self.groups(timeout)
        leaving = {name for name, route in self._routes.items() if route.retiring}
        return [name for name in names if name not in leaving]

    async def all_groups(self, timeout: float) -> list[str]:
        """All groups of the cluster, for changes that must count in each: `everywhere` makes none
        where one of them cannot be reached. Raises as `groups`.
        """
        return [*await self.groups(timeout), *self.unreachable()]

    async def _ask(self, timeout: float) -> None:
        request = wire.RouteRequest()

        async def asked(left: float) -> wire.RouteReply:
            reply: wire.RouteReply = await self._seed.admin.Route(request, timeout=left)
            # A node that has just started, or one for which all registrations have expired.
            if not self._connections and not any(map(_endpoints, reply.groups)):
                raise Unavailable(
                    f"{self._seed.endpoint} does not know the address of any node yet"
                )
            return reply

        try:
            reply = await self._seed.call(asked, timeout)
        except Exception:
            if self._connections:  # what was known is better than nothing
                return
            raise
        for route in reply.groups:
            self._routes[route.group] = route
            endpoints = _endpoints(route)
            if route.group not in self._connections and endpoints:
                alone = len(reply.groups) == 1 and not self._connections
                self._connections[route.group] = (
                    self._seed if alone else Connection(endpoints, self.runtime)
                )
        told = {route.group for route in reply.groups}
        for name in [name for name, route in self._routes.items() if route.retiring]:
            if name not in told:  # it has left
                del self._routes[name]
                self._left.append(self._connections.pop(name, self._seed))
        seconds = INCOMPLETE_SECONDS if self.unreachable() else FRESH_SECONDS
        self._fresh_until = asyncio.get_running_loop().time() + seconds

    async def reach(self, group: str, timeout: float) -> Connection:
        """`connection`, also for a client's first call, or a new group.

        Raises as `groups` and `connection`.
        """
        if group not in self._connections:
            self._fresh_until = 0.0
            await self.groups(timeout)
        return self.connection(group)

    def connection(self, group: str) -> Connection:
        """A connection to a group's master, if known: see `reach`.

        Raises UnknownTopic for a group that no node told of, Unavailable for one that has no node
        with an address now.
        """
        if type(group) is not str:
            checked_text("group", group)
        found = self._connections.get(group)
        if found is None and group in self._routes:
            raise Unavailable(f"no node of replica group {group!r} can be reached now")
        if found is None:
            raise UnknownTopic(f"replica group {group!r} does not exist")
        return found

    async def everywhere(
        self,
        make: Callable[[Connection, float], Awaitable[T]],
        timeout: float,
        *,
        but: type[DuologError] | None = None,
        groups: Sequence[str] | None = None,
        patient: bool = True,
    ) -> list[T]:
        """Do something in every replica group; what the groups said.

        timeout: seconds. but: an error that some of them may answer with; raised where all of them
        do. groups: those alone. patient: wait for a master that no other node will replace.
        """
        names = list(groups) if groups is not None else await self.groups(timeout)
        connections = [self.connection(name) for name in names]

        def one(connection: Connection) -> Awaitable[T]:
            return connection.call(lambda left: make(connection, left), timeout, patient=patient)

        answers = await asyncio.gather(*map(one, connections), return_exceptions=True)
        found: list[T] = []
        excused: BaseException | None = None
        for answer in answers:
            if not isinstance(answer, BaseException):
                found.append(answer)
            elif but is not None and isinstance(answer, but):
                excused = answer
            else:
                raise answer
        if not found and excused is not None:
            raise excused
        return found

    def reading(self, group: str) -> Connection:
        """A new connection, of the caller's own, to any node of a group."""
        found = self.connection(group)
        others = (endpoint for endpoint in found.endpoints if endpoint != found.endpoint)
        return Connection((found.endpoint, *others), self.runtime)

    def slaves(self, group: str) -> Connection:
        """A connection to a slave of a group, preferably in sync; else to its master."""
        known = self._slaves.get(group)
        if known is None:
            given = self.connection(group).endpoints
            route = self._routes.get(group, wire.GroupRoute())
            replicas = [replica for replica in route.replicas if replica.endpoint]
            slaves = [r for r in replicas if r.endpoint != route.master_endpoint]
            self.runtime.chance.shuffle(slaves)  # readers spread over them
            slaves.sort(key=lambda replica: not replica.in_sync)
            first = [replica.endpoint for replica in slaves]
            known = Connection((*first, *(e for e in given if e not in first)), self.runtime)
            self._slaves[group] = known
        return known

    def replicas(self, group: str) -> list[str]:
        """Endpoints of all nodes of a group, as far as they are known."""
        route = self._routes.get(group, wire.GroupRoute())
        return [replica.endpoint for replica in route.replicas if replica.endpoint]

    async def close(self) -> None:
        """Close all connections."""
        if self.forked:
            return
        await self._asking.stop()
        of_groups = (*self._connections.values(), *self._slaves.values(), *self._left)
        for connection in {self._seed, *of_groups}:
            await connection.close()


def _endpoints(route: wire.GroupRoute) -> tuple[str, ...]:
    return tuple(replica.endpoint for replica in route.replicas if replica.endpoint)
