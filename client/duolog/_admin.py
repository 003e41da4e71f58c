"""Administration: topics, groups, node and cluster status, single messages."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import grpc

from duolog import _fromwire as fromwire
from duolog._background import all_of
from duolog._checks import (
    INT32_MAX,
    checked_flag,
    checked_text,
    checked_texts,
    checked_whole,
)
from duolog._connection import REFUSED, Connection, Others, ask_one
from duolog._descriptions import (
    ClusterStatus,
    FoundMessage,
    FreezeStatus,
    GroupDescription,
    GroupSubscription,
    NodeStatus,
    QueueMove,
    QueueMoves,
    QueueOffset,
    QueuePlace,
    Quota,
    Route,
    TopicDescription,
    TrackedMessage,
    TrackState,
    TrimmedQueue,
)
from duolog._errors import (
    BadRequest,
    DuologError,
    Fatal,
    NoSuchMessage,
    NotMaster,
    UnknownGroup,
    UnknownTopic,
    error_of,
)
from duolog._pages import Page, Wanted, joined_page, part_of
from duolog._requests import checked_request
from duolog._router import Router
from duolog._runtime import MACHINE, Runtime
from duolog._start import Start, set_start
from duolog._switch import Switch
from duolog._waiting import (
    END,
    DelayedPage,
    HalfMessage,
    HalvesPage,
    check_limit,
    delayed_page_of,
    half_of,
    halves_page_of,
    places_in,
)
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")
Asking = Callable[[stubs.AdminStub, float], Awaitable[T]]  # a call, and the seconds that are left
MASTER_SECONDS = 2.0
DOWN_SECONDS = 0.5
COME_SECONDS = 0.05  # between looks whether a group has come to a queue that moved
NAMES_AT_ONCE = 500  # of groups, in a request
LIMITS = frozenset(field.name for field in fields(Quota)) - {"subject"}


class Admin:
    """Calls of the Admin service, and lookups. Made by `Client.admin`. Times are ms.

    What concerns a topic or a consumer group is done in every replica group of the cluster, or in
    those that hold it.
    """

    def __init__(self, router: Router, timeout: float) -> None:
        """Not called by users."""
        self._router = router
        self._timeout = timeout

    async def _ask(self, make: Asking[T]) -> T:
        """Call the Admin service of any node."""
        seed = self._router.seed
        return await seed.call(lambda left: make(seed.admin, left), self._timeout)

    async def _ask_all(
        self,
        make: Asking[T],
        but: type[DuologError] | None = None,
        groups: Sequence[str] | None = None,
        patient: bool = True,
    ) -> list[T]:
        """Ask the master of every replica group: see Router."""
        return await self._everywhere(
            lambda connection, left: make(connection.admin, left), but, groups, patient
        )

    async def _delete(
        self,
        make: Asking[object],
        gone: type[DuologError],
        groups: Sequence[str] | None = None,
    ) -> None:
        """Delete in every replica group. gone: the answer where there is nothing to delete."""
        await self._everywhere(_Deletion(make, gone), gone, groups)

    async def _everywhere(
        self,
        make: Callable[[Connection, float], Awaitable[T]],
        but: type[DuologError] | None = None,
        groups: Sequence[str] | None = None,
        patient: bool = True,
    ) -> list[T]:
        """See Router."""
        return await self._router.everywhere(
            make, self._timeout, but=but, groups=groups, patient=patient
        )

    async def create_topic(
        self,
        topic: str,
        queues: int = 4,
        perm: int = 6,
        *,
        groups: Sequence[str] | None = None,
        message_type: str = "",
        lite_ttl_minutes: int = 0,
        retention_hours: int = 0,
        retention_bytes: int = 0,
    ) -> TopicDescription:
        """Create a topic, or leave one with the same settings as it is.

        Raises TopicExists where a replica group holds it with other settings, BadRequest.

        Args:
            topic: its name.
            queues: in each replica group.
            perm: READ 4, WRITE 2.
            groups: replica groups to hold it; all that do not retire where not given.
            message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE: what RocketMQ's
                clients may send to it; everything but LITE where not given.
            lite_ttl_minutes: a lite topic that gets nothing for so long is forgotten; 0: never.
            retention_hours: messages are kept for so long; 0: as long as the log, and no longer.
            retention_bytes: in each replica group, the newest messages are kept that take no more
                of the log; 0: all that the log has. Older nodes ignore both.
        """
        request = checked_request(
            wire.TopicRequest,
            topic=checked_text("topic", topic),
            queues=checked_whole("queues", queues, 1, INT32_MAX),
            perm=checked_whole("perm", perm, 0, INT32_MAX),
            message_type=checked_text("message_type", message_type or "", empty=True),
            lite_ttl_minutes=checked_whole("lite_ttl_minutes", lite_ttl_minutes, 0, INT32_MAX),
            retention_hours=checked_whole("retention_hours", retention_hours, 0, INT32_MAX) or None,
            retention_bytes=checked_whole("retention_bytes", retention_bytes) or None,
        )
        if groups is not None and not (groups := checked_texts("groups", groups)):
            raise BadRequest("groups is empty: name at least one replica group, or give None")
        staying = await self._router.staying(self._timeout)
        answers = await self._ask_all(
            lambda admin, left: admin.CreateTopic(request, timeout=left),
            groups=groups or staying,
        )
        return fromwire.topic_of(answers[0])

    async def alter_topic(
        self,
        topic: str,
        queues: int = 0,
        perm: int = 0,
        *,
        lite_ttl_minutes: int | None = None,
        retention_hours: int | None = None,
        retention_bytes: int | None = None,
    ) -> TopicDescription:
        """Add queues, or change permissions (READ 4, WRITE 2) or retention; 0 leaves as it is.

        Replica groups that retire, or hold nothing but queues that moved there, get none. Raises
        UnknownTopic, BadRequest, and then nothing was changed where queues that moved take the ids.

        lite_ttl_minutes, retention_hours, retention_bytes: see `create_topic`; None leaves as it
            is.
        """
        request = checked_request(
            wire.TopicRequest,
            topic=topic,
            queues=queues,
            perm=perm,
            lite_ttl_minutes=lite_ttl_minutes,
            retention_hours=retention_hours,
            retention_bytes=retention_bytes,
        )
        rest: list[str] = []  # groups without queues of their own
        names = await self._router.groups(self._timeout)
        if queues and len(names) > 1:
            parts, staying = await self.topics([topic]), await self._router.staying(self._timeout)
            rest = [part.group for part in parts if not part.queues or part.group not in staying]
            if parts and all(part.group in rest for part in parts):
                raise BadRequest(
                    f"topic {topic} gets no more queues: no replica group that stays has any of "
                    "its own"
                )
            for part in parts:
                guests = [row.queue_id for row in part.stats if row.queue_id >= part.queues]
                if part.group not in rest and min(guests, default=queues) < queues:
                    raise BadRequest(
                        f"topic {topic} cannot have {queues} queues: queue {min(guests)} of "
                        f"replica group {part.group} moved there, and ids are used once"
                    )
        groups = [name for name in names if name not in rest]
        answers = await self._ask_all(
            lambda admin, left: admin.AlterTopic(request, timeout=left), UnknownTopic, groups
        )
        kept = lite_ttl_minutes, retention_hours, retention_bytes
        if rest and (perm or any(one is not None for one in kept)):
            request.queues = 0
            await self._ask_all(
                lambda admin, left: admin.AlterTopic(request, timeout=left), UnknownTopic, rest
            )
        return fromwire.topic_of(answers[0])

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages. Raises UnknownTopic."""
        request = checked_request(wire.DeleteTopicRequest, topic=topic)
        await self._delete(
            lambda admin, left: admin.DeleteTopic(request, timeout=left), UnknownTopic
        )

    async def trim_topic(
        self,
        topic: str,
        before_ms: int | None = None,
        *,
        queue: QueuePlace | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> list[TrimmedQueue]:
        """Hide the oldest messages of a topic for good; where its queues begin from then on.

        Their disk space is freed when their segments of the log are deleted. Consumers that have
        not read them continue with the first message that is left. Raises UnknownTopic; BadRequest
        for an offset behind the end of its queue, and for topics of the nodes.

        Args:
            topic: its name.
            before_ms: hide what was stored before this time, wall-clock ms.
            queue: of one queue; of all of them, in all replica groups, where not given.
            offset: instead of a time: hide what is before this offset of `queue`.
            dry_run: hide nothing, only tell.
        """
        if not isinstance(queue, QueuePlace | None):
            raise BadRequest(f"queue is {queue!r}; it must be a QueuePlace")
        request = checked_request(
            wire.TrimTopicRequest,
            topic=checked_text("topic", topic),
            queue_id=None if queue is None else queue.queue_id,
            offset=None if offset is None else checked_whole("offset", offset),
            time=None if before_ms is None else checked_whole("before_ms", before_ms),
            dry_run=checked_flag("dry_run", dry_run),
        )
        if (before_ms is None) == (offset is None):
            raise BadRequest("give before_ms or offset, and not both")
        if offset is not None and queue is None:
            raise BadRequest("an offset is of one queue: give queue, too")

        def ask(admin: stubs.AdminStub, left: float) -> Awaitable[wire.TrimTopicReply]:
            return admin.TrimTopic(request, timeout=left)

        if queue is not None:
            answers = [await self._of_group(queue.group, ask)]
        else:
            await self._router.groups(self._timeout)
            answers = await self._ask_all(ask, UnknownTopic)
        return [one for answer in answers for one in fromwire.trimmed_of(topic, answer)]

    async def topics(
        self,
        names: Sequence[str] = (),
        system: bool = False,
        *,
        sizes: bool = False,
        problems_only: bool = False,
    ) -> list[TopicDescription]:
        """Topics with the ranges of their queues; all, or those named that exist.

        A topic that several replica groups hold comes once for each of them.

        Args:
            names: of the topics; empty: all.
            system: system topics, too.
            sizes: with `QueueStats.log_bytes`.
            problems_only: only topics that are closed to consumers or producers, and dead-letter
                topics with messages. Older nodes answer with all topics.
        """
        request = checked_request(
            wire.ListTopicsRequest,
            topics=names,
            system=system,
            sizes=sizes,
            problems_only=problems_only,
        )
        answers = await self._ask_all(lambda admin, left: admin.ListTopics(request, timeout=left))
        return [fromwire.topic_of(topic) for answer in answers for topic in answer.topics]

    async def topics_page(
        self,
        contains: str = "",
        *,
        after: str = "",
        limit: int = 100,
        system: bool = False,
        sizes: bool = False,
        times: bool = True,
    ) -> Page[TopicDescription]:
        """Topics by name, so many at a time, with the ranges of their queues.

        A topic that several replica groups hold comes once for each of them, one behind the other.
        Raises BadRequest.

        Args:
            contains: a part of their names, in any case; empty: all topics.
            after: only names behind this one: `Page.next` of the page before.
            limit: at most so many names; 0: all.
            system: system topics, too.
            sizes: with `QueueStats.log_bytes`.
            times: with `QueueStats.last_store_time_ms`, which nodes read from the log.
        """
        wanted = Wanted(contains, after, limit)
        request = checked_request(
            wire.ListTopicsRequest,
            contains=contains,
            after=after,
            limit=limit,
            system=system,
            sizes=sizes,
            without_times=not checked_flag("times", times),
        )
        answers = await self._ask_all(lambda admin, left: admin.ListTopics(request, timeout=left))
        parts = [
            part_of(map(fromwire.topic_of, answer.topics), _topic_name, answer, wanted)
            for answer in answers
        ]
        return joined_page(parts, _topic_name, wanted)

    async def put_group(
        self,
        group: str,
        *,
        orderly: bool | None = None,
        retry_times: int | None = None,
        retry_delays_ms: Sequence[int] = (),
        lite_topic: str | None = None,
        lite_exclusive: bool | None = None,
    ) -> GroupDescription:
        """Create a consumer group, or alter what is given. Raises BadRequest.

        Args:
            group: its name.
            orderly: its consumers get the messages of a queue in order, the next one after the
                last is done (RocketMQ's clients).
            retry_times: attempts after the first, then a message is a dead letter.
            retry_delays_ms: between attempts of push consumers (RocketMQ's clients).
            lite_topic: the topic whose lite topics its clients may subscribe to; empty: none.
            lite_exclusive: one client at a time subscribes to a lite topic, the last that asked.
        """
        request = checked_request(
            wire.PutGroupRequest,
            group=group,
            orderly=orderly,
            retry_times=retry_times,
            retry_delays_ms=retry_delays_ms,
            lite_topic=lite_topic,
            lite_exclusive=lite_exclusive,
        )
        answers = await self._ask_all(lambda admin, left: admin.PutGroup(request, timeout=left))
        return merged(map(fromwire.group_of, answers))[0]

    async def groups(
        self,
        names: Sequence[str] = (),
        *,
        problems_only: bool = False,
        old_ms: int = 0,
        stalled_ms: int = 0,
    ) -> list[GroupDescription]:
        """Groups with their lag; all, or those named that exist.

        Raises NotMaster, soon, where only a slave answers whose master's role is fixed.

        Args:
            names: of the groups; empty: all.
            problems_only: only groups that lag, whose messages were deleted before they were
                consumed, that have dead letters, whose reads a quota delays, whose consumers do not
                read the same, or are more than there are queues, in any replica group. Older nodes
                answer with all groups.
            old_ms, stalled_ms: which lags are such problems: where the oldest message that is not
                consumed is older, or where consumers have committed nothing for longer though
                messages wait; 0: any lag.
        """
        request = checked_request(
            wire.ListGroupsRequest,
            groups=names,
            problems_only=problems_only,
            old_ms=old_ms,
            stalled_ms=stalled_ms,
        )
        places = await self._router.groups(self._timeout)
        answers = await self._list_groups(request, places)
        rest = [self._left_out(*one, answers) for one in zip(places, answers, strict=True)]
        answers += [answer for found in await all_of(*rest) for answer in found]
        rows = (fromwire.group_of(group) for answer in answers for group in answer.groups)
        return merged(row for row in rows if not request.groups or row.group in request.groups)

    async def _list_groups(
        self, request: wire.ListGroupsRequest, places: Sequence[str]
    ) -> list[wire.ListGroupsReply]:
        return await self._ask_all(
            lambda admin, left: admin.ListGroups(request, timeout=left),
            groups=places,
            patient=False,
        )

    async def _left_out(
        self, place: str, answer: wire.ListGroupsReply, answers: Iterable[wire.ListGroupsReply]
    ) -> list[wire.ListGroupsReply]:
        """What a replica group says of groups that are well there, and are not elsewhere."""
        if not answer.left_out:  # older nodes leave out none
            return []
        named = {group.group for other in answers for group in other.groups}
        missing = sorted(named - {group.group for group in answer.groups})
        parts = (missing[at : at + NAMES_AT_ONCE] for at in range(0, len(missing), NAMES_AT_ONCE))
        requests = (wire.ListGroupsRequest(groups=part) for part in parts)
        return [one for request in requests for one in await self._list_groups(request, [place])]

    async def groups_page(
        self, contains: str = "", *, after: str = "", limit: int = 100
    ) -> Page[GroupDescription]:
        """Groups by name with their lag, so many at a time.

        Raises BadRequest, and NotMaster as `groups`.

        Args:
            contains, after, limit: as of `topics_page`.
        """
        wanted = Wanted(contains, after, limit)
        request = checked_request(
            wire.ListGroupsRequest, contains=contains, after=after, limit=limit
        )
        answers = await self._ask_all(
            lambda admin, left: admin.ListGroups(request, timeout=left),
            patient=False,
        )
        parts = [
            part_of(map(fromwire.group_of, answer.groups), _group_name, answer, wanted)
            for answer in answers
        ]
        page = joined_page(parts, _group_name, wanted)
        return replace(page, rows=tuple(merged(page.rows)))

    async def group(self, group: str) -> GroupDescription:
        """One group. Raises UnknownGroup, and NotMaster as `groups`."""
        request = checked_request(wire.DescribeGroupRequest, group=group)
        answers = await self._ask_all(
            lambda admin, left: admin.DescribeGroup(request, timeout=left),
            UnknownGroup,
            patient=False,
        )
        return merged(map(fromwire.group_of, answers))[0]

    async def reset_group(
        self,
        group: str,
        topic: str,
        to: Start | int = Start.EARLIEST,
        *,
        offset: int | None = None,
    ) -> list[QueueOffset]:
        """Set a group's offsets in all queues of a topic. Raises UnknownTopic, Busy, BadRequest.

        Where queues moved, the group continues at later places, as far as the new offsets allow.

        Args:
            group: the consumer group; it must have no members.
            topic: of the queues.
            to: an end of the queues, or the first messages stored at or after a time, ms since
                1970.
            offset: a queue offset, instead of `to`.
        """
        request = checked_request(wire.ResetGroupRequest, group=group, topic=topic, offset=offset)
        if offset is None:
            set_start(request, to)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            answers = await self._ask_all(
                lambda admin, left: admin.ResetGroup(request, timeout=left),
                UnknownTopic,
            )
            places = [place for answer in answers for place in fromwire.offsets_of(answer)]
            if len(answers) < 2 or (to is Start.EARLIEST and offset is None):
                return places
            # It skips nothing behind a seam that it has not come to, and comes there just now.
            come = await self._come_to(group, topic, deadline)
            if come <= len(places) or loop.time() >= deadline:
                return places

    async def _come_to(self, group: str, topic: str, deadline: float) -> int:
        """In how many queues of a topic a group has an offset, once it has come to all queues whose
        places before it has read; 0 where no queue moved.
        """
        spans = (await self.moves(topic)).spans
        while any(span.came_from is not None for span in spans):
            rows = [row for row in (await self.group(group)).queues if row.topic == topic]
            at = {QueuePlace(row.replica_group, row.queue_id): row.committed for row in rows}
            comes = [
                span
                for span in spans
                if span.came_from is not None
                and at.get(span.place) is None
                and (at.get(span.came_from) or 0) >= span.first
            ]
            if not comes or asyncio.get_running_loop().time() >= deadline:
                return sum(offset is not None for offset in at.values())
            await asyncio.sleep(COME_SECONDS)
        return 0

    async def delete_group(self, group: str) -> None:
        """Delete a group, its offsets and its dead letters. Raises UnknownGroup."""
        request = checked_request(wire.DeleteGroupRequest, group=group)
        await self._delete(
            lambda admin, left: admin.DeleteGroup(request, timeout=left), UnknownGroup
        )

    async def track(
        self, topic: str, queue_id: int, queue_offset: int, *, group: str | None = None
    ) -> Mapping[str, TrackState]:
        """States of a message in every consumer group, by its name.

        Raises NoSuchMessage, UnknownTopic.

        group: the replica group of the queue, where the topic lies in several.
        """
        request = checked_request(
            wire.TrackRequest, topic=topic, queue_id=queue_id, queue_offset=queue_offset
        )
        named = None if group is None else [checked_text("group", group)]
        answers = await self._ask_all(
            lambda admin, left: admin.Track(request, timeout=left),
            Fatal,
            named,
        )
        return fromwire.states_of(answers)

    async def track_key(self, topic: str, key: str) -> list[TrackedMessage]:
        """Traces of the messages that were sent to a topic with a key, or a unique key.

        Those that wait for their time or for their producer's decision are among them. Raises
        NoSuchMessage, UnknownTopic.
        """
        request = checked_request(wire.TrackRequest, topic=topic, key=key)
        answers = await self._ask_all(lambda admin, left: admin.Track(request, timeout=left), Fatal)
        return [fromwire.way_of(message) for answer in answers for message in answer.messages]

    async def delayed_page(
        self, topic: str = "", *, after: str = "", limit: int = 100, group: str | None = None
    ) -> DelayedPage:
        """Messages that wait for their time, the soonest first. Raises UnknownTopic, BadRequest.

        Args:
            topic: that they were sent to; empty: all.
            after: `next` of the page before.
            limit: at most so many, 1 to 1000.
            group: of this replica group only.
        """
        checked_text("topic", topic, empty=True)
        begun, limit = places_in(after), check_limit(limit)
        groups = await self._waiting_groups(begun, group)

        def asked(name: str) -> wire.ListDelayedRequest:
            return checked_request(
                wire.ListDelayedRequest, topic=topic, after=begun.get(name, ""), limit=limit
            )

        replies: list[wire.ListDelayedReply] = await self._of_each(
            groups, lambda name, to, left: to.admin.ListDelayed(asked(name), timeout=left)
        )
        return delayed_page_of(replies, begun, limit)

    async def _waiting_groups(self, begun: Mapping[str, str], group: str | None) -> list[str]:
        """The replica groups that have more of a list."""
        if group is not None:
            checked_text("group", group, empty=True)
        names = await self._router.groups(self._timeout)
        return [name for name in ([group] if group else names) if begun.get(name) != END]

    async def _of_each(
        self,
        names: Sequence[str],
        make: Callable[[str, Connection, float], Awaitable[T]],
    ) -> list[T]:
        """Answers of replica groups; a topic may be in some of them only."""

        async def one(name: str) -> T | UnknownTopic:
            try:
                answers = await self._everywhere(partial(make, name), groups=[name])
            except UnknownTopic as error:
                return error
            return answers[0]

        answers = await all_of(*map(one, names))
        found = [answer for answer in answers if not isinstance(answer, UnknownTopic)]
        if not found:
            for answer in answers:
                if isinstance(answer, UnknownTopic):
                    raise answer
        return found

    async def recall_delayed(
        self, topic: str, queue_offset: int, unique_key: str, *, group: str | None = None
    ) -> None:
        """Take back a message that waits for its time; no consumer gets it.

        Raises NoSuchMessage where it does not wait any more, ResultUnknown.

        Args:
            topic: that it was sent to.
            queue_offset: where it waits, in rmq_sys_wheel_timer.
            unique_key: that its producer gave it.
            group: the replica group that holds it, where the topic lies in several.
        """
        request = checked_request(
            wire.RecallDelayedRequest, topic=topic, queue_offset=queue_offset, unique_key=unique_key
        )
        named = None if group is None else [checked_text("group", group)]
        await self._router.groups(self._timeout)
        await self._ask_all(
            lambda admin, left: admin.RecallDelayed(request, timeout=left),
            Fatal,
            named,
        )

    async def halves_page(
        self, topic: str = "", *, after: str = "", limit: int = 100, group: str | None = None
    ) -> HalvesPage:
        """Half messages without a decision. Raises UnknownTopic, BadRequest.

        topic, after, limit, group: as for `delayed_page`.
        """
        checked_text("topic", topic, empty=True)
        begun, limit = places_in(after), check_limit(limit)
        groups = await self._waiting_groups(begun, group)

        def asked(name: str) -> wire.ListHalvesRequest:
            return checked_request(
                wire.ListHalvesRequest, topic=topic, after=begun.get(name, ""), limit=limit
            )

        replies: list[wire.ListHalvesReply] = await self._of_each(
            groups, lambda name, to, left: to.admin.ListHalves(asked(name), timeout=left)
        )
        return halves_page_of(replies, begun, limit)

    async def half(self, half: int, *, group: str) -> HalfMessage:
        """The half message that a replica group stored at an offset, if it is not decided.

        Raises NoSuchMessage.
        """
        request = checked_request(wire.ListHalvesRequest, half=half)
        checked_text("group", group)
        await self._router.groups(self._timeout)
        answers = await self._ask_all(
            lambda admin, left: admin.ListHalves(request, timeout=left),
            groups=[group],
        )
        for row in answers[0].messages:
            return half_of(row, answers[0].group)
        raise NoSuchMessage(f"no half message {half} that may be seen waits for a decision")

    async def decide_half(
        self, producer_group: str, half: int, *, commit: bool, group: str
    ) -> None:
        """Commit a half message, or roll it back, in the place of its producer.

        Repeating a decision is no error. Raises BadRequest where it belongs to another producer
        group, NoSuchMessage where it never was or was decided the other way, ResultUnknown.

        group: the replica group that holds it.
        """
        request = checked_request(
            wire.DecideHalfRequest, group=producer_group, half=half, commit=commit
        )
        checked_text("group", group)
        await self._router.groups(self._timeout)
        await self._ask_all(
            lambda admin, left: admin.DecideHalf(request, timeout=left),
            groups=[group],
        )

    async def move_queue(
        self, topic: str, queue_id: int, to: str, *, group: str, plan: bool = False
    ) -> QueueMove:
        """Begin to move a queue to another replica group; how far it is after some seconds.

        It continues whatever becomes of the caller; to call again tells how far it is. No message
        is copied: the queue ends where it is, and continues in a new queue of the other group.
        Raises UnknownTopic; BadRequest for a queue that cannot move, and says why; Busy while it
        moves elsewhere, or the other group has no master.

        Args:
            topic: of the queue.
            queue_id: in `group`.
            to: the replica group that it is to move to.
            group: the replica group that takes its messages now.
            plan: only say whether it could begin.
        """
        request = checked_request(
            wire.MoveQueueRequest,
            topic=checked_text("topic", topic),
            queue_id=checked_whole("queue_id", queue_id, 0, INT32_MAX),
            group=checked_text("to", to),
            plan=checked_flag("plan", plan),
        )
        return fromwire.move_of(
            (await self._of_group(group, lambda a, left: a.MoveQueue(request, timeout=left))).move
        )

    async def abort_move(self, topic: str, queue_id: int, *, group: str) -> QueueMove:
        """End the move of a queue, which is possible until it is sealed; how far that is.

        Raises UnknownTopic, BadRequest where nothing moves, or too late.

        topic, queue_id, group: as of `move_queue`.
        """
        request = checked_request(
            wire.AbortMoveRequest,
            topic=checked_text("topic", topic),
            queue_id=checked_whole("queue_id", queue_id, 0, INT32_MAX),
        )
        return fromwire.move_of(
            (await self._of_group(group, lambda a, left: a.AbortMove(request, timeout=left))).move
        )

    async def _of_group(self, group: str, make: Asking[T]) -> T:
        """What the master of a replica group answers."""
        checked_text("group", group)
        await self._router.groups(self._timeout)
        return (await self._ask_all(make, groups=[group]))[0]

    async def moves(self, topic: str = "") -> QueueMoves:
        """Queues that move between replica groups or have moved; of a topic, or all."""
        request = checked_request(
            wire.ListMovesRequest, topic=checked_text("topic", topic, empty=True)
        )
        try:
            answers = await self._ask_all(
                lambda admin, left: admin.ListMoves(request, timeout=left),
                BadRequest,  # of older nodes, which know of no moves
                patient=False,
            )
        except BadRequest:
            return QueueMoves()
        spans = [fromwire.span_of(row) for answer in answers for row in answer.spans]
        spans.sort(key=lambda one: (one.topic, one.name, one.first, one.end is None))
        moves = (fromwire.move_of(row) for answer in answers for row in answer.moves)
        return QueueMoves(tuple(moves), tuple(spans))

    async def put_quota(self, /, subject: str, **limits: int) -> Quota:
        """Set limits of a user, a client address, a topic or a namespace. Raises BadRequest.

        Args:
            subject: as `Quota.subject`.
            limits: those of `Quota`, by name; 0 is none. Those that are not given stay.
        """
        if unknown := sorted(limits.keys() - LIMITS):
            raise BadRequest(f"{unknown[0]} is not one of {', '.join(sorted(LIMITS))}")
        for name, limit in limits.items():
            checked_whole(name, limit)
        request = checked_request(
            wire.PutQuotaRequest, subject=subject, **cast(dict[str, Any], limits)
        )
        answers = await self._ask_all(
            lambda admin, left: admin.PutQuota(request, timeout=left),
            groups=await self._router.all_groups(self._timeout),
        )
        return fromwire.quota_of(answers[0])

    async def delete_quota(self, subject: str) -> None:
        """Take all limits from a subject. Raises BadRequest where it has none."""
        request = checked_request(wire.DeleteQuotaRequest, subject=subject)
        # A group that joined later may have none.
        groups = await self._router.all_groups(self._timeout)
        await self._delete(
            lambda admin, left: admin.DeleteQuota(request, timeout=left), BadRequest, groups
        )

    async def quotas(self) -> list[Quota]:
        """All quotas, by subject."""
        request = wire.ListQuotasRequest()
        reply = await self._ask(lambda admin, left: admin.ListQuotas(request, timeout=left))
        return [fromwire.quota_of(row) for row in reply.quotas]

    async def find(
        self,
        topic: str = "",
        *,
        key: str = "",
        unique_key: str = "",
        message_id: str = "",
        count: int = 32,
        begin_ms: int = 0,
        end_ms: int = 0,
    ) -> list[FoundMessage]:
        """Messages by key and time, by unique key, or by message id. Raises NoSuchMessage.

        Args:
            topic: not needed with a message id.
            key: one of its keys.
            unique_key: the one that its producer gave it.
            message_id: 32 or 56 hex digits.
            count: at most so many.
            begin_ms, end_ms: stored from then until then; 0: no end.
        """
        request = checked_request(
            wire.FindRequest,
            topic=topic,
            key=key,
            unique_key=unique_key,
            message_id=message_id,
            max=count,
            begin_time=begin_ms,
            end_time=end_ms,
        )
        names = await self._router.groups(self._timeout)
        several = len(names) > 1
        group_of = {self._router.connection(name): name for name in names}

        async def ask(connection: Connection, left: float) -> list[FoundMessage]:
            answer = await connection.messages.Find(request, timeout=left)
            group = group_of.get(connection, "")
            return [fromwire.message_of(row, group) for row in answer.messages]

        answers = await self._everywhere(
            ask, (NoSuchMessage if unique_key or message_id else UnknownTopic) if several else None
        )
        found = [row for answer in answers for row in answer]
        return sorted(found, key=lambda each: each.store_time_ms)[:count] if several else found

    async def offset_at_time(
        self, topic: str, queue_id: int, at: Start | int, *, group: str | None = None
    ) -> int:
        """Queue offset of an end of a queue, or of the first message stored at or after a time.

        Raises UnknownTopic, BadRequest.

        Args:
            topic, queue_id: the queue.
            at: an end of the queue, or a time, ms since 1970.
            group: the replica group of the queue; the first one where not given.
        """
        request = checked_request(wire.OffsetAtTimeRequest, topic=topic, queue_id=queue_id)
        set_start(request, at)
        if group is not None:
            checked_text("group", group)
        names = await self._router.groups(self._timeout)
        answers = await self._everywhere(
            lambda connection, left: connection.groups.OffsetAtTime(request, timeout=left),
            groups=[group] if group is not None else names[:1],
        )
        return int(answers[0].queue_offset)

    async def offset_at_size(
        self, topic: str, queue_id: int, queue_offset: int, size: int, *, group: str
    ) -> int:
        """Queue offset up to which the records from another one on have at most size bytes.

        At least one record further, where there is one. group: the replica group of the queue.
        """
        request = checked_request(
            wire.OffsetAtSizeRequest,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            bytes=size,
        )
        answers = await self._everywhere(
            lambda connection, left: connection.groups.OffsetAtSize(request, timeout=left),
            groups=[group],
        )
        return int(answers[0].queue_offset)

    async def commit(
        self, group: str, offsets: Mapping[tuple[str, str, int], int], *, forward: bool = False
    ) -> None:
        """Commit offsets of a consumer group that has no members: the next ones to read.

        Args:
            group: the consumer group; made if there is none.
            offsets: by topic, replica group and queue id.
            forward: an offset below the committed one changes nothing; the group may have members.

        Raises:
            UnknownTopic, BadRequest.
        """
        checked_text("group", group)
        checked_flag("forward", forward)
        _check_places(offsets)
        await self._router.groups(self._timeout)
        for name in sorted({replica_group for _, replica_group, _ in offsets}):
            request = checked_request(
                wire.CommitRequest,
                group=group,
                forward=forward,
                offsets=[
                    wire.QueueOffset(topic=topic, queue_id=queue_id, offset=offset)
                    for (topic, replica_group, queue_id), offset in sorted(offsets.items())
                    if replica_group == name
                ],
            )
            await self._everywhere(_committing(request), groups=[name])

    async def node_status(self) -> NodeStatus:
        """Status of a node: the one that the client was given, or the first of them
        that answers."""
        request = wire.NodeStatusRequest()
        seed = self._router.seed
        reply: wire.NodeStatusReply = await seed.call(
            lambda left: seed.admin.NodeStatus(request, timeout=left),
            self._timeout,
            others=Others.GIVEN,
        )
        return fromwire.node_of(reply)

    async def route(self) -> Route:
        """The replica groups, their masters and replicas, and where they are reached."""
        request = wire.RouteRequest()
        reply = await self._ask(lambda admin, left: admin.Route(request, timeout=left))
        return fromwire.route_of(reply)

    async def failover(self, node: str = "", *, epoch: int = 0) -> None:
        """Make another node the master while all live (planned switch).

        Args:
            node: the next master; any in-sync one where not named.
            epoch: the mastership to end, as `route` shows it; the present one where not given.
                Where it is over already and the node leads, nothing is done.

        Raises:
            BadRequest: that node is not in sync, or the epoch is over and another node leads.
            ResultUnknown: the switch may or may not happen. To request it again, name the epoch.
            Unavailable, Timeout, NotMaster, Busy: nothing was done.
        """
        checked_text("node", node, empty=True)
        checked_whole("epoch", epoch)
        await Switch(self._router.seed, node, epoch).order(self._timeout)

    async def drain(self, node: str, *, undo: bool = False) -> None:
        """Take a node out: it is not elected and does not count for puts; undo brings it back.

        When this returns, the node neither leads nor does a put wait for it: it may be stopped.
        Raises Busy where it is marked as drained and others cannot do without it, or not within
        2.5 s: repeat it then.
        """
        request = checked_request(wire.DrainRequest, node=node, undo=undo)
        await self._ask(lambda admin, left: admin.Drain(request, timeout=left))

    async def forget(self, node: str) -> None:
        """Remove a node that is down for good from its group; status and diagnosis name it no more.

        A node of that name that starts again is a member again. Raises BadRequest where it lives,
        or is in the SyncStateSet.
        """
        request = checked_request(wire.ForgetRequest, node=node)
        await self._ask(lambda admin, left: admin.Forget(request, timeout=left))

    async def retire_group(self, group: str, *, undo: bool = False) -> None:
        """Have a replica group get no new topics and queues, so that it can be emptied; undo ends
        that. Its queues stay where they are until they are moved.

        Raises BadRequest where no other group stays, or a node has a version that knows no groups
        that retire; ResultUnknown.
        """
        request = checked_request(
            wire.RetireGroupRequest, replica_group=checked_text("group", group), undo=undo
        )
        await self._ask(lambda admin, left: admin.RetireGroup(request, timeout=left))

    async def forget_group(self, group: str) -> None:
        """Remove a retiring replica group, whose nodes were stopped for good.

        Raises BadRequest where it does not retire, or one of its nodes lives; ResultUnknown.
        """
        request = checked_request(
            wire.ForgetGroupRequest, replica_group=checked_text("group", group)
        )
        await self._ask(lambda admin, left: admin.ForgetGroup(request, timeout=left))

    async def freeze(self, seconds: int | None = None) -> FreezeStatus:
        """Have the master store nothing for so long, for the way back to RocketMQ; 0: store again.

        None changes nothing. Raises BadRequest, NotMaster.
        """
        request = checked_request(wire.FreezeRequest, seconds=seconds)
        reply = await self._ask(lambda admin, left: admin.Freeze(request, timeout=left))
        return FreezeStatus(reply.frozen, reply.max_offset, reply.messages_end, reply.tables_given)

    async def set_guarantee(self, setting: str, value: str) -> Mapping[str, str]:
        """Set what puts of the group are promised, whichever node leads; all settings as they are.

        Args:
            setting: in-sync-replicas, flush-disk-type (with the acknowledgements of slaves, as
                `ha.ack = auto` has it) or ack.
            value: a number; SYNC_FLUSH or ASYNC_FLUSH; durable or received.

        A node whose own settings ask for more keeps them while it leads. Raises BadRequest.
        """
        request = checked_request(wire.SetGuaranteeRequest, setting=setting, value=value)
        reply = await self._ask(lambda admin, left: admin.SetGuarantee(request, timeout=left))
        return dict(reply.guarantee)

    async def elect_unclean(self, epoch: int) -> None:
        """Make the node that the client was given the master, even if others have acknowledged
        messages that it lacks.

        Args:
            epoch: the last epoch; another one is refused.

        What the other members of the SyncStateSet held alone is given up; the group's state
        records it. Raises BadRequest.
        """
        request = checked_request(wire.ElectUncleanRequest, epoch=epoch)
        seed = self._router.seed
        await seed.call(
            lambda left: seed.admin.ElectUnclean(request, timeout=left),
            self._timeout,
            attempt=self._timeout,
            others=Others.NONE,
        )

    async def cluster_status(self) -> ClusterStatus:
        """The nodes of the cluster: in their own words, or their master's, where these can be had.

        Nodes that no master told of are asked themselves; the rows of those that do not answer are
        marked `stale`.
        """
        request = wire.ClusterStatusRequest()
        reply = await self._ask(lambda admin, left: admin.ClusterStatus(request, timeout=left))
        first = fromwire.cluster_of(reply)
        masters = [n.listen for n in first.nodes if n.stale and n.is_master and n.listen]
        runtime = self._router.runtime
        answers = await all_of(*(_cluster_as_told_by(at, runtime) for at in masters))
        told = joined([first, *(answer for answer in answers if answer is not None)])
        own = await all_of(
            *(
                status_or_refusal(node.listen, patience_with(node, MASTER_SECONDS), runtime)
                for node in told.nodes
                if node.stale and node.listen
            )
        )
        alone = [
            ClusterStatus(told.cluster, (node,)) for node in own if isinstance(node, NodeStatus)
        ]
        return joined([told, *alone])


def _check_places(offsets: Mapping[tuple[str, str, int], int]) -> None:
    """Raise BadRequest where these are no queues, or no offsets of them."""
    if not isinstance(offsets, Mapping):
        raise BadRequest(f"offsets must be a dict, not {type(offsets).__name__}")
    for place, offset in offsets.items():
        if not isinstance(place, tuple) or len(place) != 3:
            raise BadRequest(f"{place!r} is no (topic, replica group, queue id)")
        checked_text("a topic of offsets", place[0])
        checked_text("a replica group of offsets", place[1])
        checked_whole("a queue id of offsets", place[2], 0, INT32_MAX)
        checked_whole("one of offsets", offset)


def patience_with(node: NodeStatus, seconds: float) -> float:
    """How long to wait for a node's answer: one that is down may only have lost the registry."""
    return min(seconds, DOWN_SECONDS) if node.is_down else seconds


class _Deletion:
    """A deletion in every replica group, which may be tried again where its answer was lost.

    The next try may be answered that it does not exist: then the deletion is done.
    """

    def __init__(
        self,
        make: Asking[object],
        gone: type[DuologError],
    ) -> None:
        """gone: what a node answers where there is nothing to delete."""
        self._make = make
        self._gone = gone
        self._tried: set[Connection] = set()  # where an earlier try may have run

    async def __call__(self, connection: Connection, left: float) -> None:
        """One try."""
        again = connection in self._tried
        self._tried.add(connection)
        try:
            await self._make(connection.admin, left)
        except grpc.RpcError as failure:
            error = error_of(failure)
            if isinstance(error, self._gone) and again:
                return
            if isinstance(error, NotMaster) and not again:
                self._tried.discard(connection)  # it surely did not run
            raise


async def status_of(
    endpoint: str,
    seconds: float,
    runtime: Runtime = MACHINE,
    raised: tuple[type[DuologError], ...] = REFUSED,
) -> NodeStatus | None:
    """A node's status, None if it does not answer in time. Raises as `ask_one`."""
    request = wire.NodeStatusRequest()
    reply = await ask_one(
        endpoint,
        lambda admin, left: admin.NodeStatus(request, timeout=left),
        seconds,
        runtime,
        raised,
    )
    return None if reply is None else fromwire.node_of(reply)


async def status_or_refusal(
    endpoint: str, seconds: float, runtime: Runtime = MACHINE
) -> NodeStatus | DuologError | None:
    """`status_of`; or the error of a node that answers with a refusal."""
    try:
        return await status_of(endpoint, seconds, runtime, (*REFUSED, NotMaster))
    except DuologError as error:
        return error


async def topics_at(
    endpoint: str, names: Sequence[str], seconds: float, runtime: Runtime = MACHINE
) -> list[TopicDescription]:
    """Topics as one node has them; none where it does not answer in time."""
    request = checked_request(wire.ListTopicsRequest, topics=names)
    reply = await ask_one(
        endpoint, lambda admin, left: admin.ListTopics(request, timeout=left), seconds, runtime
    )
    return [] if reply is None else [fromwire.topic_of(topic) for topic in reply.topics]


async def _cluster_as_told_by(master: str, runtime: Runtime) -> ClusterStatus | None:
    """A master's view of the cluster, None if it does not answer in time."""
    request = wire.ClusterStatusRequest()
    reply = await ask_one(
        master,
        lambda admin, left: admin.ClusterStatus(request, timeout=left),
        MASTER_SECONDS,
        runtime,
    )
    return None if reply is None else fromwire.cluster_of(reply)


def _topic_name(topic: TopicDescription) -> str:
    return topic.topic


def _group_name(group: GroupDescription) -> str:
    return group.group


def _committing(
    request: wire.CommitRequest,
) -> Callable[[Connection, float], Awaitable[wire.CommitReply]]:
    return lambda connection, left: connection.groups.Commit(request, timeout=left)


def joined(replies: Sequence[ClusterStatus]) -> ClusterStatus:
    """Merge several nodes' views of a cluster: the best of each node (first in its own reply)."""
    best: dict[tuple[str, str], tuple[int, NodeStatus]] = {}
    for reply in replies:
        for number, node in enumerate(reply.nodes):
            rank = 2 if node.stale else min(number, 1)
            key = (node.replication.group, node.name)
            if key not in best or rank < best[key][0]:
                best[key] = (rank, node)
    return ClusterStatus(replies[0].cluster, tuple(node for _, node in best.values()))


def merged(groups: Iterable[GroupDescription]) -> list[GroupDescription]:
    """Consumer groups by name: what several replica groups said of one of them, together."""
    found: dict[str, GroupDescription] = {}
    for group in groups:
        known = found.get(group.group)
        if known is not None:
            group = replace(
                known,
                members=max(known.members, group.members),
                queues=known.queues + group.queues,
                clients=max(known.clients, group.clients),
                client_topics=tuple(sorted({*known.client_topics, *group.client_topics})),
                subscriptions=_together(known.subscriptions, group.subscriptions),
                sharing_clients=max(known.sharing_clients, group.sharing_clients),
                holds=tuple(dict.fromkeys(known.holds + group.holds)),
            )
        found[group.group] = group
    return list(found.values())


def _together(*told: Sequence[GroupSubscription]) -> tuple[GroupSubscription, ...]:
    """How consumers select messages, as several replica groups know it: they are the same ones."""
    found: dict[tuple[str, str, bool], GroupSubscription] = {}
    for row in (one for rows in told for one in rows):
        known = found.setdefault((row.topic, row.expression, row.is_sql), row)
        if (row.members, row.sharing) > (known.members, known.sharing):
            found[row.topic, row.expression, row.is_sql] = row
    return tuple(found.values())
