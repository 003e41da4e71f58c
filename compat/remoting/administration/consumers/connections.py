"""Who is connected by the remoting protocol, as consumers and as producers."""

import json
from collections.abc import Iterable, Iterator

from duolog_server.compat.remoting.administration.bodies import dumps, row_list, subscription_row
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fastjson import Value
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import (
    GroupTopicRequest,
    MembersRequest,
    ProducersRequest,
)
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.core.slices import Slices
from duolog_server.node.engine.storetimes import StoreTimes


class Connections:
    """Tells of the connections of groups."""

    def __init__(self, times: StoreTimes, members: Members) -> None:
        self._times = times
        self._members = members

    async def consumers(self, request: Command) -> Command:
        """GET_CONSUMER_CONNECTION_LIST. Raises Refused."""
        group = read_header(MembersRequest, request.fields).consumer_group
        members = self._members.of(group)
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{group[:255]}] not online by the remoting protocol",
            )
        data = next(iter(members.values())).data
        reads = self._members.reads(group)
        others = dumps(
            {
                "consumeFromWhere": data.begins,
                "consumeType": "CONSUME_PASSIVELY" if data.pushes else "CONSUME_ACTIVELY",
                "messageModel": "BROADCASTING" if data.broadcasting else "CLUSTERING",
                "subscriptionTable": {topic: subscription_row(one) for topic, one in reads.items()},
            }
        ).decode()
        rows = await row_list(self._rows(members), Slices())
        return request.answer(0, body=f'{{"connectionSet":{rows},{others[1:]}'.encode())

    def subscription(self, request: Command) -> Command:
        """QUERY_SUBSCRIPTION_BY_CONSUMER: none where no member reads the topic."""
        header = read_header(GroupTopicRequest, request.fields)
        body: dict[str, object] = {"group": header.group, "topic": header.topic}
        found = self._members.reads(header.group).get(header.topic)
        if found is not None:
            body["subscriptionData"] = subscription_row(found)
        return request.answer(0, body=dumps(body))

    async def producers(self, request: Command) -> Command:
        """GET_PRODUCER_CONNECTION_LIST. Raises Refused."""
        group = read_header(ProducersRequest, request.fields).producer_group
        peers = self._producers_of(group)
        if not peers:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:255]}] not exist")
        rows = await row_list(self._rows(peers), Slices())
        return request.answer(0, body=f'{{"connectionSet":{rows}}}'.encode())

    async def all_producers(self, request: Command) -> Command:
        """GET_ALL_PRODUCER_INFO."""
        slices, parts = Slices(), list[str]()
        for group in self._members.producer_groups():
            rows = await row_list(self._producers(self._producers_of(group)), slices)
            parts.append(f"{json.dumps(group)}:{rows}")
        return request.answer(0, body=f'{{"data":{{{",".join(parts)}}}}}'.encode())

    def _producers_of(self, group: str) -> list[Peer]:
        return [peer for peer, _ in self._members.producers(group)]

    def _rows(self, peers: Iterable[Peer]) -> Iterator[dict[str, Value]]:
        """As Connection. A client that left meanwhile is left out."""
        for peer in peers:
            client = self._members.client(peer)
            if client is not None:
                yield {
                    "clientAddr": peer.name,
                    "clientId": client.client_id,
                    "language": client.language,
                    "version": client.version,
                }

    def _producers(self, peers: Iterable[Peer]) -> Iterator[dict[str, Value]]:
        """As ProducerInfo. The time is that of the last heartbeat."""
        behind_ms = self._times.wall_ms() - self._times.mono_ms()
        for peer in peers:
            client = self._members.client(peer)
            if client is not None:
                yield {
                    "clientId": client.client_id,
                    "language": client.language,
                    "lastUpdateTimestamp": behind_ms + client.heard_ms,
                    "remoteIP": peer.name,
                    "version": client.version,
                }
