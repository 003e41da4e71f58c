"""Administration: topics, groups, node and cluster status, single messages."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from duolog._connection import Connection
from duolog.wire import duolog_pb2 as wire

T = TypeVar("T")


class Admin:
    """Calls of the Admin service, and lookups. Made by `Client.admin`. Times are ms."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Not called by users."""
        self._connection = connection
        self._timeout = timeout

    async def _call(self, make: Callable[[float], Awaitable[T]]) -> T:
        return await self._connection.call(make, self._timeout)

    async def create_topic(self, topic: str, queues: int = 4, perm: int = 6) -> wire.TopicReply:
        """Create a topic. Raises TopicExists, BadRequest."""
        request = wire.TopicRequest(topic=topic, queues=queues, perm=perm)
        return await self._call(
            lambda left: self._connection.admin.CreateTopic(request, timeout=left)
        )

    async def alter_topic(self, topic: str, queues: int = 0, perm: int = 0) -> wire.TopicReply:
        """Add queues or change permissions (READ 4, WRITE 2); 0 leaves as it is."""
        request = wire.TopicRequest(topic=topic, queues=queues, perm=perm)
        return await self._call(
            lambda left: self._connection.admin.AlterTopic(request, timeout=left)
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages. Raises UnknownTopic."""
        request = wire.DeleteTopicRequest(topic=topic)
        await self._call(lambda left: self._connection.admin.DeleteTopic(request, timeout=left))

    async def topics(
        self, names: Sequence[str] = (), system: bool = False
    ) -> list[wire.TopicReply]:
        """Topics with the ranges of their queues; all, or those named that exist."""
        request = wire.ListTopicsRequest(topics=list(names), system=system)
        reply = await self._call(
            lambda left: self._connection.admin.ListTopics(request, timeout=left)
        )
        return list(reply.topics)

    async def groups(self) -> list[wire.GroupDescription]:
        """All groups with their lag."""
        request = wire.ListGroupsRequest()
        reply = await self._call(
            lambda left: self._connection.admin.ListGroups(request, timeout=left)
        )
        return list(reply.groups)

    async def group(self, group: str) -> wire.GroupDescription:
        """One group. Raises UnknownGroup."""
        request = wire.DescribeGroupRequest(group=group)
        return await self._call(
            lambda left: self._connection.admin.DescribeGroup(request, timeout=left)
        )

    async def reset_group(
        self, group: str, topic: str, *, time: int = -1, offset: int | None = None
    ) -> wire.OffsetsReply:
        """Set a group's offsets: to a time (-1 earliest, -2 latest) or an offset."""
        request = wire.ResetGroupRequest(
            group=group, topic=topic, time=time, offset=offset or 0, use_offset=offset is not None
        )
        return await self._call(
            lambda left: self._connection.admin.ResetGroup(request, timeout=left)
        )

    async def delete_group(self, group: str) -> None:
        """Forget a group and its offsets. Raises UnknownGroup."""
        request = wire.DeleteGroupRequest(group=group)
        await self._call(lambda left: self._connection.admin.DeleteGroup(request, timeout=left))

    async def find(
        self,
        topic: str = "",
        *,
        key: str = "",
        unique_key: str = "",
        message_id: str = "",
        count: int = 32,
        begin_time: int = 0,
        end_time: int = 0,
    ) -> list[wire.FoundMessage]:
        """Messages by key and time, by unique key, or by message id. Raises NoSuchMessage."""
        request = wire.FindRequest(
            topic=topic,
            key=key,
            unique_key=unique_key,
            message_id=message_id,
            max=count,
            begin_time=begin_time,
            end_time=end_time,
        )
        reply = await self._call(lambda left: self._connection.messages.Find(request, timeout=left))
        return list(reply.messages)

    async def offset_at_time(self, topic: str, queue_id: int, time: int) -> int:
        """Queue offset of the first message stored at or after a time; -1 earliest, -2 latest."""
        request = wire.OffsetAtTimeRequest(topic=topic, queue_id=queue_id, time=time)
        reply = await self._call(
            lambda left: self._connection.groups.OffsetAtTime(request, timeout=left)
        )
        return int(reply.queue_offset)

    async def node_status(self) -> wire.NodeStatusReply:
        """What the node says of itself: the one that the client was given, or the first of them
        that answers."""
        request = wire.NodeStatusRequest()
        return await self._connection.call(
            lambda left: self._connection.admin.NodeStatus(request, timeout=left),
            self._timeout,
            stay=True,
        )

    async def route(self) -> wire.RouteReply:
        """The replica groups, their masters and replicas, and where they are reached."""
        request = wire.RouteRequest()
        return await self._call(lambda left: self._connection.admin.Route(request, timeout=left))

    async def failover(self, node: str = "") -> None:
        """Make another node the master while all live (planned switch); any one where not named.

        Raises BadRequest where that node is not in sync.
        """
        request = wire.FailoverRequest(node=node)
        await self._connection.call(
            lambda left: self._connection.admin.Failover(request, timeout=left),
            self._timeout,
            attempt=self._timeout,
        )

    async def drain(self, node: str, *, undo: bool = False) -> None:
        """Take a node out: it is not elected and does not count for puts; undo brings it back."""
        request = wire.DrainRequest(node=node, undo=undo)
        await self._call(lambda left: self._connection.admin.Drain(request, timeout=left))

    async def elect_unclean(self, epoch: int) -> None:
        """Make the node that the client was given the master, whatever others may have held.

        Args:
            epoch: the last epoch; another one is refused.

        What the other members of the SyncStateSet held alone is given up; the group's state
        records it. Raises BadRequest.
        """
        request = wire.ElectUncleanRequest(epoch=epoch)
        await self._connection.call(
            lambda left: self._connection.admin.ElectUnclean(request, timeout=left),
            self._timeout,
            retry=False,
            attempt=self._timeout,
        )

    async def cluster_status(self) -> wire.ClusterStatusReply:
        """The nodes of the cluster."""
        request = wire.ClusterStatusRequest()
        return await self._call(
            lambda left: self._connection.admin.ClusterStatus(request, timeout=left)
        )
