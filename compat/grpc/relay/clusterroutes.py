"""Routes of a whole cluster: a topic may have queues in several replica groups.

The node that receives the request asks the masters of the other groups and merges the answers. A
group that does not answer in time is left out, like one without nodes.
"""

import asyncio
from collections.abc import Callable

from duolog import _errors as sdk
from google.protobuf import message as protobuf

from duolog_server.compat.grpc.relay.calls import Call, is_forwarded
from duolog_server.compat.grpc.relay.forward import Answer, Forwarder, Reply
from duolog_server.compat.grpc.words.codes import Refused
from duolog_server.compat.grpc.words.stubs import Code

OTHERS_SECONDS = 1.0


class ClusterRoutes:
    """Asks all replica groups."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def replies(
        self,
        kind: type[Reply],
        request: protobuf.Message,
        context: Call,
        own: Callable[[], Reply],
    ) -> list[Reply]:
        """The replies of the groups that know the topic; this one first. own: makes its reply.

        Raises Refused or sdk errors if no group knows it.
        """
        work = [self._own(kind, request, context, own)]
        if not is_forwarded(context):
            work += [
                self._forwarder.unary(kind, request, context, group, OTHERS_SECONDS)
                for group in self._forwarder.other_groups()
            ]
        answers = await asyncio.gather(*work, return_exceptions=True)
        replies = []
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, sdk.DuologError | Refused):
                    raise answer
            elif answer.status.code == Code.OK:
                replies.append(answer)
        if replies:
            return replies
        # A group that did not answer may hold the topic: it is unknown only if all groups say so.
        first = next((answer for answer in answers if not _is_unknown(answer)), answers[0])
        if isinstance(first, BaseException):
            raise first
        raise Refused(first.status.code, first.status.message)

    async def _own(
        self,
        kind: type[Reply],
        request: protobuf.Message,
        context: Call,
        own: Callable[[], Reply],
    ) -> Reply:
        try:
            return own()
        except sdk.NotMaster:  # a slave that does not have the topic yet
            return await self._forwarder.unary(kind, request, context)


def _is_unknown(answer: Answer | BaseException) -> bool:
    """Tell whether a group answered that it has no such topic."""
    if isinstance(answer, BaseException):
        return isinstance(answer, sdk.UnknownTopic)
    return bool(answer.status.code == Code.TOPIC_NOT_FOUND)
