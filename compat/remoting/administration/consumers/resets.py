"""Offsets of groups set back or forward.

The offsets of a group without members are set here. Members by the remoting protocol keep their
own: they get the place to continue from, stop, and commit that, as in RocketMQ.
"""

import json
from collections.abc import Sequence

from duolog import Start
from duolog import _errors as sdk

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import ONEWAY, BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import MessageQueue
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import ResetOffsetRequest
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.offsets import offset_at
from duolog_server.node.service.groups import Groups, Reset

CPP = "CPP"


class Resets:
    """Serves INVOKE_BROKER_TO_RESET_OFFSET."""

    def __init__(self, broker: Broker, members: Members, changes: Groups, sight: Sight) -> None:
        self._sight = sight
        self._broker = broker
        self._members = members
        self._changes = changes

    async def reset(self, peer: Peer, request: Command) -> Command:
        """Where the group continues. Raises as Groups.reset, BadRequest."""
        header = read_header(ResetOffsetRequest, request.fields)
        wanted = Reset(
            header.group,
            header.topic,
            lambda queues: self._wanted(header, queues),
            {"time": header.timestamp},
            lambda offsets: self._told(header, offsets),
        )
        offsets = await self._changes.reset(peer.host.address, wanted)
        rows = {self._queue(header.topic, queue): offset for queue, offset in offsets.items()}
        return request.answer(0, body=dumps({"offsetTable": rows}))

    def _told(self, header: ResetOffsetRequest, wanted: dict[int, int]) -> bool:
        """Tell the group's members to continue there; whether it has any. Raises Busy."""
        self._broker.admission.check_current()
        members = self._members.of(header.group)
        if members and self._broker.members(header.group) > len(self._members.ids(header.group)):
            raise sdk.Busy(f"group {header.group} has members by other protocols: stop them first")
        may = self._sight.may_consume
        self._tell(
            [one for one, member in members.items() if may(member.user, header.group)],
            header,
            wanted,
        )
        return bool(members)

    def _wanted(self, header: ResetOffsetRequest, queues: Sequence[int]) -> dict[int, int]:
        """Queue offsets by queue id. Without force, no queue goes forward. Raises BadRequest."""
        if header.queue_id >= 0:
            if header.queue_id not in queues:
                raise BadRequest(f"group {header.group[:255]!r} reads queues {list(queues)} here")
            queues = range(header.queue_id, header.queue_id + 1)
        tables = self._broker.admission.group_tables()
        found = {}
        for queue in queues:
            offset = self._offset(header, queue)
            committed = tables.committed(header.group, header.topic, queue)
            back = header.is_force or committed < 0 or offset < committed
            found[queue] = offset if back else committed
        return found

    def _offset(self, header: ResetOffsetRequest, queue: int) -> int:
        if header.queue_id >= 0 and header.offset >= 0:
            low, high = self._broker.core.store.queue_range(header.topic, queue)
            return min(max(header.offset, low), high)
        at = Start.LATEST if header.timestamp < 0 else header.timestamp
        return offset_at(self._broker.core, header.topic, queue, at)

    def _tell(self, peers: list[Peer], header: ResetOffsetRequest, wanted: dict[int, int]) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET to all members. Raises Busy where one takes nothing."""
        rows = {self._queue(header.topic, queue): offset for queue, offset in wanted.items()}
        code, fields = RequestCode.RESET_CONSUMER_CLIENT_OFFSET, write_header(header)
        java, cpp = (
            Command(code, 0, fields, body, flag=ONEWAY)
            for body in (dumps({"offsetTable": rows}), _for_c(rows))
        )
        for peer in peers:
            client = self._members.client(peer)
            is_cpp = client is not None and client.language == CPP
            if not peer.tell(cpp if is_cpp else java):
                raise sdk.Busy(f"the client at {peer.name} takes no requests: try again")

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(self._broker.group, queue_id, topic)


def _for_c(rows: dict[MessageQueue, int]) -> bytes:
    """ResetOffsetBodyForC: C++ reads no objects as keys."""
    found = [
        {
            "brokerName": one.broker_name,
            "offset": offset,
            "queueId": one.queue_id,
            "topic": one.topic,
        }
        for one, offset in rows.items()
    ]
    return json.dumps({"offsetTable": found}, separators=(",", ":")).encode()
