"""Single messages, by their keys, and by their places in the log, which ids and clients name."""

import ipaddress
import zlib

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import QueryRequest, ViewRequest
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.rules import NO_SUCH_ID
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels.encode import RECORD_CRC_NAME
from duolog_server.store.kernels.text import RECORD_CRC_BYTES
from duolog_server.store.record import BORN_HOST_V6, STORE_HOST_V6, Host, Record

_SYSFLAG_AT, _BORN_HOST_AT = 36, 48
_SEAL = RECORD_CRC_NAME.tobytes()


async def message_for(sight: Sight, broker: Broker, offset: int) -> Record:
    """The message at an offset of the log, for the user whose request is served.

    Where there are users, all that this user may not read is answered alike, there or not. Raises
    as `Lookups.at`, Busy.
    """
    await broker.log.caught_up()
    try:
        record = broker.lookups.at(offset)
    except (StoreError, sdk.NoPermission, sdk.NoSuchMessage):
        if not sight.is_limited:
            raise
        raise sdk.NoSuchMessage(NO_SUCH_ID) from None
    if not sight.may_read(record.topic):
        raise sdk.NoSuchMessage(NO_SUCH_ID)
    return record


def reached_at(advertised: str, store_host: Host) -> Host:
    """The address in message ids, for clients of this protocol: the port that serves it.

    advertised: HOST:PORT of that port. store_host: of the records, whose address stands for a name.
    """
    host, _, port = advertised.rpartition(":")
    try:
        address = str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        address = store_host.address
    return Host(address, int(port))


def led_to(record: bytes, host: Host) -> bytes:
    """A record whose store host is another: clients make its id of it, and go there with the id.

    As it is where the address would be of another length.
    """
    flags = int.from_bytes(record[_SYSFLAG_AT : _SYSFLAG_AT + 4], "big")
    begin = _BORN_HOST_AT + (20 if flags & BORN_HOST_V6 else 8) + 8  # the store time is between
    packed = host.packed()
    if len(packed) != (20 if flags & STORE_HOST_V6 else 8):
        return record
    return _sealed(record[:begin] + packed + record[begin + len(packed) :])


def _sealed(record: bytes) -> bytes:
    """Add the CRC over all its bytes, if it has one."""
    rest = len(record) - RECORD_CRC_BYTES
    if not record.startswith(_SEAL, rest):
        return record
    digits = f"{zlib.crc32(record[:rest]):010d}"[::-1]  # the least significant first
    return record[: rest + len(_SEAL)] + digits.encode() + record[-1:]


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
        lookups = self._broker.lookups
        lookups.check(header.topic)
        found: list[Record] = []
        if header.unique:
            found = lookups.attempts(header.topic, header.key)
        elif header.max_num < 0:
            raise BadRequest(f"the field maxNum is {header.max_num}")
        elif header.max_num and header.key and header.end_timestamp:
            count = min(header.max_num, MESSAGES_MAX)
            times = header.begin_timestamp, header.end_timestamp
            found = lookups.by_key(header.topic, header.key, count, *times)
        if not found:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        newest = {
            "indexLastUpdateTimestamp": str(self._broker.times.wall_ms()),
            "indexLastUpdatePhyoffset": str(self._broker.store.max_offset),
        }
        return await self._answer(peer, request, found, newest)

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
