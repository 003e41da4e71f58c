"""Routes of a whole cluster: a topic may have queues in several replica groups.

The node that a client asks asks the masters of the other groups, and puts the answers together; a
group that does not answer in time is left out, as one whose nodes are gone is.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from duolog import _errors as sdk

from node.rocketmq.codes import Refused
from node.rocketmq.forward import Forwarder, is_forwarded
from node.rocketmq.stubs import Code

OTHERS_SECONDS = 1.0


class ClusterRoutes:
    """Asks everywhere."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def replies(
        self, name: str, request: Any, context: Any, own: Callable[[], Any]
    ) -> list[Any]:
        """What the groups that know the topic reply; this one first. own: makes its reply.

        Raises Refused, sdk errors where none does.
        """
        work = [self._own(name, request, context, own)]
        if not is_forwarded(context):
            work += [
                self._forwarder.unary(name, request, context, group, OTHERS_SECONDS)
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
        # A group that did not answer may hold the topic: only where all say so it is unknown.
        first = next((answer for answer in answers if not _is_unknown(answer)), answers[0])
        if isinstance(first, BaseException):
            raise first
        raise Refused(first.status.code, first.status.message)

    async def _own(self, name: str, request: Any, context: Any, own: Callable[[], Any]) -> Any:
        try:
            return own()
        except sdk.NotMaster:  # a slave that does not know the topic yet
            return await self._forwarder.unary(name, request, context)


def _is_unknown(answer: Any) -> bool:
    """Tell whether a group said that it holds no such topic."""
    if isinstance(answer, BaseException):
        return isinstance(answer, sdk.UnknownTopic)
    return bool(answer.status.code == Code.TOPIC_NOT_FOUND)
