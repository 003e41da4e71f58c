"""Receives: consumers get single messages with leases (POP), within their quotas.

A protocol decodes what its client asks for to a `PopRequest`, and encodes the deliveries.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.pop.popservice import Popped, PopRequest, PopService
from duolog_server.store.metadata import check_group


class Receives:
    """Receives of every protocol: admitted, charged, and held until there are messages."""

    def __init__(self, core: Core, pop: PopService) -> None:
        self._core = core
        self._pop = pop

    async def receive(self, request: PopRequest, deadline: float, who: Who) -> list[Popped]:
        """Messages, as soon as there are any, and who asks is not over a quota.

        deadline: in the time of the event loop; none are found by then. Raises Busy, NotMaster, and
        as `admit`.
        """
        await self.admit(request.group)
        if not self._core.throttle.on:
            return await self._pop.wait(request, deadline)
        return await self._within_quotas(request, deadline, who)

    async def admit(self, group: str) -> None:
        """Create a group on its first use.

        Raises BadGroup, NoPermission where it may not consume, and the errors of a change of
        metadata.
        """
        metadata = self._core.metadata
        row = metadata.tables.groups.get(group)
        if row is None:
            check_group(group)
            await metadata.ensure_group(group)
        elif not row.get("consumeEnable", True):
            raise sdk.NoPermission(f"group {group!r} may not consume")

    async def _within_quotas(self, request: PopRequest, deadline: float, who: Who) -> list[Popped]:
        throttle, topic = self._core.throttle, request.topic

        def may() -> bool:
            return throttle.read(who, topic, request.group, again=True) is None

        while await throttle.may_read(who, topic, deadline, request.group) is None:
            _, count = throttle.at_once(who, topic, 1, request.count)
            # Of many that waited for the same messages, the first one may have used the quota up.
            found = await self._pop.wait(replace(request, count=count), deadline, may)
            if found or asyncio.get_running_loop().time() >= deadline:
                size = sum(size_of(popped.body, popped.properties) for popped in found)
                throttle.sent(who, topic, size, len(found))
                return found
        return []  # none now: clients ask again


def size_of(body: bytes, properties: Mapping[str, str]) -> int:
    """Bytes that a message counts for quotas: as in a batch, body and properties."""
    return len(body) + sum(len(name) + len(value) + 2 for name, value in properties.items())
