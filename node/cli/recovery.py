"""What `duolog user recover` does: a super user with a new password, in every replica group."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from duolog._connection import Connection
from duolog._runtime import Runtime

from node.access.recovery import Claims, Place
from node.cli.access import runtime_of
from node.wire import recovery_pb2 as wire
from node.wire import recovery_pb2_grpc as stubs

if TYPE_CHECKING:
    from duolog import Client


@dataclass(frozen=True, slots=True)
class Recovered:
    """A user that was recovered in a replica group. node: the master that did it."""

    place: Place
    created: bool


async def recover_at(
    endpoints: tuple[str, ...], runtime: Runtime, claims: Claims, timeout: float
) -> Recovered:
    """Recover a user at the master of the group that these nodes belong to."""
    connection = Connection(endpoints, replace(runtime, frames=False, login=None))

    async def ask(left: float) -> Recovered:
        stub = stubs.RecoveryStub(connection.channel)  # type: ignore[arg-type]
        begun = await stub.Begin(wire.BeginRequest(), timeout=left)
        place = Place(begun.cluster, begun.group, begun.node)
        claim, mark = claims.answer(begun.challenge, place)
        request = wire.RecoverRequest(
            challenge=claim.challenge,
            user=claim.user,
            password_hash=claim.password_hash,
            mark=mark,
        )
        return Recovered(place, (await stub.Recover(request, timeout=left)).created)

    try:
        return await connection.call(ask, timeout)
    finally:
        await connection.close()


async def recover_everywhere(
    endpoints: str, client: "Client", claims: Claims, timeout: float
) -> list[Recovered]:
    """Recover a user in the group of some nodes, then in the others of their cluster.

    client: calls as that user, with its new password; it is made before, and used after the first.
    """
    given = tuple(word.strip() for word in endpoints.split(",") if word.strip())
    runtime = runtime_of(client)
    found = [await recover_at(given, runtime, claims, timeout)]
    router = client._router
    for group in await router.groups(timeout):
        if group != found[0].place.group:
            others = router.connection(group).endpoints
            found.append(await recover_at(others, runtime, claims, timeout))
    return found


__all__ = ["Recovered", "recover_at", "recover_everywhere"]
