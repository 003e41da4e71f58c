"""`duolog user recover`: gives a super user a new password, in every replica group."""

from dataclasses import dataclass, replace

import grpc
from duolog import BadRequest, NotMaster, Timeout, Unauthenticated, Unavailable
from duolog._connection import Connection
from duolog._errors import error_of
from duolog._runtime import Runtime

from duolog_server.node.identity.access.recovery import Claims, Place
from duolog_server.node.wire import recovery_pb2 as wire
from duolog_server.node.wire import recovery_pb2_grpc as stubs


@dataclass(frozen=True, slots=True)
class Recovered:
    """A user that was recovered in a replica group.

    Attributes:
        place: the master that did it.
        created: there was no user of that name.
        others: endpoints of the cluster's other groups, by name.
    """

    place: Place
    created: bool
    others: dict[str, tuple[str, ...]]


async def recover_at(
    endpoints: tuple[str, ...], runtime: Runtime, claims: Claims, timeout: float
) -> Recovered:
    """Recover a user at the master of the group that these nodes belong to."""
    connection = Connection(endpoints, replace(runtime, frames=False, login=None))

    async def ask(left: float) -> Recovered:
        stub = stubs.RecoveryStub(connection.channel)  # type: ignore[arg-type]
        try:
            return await _recover(stub, claims, left)
        except grpc.RpcError as failure:
            error = error_of(failure)
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                error = BadRequest(
                    f"the node at {connection.endpoint} has no users to recover: it has no "
                    "access.key_file, or its version is an earlier one"
                )
            if isinstance(error, BadRequest | Unauthenticated):
                raise error from None  # it is about the key, and not about who calls
            raise

    try:
        return await connection.call(ask, timeout)
    finally:
        await connection.close()


async def _recover(stub: stubs.RecoveryStub, claims: Claims, timeout: float) -> Recovered:
    begun = await stub.Begin(wire.BeginRequest(), timeout=timeout)
    place = Place(begun.cluster, begun.group, begun.node)
    claim, mark = claims.answer(begun.challenge, place)
    request = wire.RecoverRequest(
        challenge=claim.challenge,
        user=claim.user,
        password_hash=claim.password_hash,
        mark=mark,
    )
    reply = await stub.Recover(request, timeout=timeout)
    others = {group.name: tuple(group.endpoints) for group in reply.others}
    return Recovered(place, reply.created, others)


async def recover_everywhere(
    endpoints: tuple[str, ...], runtime: Runtime, claims: Claims, timeout: float
) -> list[Recovered]:
    """Recover a user in the group of some nodes, then in the others of their cluster.

    No call is made as that user: its new password does not travel. Raises Unavailable where
    another group has no master.
    """
    first = await recover_at(endpoints, runtime, claims, timeout)
    found = [first]
    for group, nodes in sorted(first.others.items()):
        try:
            if not nodes:
                raise Unavailable("no node of it can be reached")
            found.append(await recover_at(nodes, runtime, claims, timeout))
        except (Unavailable, NotMaster, Timeout) as error:
            raise Unavailable(
                f"user {claims.user!r} is not recovered in replica group {group!r}: {error}: "
                "repeat the command as soon as that group has a master"
            ) from None
    return found
