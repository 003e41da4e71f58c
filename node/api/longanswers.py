"""Answers of any length: lists, descriptions, and messages that are looked up. They count as those
of reads do.

A client may ask for thousands of them and take none. So such a call begins where its client's
address has room for more answers (`Untaken`), keeps some room while it makes its own, and counts it
until the client has taken it, or is gone. A change keeps none: it waits for slaves and disks, and
many may do so at a time.
"""

from typing import Any

from node.access.guarding import with_method
from node.api.calls import reporting
from node.core.calltimes import timed
from node.core.untaken import Untaken
from node.methods import Handler, Methods
from node.quotas.quotas import Who
from node.wirecodec import peer_host

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
        "Admin/ListQuotas",
        "Admin/ListTopics",
        "Admin/Track",
        "Groups/Offsets",
        "Messages/Find",
        "Messages/SinkState",
    )
)
CHANGES = frozenset(
    f"/duolog.v1.Admin/{name}" for name in ("AlterTopic", "CreateTopic", "PutGroup", "ResetGroup")
)
LONG = READS | CHANGES


def counted_methods(methods: Methods, untaken: Untaken) -> Methods:
    """The same methods; those whose answers may be long ask for room, and may be refused (Busy)."""

    def wrap(path: str, handler: Handler) -> Handler:
        if path not in LONG:
            return handler
        serve, kept = handler.unary_unary, KEPT_BYTES if path in READS else 0

        async def unary(request: Any, context: Any) -> Any:
            address = Who.at("", peer_host(context.peer()).address).address
            async with reporting(context):
                await untaken.some_room(address)
            untaken.take(address, kept)
            try:
                reply = await serve(request, context)
                size = reply.ByteSize()
                untaken.take(address, size)
                context.add_done_callback(lambda _: untaken.give(address, size))
            finally:
                untaken.give(address, kept)
            return reply

        return with_method(handler, unary)

    return timed(methods, wrap)


__all__ = ["LONG", "counted_methods"]
