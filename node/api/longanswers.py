"""Answers of any length: lists, descriptions, and messages that are looked up. They count as those
of reads do.

A client may ask for thousands of them and take none. So such a call begins where its client's
address has room for more answers (`Untaken`), keeps some room while it makes its own, and counts it
until the client has taken it, or is gone. A change keeps none: it waits for slaves and disks, and
many may do so at a time.
"""

from typing import Any, cast

import grpc
from google.protobuf.message import Message

from duolog_server.node.api.calls import reporting
from duolog_server.node.core.slices import Slices, serialized
from duolog_server.node.core.traffic import timed
from duolog_server.node.core.untaken import Untaken
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.net.methods import Handler, Methods
from duolog_server.node.wirecodec import peer_host

KEPT_BYTES = 1 << 20  # for an answer whose size is not known yet: few are made at a time
READS = frozenset(
    f"/duolog.v1.{name}"
    for name in (
        "Access/GetRights",
        "Access/ListUsers",
        "Admin/ClusterStatus",
        "Admin/DescribeGroup",
        "Admin/ListDelayed",
        "Admin/ListGroups",
        "Admin/ListHalves",
        "Admin/ListMoves",
        "Admin/ListQuotas",
        "Admin/ListTopics",
        "Admin/Track",
        "Groups/Offsets",
        "Messages/Find",
        "Messages/SinkState",
    )
)
CHANGES = frozenset(
    f"/duolog.v1.Admin/{name}"
    for name in ("AlterTopic", "CreateTopic", "PutGroup", "ResetGroup", "TrimTopic")
)
LONG = READS | CHANGES


class _Serialized:
    """The last answer of a method, and its bytes: who counts them makes them, in slices, and the
    transport takes them next.
    """

    def __init__(self) -> None:
        self._kept: tuple[Message, bytes] | None = None

    def keep(self, reply: Message, data: bytes) -> None:
        """Until it is sent, or another one comes."""
        self._kept = reply, data

    def sent(self, reply: Message) -> bytes:
        """The bytes of an answer."""
        kept = self._kept
        if kept is None or kept[0] is not reply:
            return reply.SerializeToString()
        self._kept = None
        return kept[1]

    def forget(self) -> None:
        """Some answer is over: it may be the one that is kept, and never sent by this."""
        self._kept = None


def counted_methods(methods: Methods, untaken: Untaken) -> Methods:
    """The same methods; those whose answers may be long ask for room, and may be refused (Busy)."""

    def wrap(path: str, handler: Handler) -> Handler:
        if path not in LONG:
            return handler
        serve, kept = handler.unary_unary, KEPT_BYTES if path in READS else 0
        answers = _Serialized()

        async def unary(request: Any, context: Any) -> Any:
            address = Who.at("", peer_host(context.peer()).address).address
            async with reporting(context):
                await untaken.some_room(address)
            untaken.take(address, kept)
            try:
                reply = await serve(request, context)
                data = await serialized(reply, Slices())
                size = len(data)
                untaken.take(address, size)

                def over(_: object) -> None:
                    untaken.give(address, size)
                    answers.forget()

                context.add_done_callback(over)
            finally:
                untaken.give(address, kept)
            answers.keep(reply, data)
            return reply

        reads = handler.request_deserializer
        made = grpc.unary_unary_rpc_method_handler(unary, reads, answers.sent)
        return cast(Handler, made)

    return timed(methods, wrap)
