"""Queries: single messages by their ids and keys, as records."""

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.errors import BadRequest
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import QueryRequest, QueryResponse, ViewRequest
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.places import led_to, message_for
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.store.record import Host, Record

MESSAGES_MAX = 64
BYTES_MAX = 4 << 20  # of the records in one answer, which has one at least


class Queries:
    """Finds messages."""

    def __init__(self, broker: Broker, sight: Sight, host: Host) -> None:
        """host: where clients look a message up by the id that they make of its record."""
        self._broker = broker
        self._sight = sight
        self._host = host

    async def view(self, peer: Peer, request: Command) -> Command:
        """VIEW_MESSAGE_BY_ID. Raises as `message_for`."""
        header = read_header(ViewRequest, request.fields)
        record = await message_for(self._sight, self._broker, header.offset)
        return await self._answer(peer, request, [record])

    async def query(self, peer: Peer, request: Command) -> Command:
        """QUERY_MESSAGE. Raises UnknownTopic, NoPermission, BadRequest, Busy, Refused."""
        header = read_header(QueryRequest, request.fields)
        await self._broker.log.caught_up()
        self._broker.admission.readable_topic(header.topic)
        self._broker.admission.check_index()
        lookups = self._broker.store.lookups
        if header.unique:
            found = lookups.all_by_unique_key(header.topic, header.key)
        else:
            if header.max_num < 0:
                raise BadRequest(f"the field maxNum is {header.max_num}")
            count = min(header.max_num, MESSAGES_MAX)
            times = max(0, header.begin_timestamp), header.end_timestamp
            found = lookups.by_key(header.topic, header.key, count, *times) if count else []
        if not found:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        newest = QueryResponse(self._broker.times.wall_ms(), self._broker.store.max_offset)
        return await self._answer(peer, request, found, write_header(newest))

    async def _answer(
        self,
        peer: Peer,
        request: Command,
        found: list[Record],
        fields: dict[str, str] | None = None,
    ) -> Command:
        """The records as the log has them but for their hosts, as many as there is room for."""
        untaken, address = self._broker.untaken, Who.at("", peer.host.address).address
        room = min(BYTES_MAX, await untaken.some_room(address))
        parts: list[bytes] = []
        for record in found:
            if parts and record.size > room:
                break
            memory = self._broker.store.log.get_data(record.physical_offset)
            parts.append(led_to(memory[: record.size].tobytes(), self._host))
            room -= record.size
        size = sum(map(len, parts))
        untaken.take(address, size)
        peer.after_answer(lambda: untaken.give(address, size))
        return request.answer(0, fields=fields, body=b"".join(parts))
