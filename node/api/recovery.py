"""The Recovery service: a super user for who has the key file, and no password any more.

No user is asked for: the proof of the key takes its place. It is served over gRPC alone.
"""

from collections.abc import Callable, Mapping, Sequence

from duolog_server.node.api.access import AccessService
from duolog_server.node.api.calls import Caller, unary
from duolog_server.node.identity.access.recovery import Claim, Place, Recovery
from duolog_server.node.wire import recovery_pb2 as wire
from duolog_server.node.wire import recovery_pb2_grpc as stubs
from duolog_server.node.wirecodec import peer_host

Groups = Mapping[str, Sequence[str]]  # endpoints of their nodes, by name


class RecoveryService(stubs.RecoveryServicer):
    """Checks the proof; the change itself is made as all of users."""

    def __init__(
        self,
        users: AccessService,
        recovery: Recovery,
        place: Place,
        others: Callable[[], Groups],
    ) -> None:
        """place: this node. others: the other replica groups of the cluster."""
        self._users = users
        self._recovery = recovery
        self._place = place
        self._others = others
        self.caught_up = users.caught_up

    @unary
    async def Begin(self, request: wire.BeginRequest, context: Caller) -> wire.BeginReply:
        """A challenge of the master."""
        self._users.check_changes()
        place = self._place
        challenge = self._recovery.begin()
        return wire.BeginReply(
            challenge=challenge, cluster=place.cluster, group=place.group, node=place.node
        )

    @unary
    async def Recover(self, request: wire.RecoverRequest, context: Caller) -> wire.RecoverReply:
        """Make a user an enabled super user with a new password."""
        claim = Claim(request.challenge, request.user, request.password_hash)
        self._recovery.check(claim, self._place, request.mark)
        source = peer_host(context.peer()).address
        created = await self._users.recover(claim.user, claim.password_hash, source)
        reply = wire.RecoverReply(created=created)
        for name, endpoints in self._others().items():
            reply.others.add(name=name, endpoints=endpoints)
        return reply
