"""Calls about the whole cluster: the node that is called asks the masters of all replica groups.

What is left out would be wrong: where one of them does not answer, the call fails and says
which one. A group that knows nothing of the topic or consumer group is no failure while another
does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duolog import _errors as sdk
from google.protobuf import message as protobuf

from duolog_server.compat.grpc.protocol.codes import Refused, status_of
from duolog_server.compat.grpc.protocol.stubs import Code, Status
from duolog_server.compat.grpc.relay.calls import Call, is_forwarded
from duolog_server.compat.grpc.relay.forward import Answer, Forwarder
from duolog_server.node.broker import Broker
from duolog_server.store.errors import StoreError

UNKNOWN = frozenset(
    (
        Code.NOT_FOUND,
        Code.TOPIC_NOT_FOUND,
        Code.CONSUMER_GROUP_NOT_FOUND,
        Code.MESSAGE_NOT_FOUND,
    )
)
FAILURES = (Refused, sdk.DuologError, StoreError)
Made = TypeVar("Made", bound=Answer)
Join = Callable[[list[Made]], Made]


class WholeCluster:
    """Asks all replica groups, or the master of one."""

    def __init__(self, broker: Broker, forwarder: Forwarder) -> None:
        self._broker = broker
        self._forwarder = forwarder

    async def answer(
        self,
        kind: type[Made],
        request: protobuf.Message,
        context: Call,
        own: Callable[[], Awaitable[Made]],
        join: Join[Made],
    ) -> Made:
        """The replies of all groups, joined. own: makes that of this one, on its master.

        Raises FAILURES.
        """
        others = [] if is_forwarded(context) else self._forwarder.other_groups()
        if not others:
            return await self._own(kind, request, context, own)
        work = [self._own(kind, request, context, own)]
        work += [self._forwarder.unary(kind, request, context, group) for group in others]
        answers = await asyncio.gather(*work, return_exceptions=True)
        found, missing = [], list[Status]()
        for group, answer in zip((self._broker.group, *others), answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, FAILURES):
                    raise answer
                status = status_of(answer)
            else:
                status = answer.status
            if not isinstance(answer, BaseException) and status.code == Code.OK:
                found.append(answer)
            elif status.code in UNKNOWN:
                missing.append(status)
            else:
                raise Refused(status.code, f"replica group {group}: {status.message}")
        if not found:
            raise Refused(missing[0].code, missing[0].message)
        return join(found)

    async def of_one(
        self,
        kind: type[Made],
        request: protobuf.Message,
        context: Call,
        own: Callable[[], Awaitable[Made]],
    ) -> Made:
        """The reply of the first group that knows what the call is about: for what is done once.

        Raises FAILURES.
        """
        try:
            reply = await self._own(kind, request, context, own)
            status = reply.status
        except FAILURES as error:
            status = status_of(error)
            if status.code not in UNKNOWN:
                raise
        else:
            if status.code not in UNKNOWN:
                return reply
        for group in [] if is_forwarded(context) else self._forwarder.other_groups():
            reply = await self._forwarder.unary(kind, request, context, group)
            if reply.status.code not in UNKNOWN:
                return reply
        raise Refused(status.code, status.message)

    async def _own(
        self,
        kind: type[Made],
        request: protobuf.Message,
        context: Call,
        own: Callable[[], Awaitable[Made]],
    ) -> Made:
        if self._broker.replication.not_master():
            return await self._forwarder.unary(kind, request, context)
        try:
            return await own()
        except sdk.NotMaster:
            if is_forwarded(context):
                raise
            return await self._forwarder.unary(kind, request, context)


def the_first(replies: list[Made]) -> Made:
    """A Join: all of them say the same."""
    return replies[0]
