"""Members by the remoting protocol, among the consumers that are connected."""

from collections.abc import Collection, Iterator

from duolog_server.compat.remoting.codec.bodies import SQL
from duolog_server.compat.remoting.members import Member, Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.node.engine.storetimes import StoreTimes


class MemberTable:
    """Tells of them."""

    def __init__(self, members: Members, times: StoreTimes) -> None:
        self._members = members
        self._times = times

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """See Tells."""
        for group in groups:
            for peer, member in self._members.of(group).items():
                yield group, self._consumer(peer, member)

    def _consumer(self, peer: Peer, member: Member) -> Consumer:
        client = self._members.client(peer)
        return Consumer(
            member.client_id,
            tuple(
                Read(one.topic, one.expression, one.kind == SQL)
                for one in member.data.subscriptions
            ),
            language=client.language if client is not None else "",
            version=str(client.version) if client is not None else "",
            address=peer.host.address,
            broadcasting=member.data.broadcasting,
            told_ms=self._times.wall_ms() - self._times.mono_ms() + member.heard_ms,
            shares=not member.data.broadcasting,
            since_ms=member.since_ms,
        )

    def readers(self, topic: str) -> set[str]:
        """See Tells."""
        members = self._members
        return {group for group in members.groups() if topic in members.reads(group)}

    def counts(self) -> tuple[int, int]:
        """See Tells."""
        return self._members.producer_count, len(self._members)
