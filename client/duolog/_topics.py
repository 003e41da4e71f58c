"""Which queues a topic has, in which replica groups: asked of the nodes, kept for a while."""

import asyncio
from typing import NamedTuple

from duolog._background import Joint
from duolog._backoff import BackOff
from duolog._errors import Unavailable, UnknownTopic
from duolog._router import FRESH_SECONDS, Router
from duolog.wire import duolog_pb2 as wire

Slot = tuple[str, int]  # replica group, queue id in it
GROUP_SECONDS = 1.0  # that other groups have to answer, once one has named queues of the topic
INCOMPLETE_SECONDS = 5.0  # for which an answer holds that lacks a group


class LogEnd(NamedTuple):
    """A log offset below which everything was confirmed when a node told of it.

    nonce: of the epoch that wrote the bytes before it. A later master's log may lack some of them
    (an unclean election): by the epoch a node can tell how far its own log has them.
    """

    offset: int
    nonce: int


NO_END = LogEnd(0, 0)
_UNKNOWN: tuple[float, list[Slot]] = (0.0, [])


class TopicCache:
    """A topic's queues by group, kept for 30 seconds."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._known: dict[str, tuple[float, list[Slot]]] = {}  # and until when
        self._whole: dict[str, tuple[float, list[Slot]]] = {}  # with every group, and since when
        # By topic and group, the queues that moved there.
        self._guests: dict[str, dict[str, list[int]]] = {}
        self._asking: Joint[tuple[str, bool], list[Slot]] = Joint()
        self._learning: Joint[tuple[str, str], int] = Joint()
        self._ends: dict[str, LogEnd] = {}

    def known_end(self, group: str) -> LogEnd:
        """Up to where a group's log is confirmed, as its nodes told; NO_END before they did."""
        return self._ends.get(group, NO_END)

    def note_end(self, group: str, end: LogEnd) -> None:
        """A group's log is confirmed up to an offset.

        Ends of one epoch only grow. Another epoch's says nothing about them, and is newer: taken.
        """
        known = self._ends.get(group, NO_END)
        if end.nonce != known.nonce or end.offset > known.offset:
            self._ends[group] = end

    def knows_end(self, group: str) -> bool:
        """Whether a node told up to where a group's log is confirmed."""
        return group in self._ends

    async def learn_end(self, group: str, topic: str, timeout: float) -> None:
        """Ask a node up to where a group's log is confirmed.

        All wait for the same answer: sends continue in the order they came.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._learning.call(
            (group, topic),
            lambda: self._queues(group, topic, max(0.001, deadline - loop.time()), create=True),
            deadline,
        )

    async def slots(self, topic: str, timeout: float, create: bool = False) -> list[Slot]:
        """All queues of a topic, sorted by group and id. Raises UnknownTopic.

        create: to send to it; nodes that create topics on their first use do.
        """
        self._router.check_process()
        loop = asyncio.get_running_loop()
        known = self._known.get(topic)
        if known is not None and loop.time() < known[0]:
            return known[1]
        deadline = loop.time() + timeout
        # All wait for the same answer: sends continue in the order they came.
        return await self._asking.call(
            (topic, create),
            lambda: self._ask(topic, max(0.001, deadline - loop.time()), create),
            deadline,
        )

    def guest_groups(self, topic: str) -> list[str]:
        """The replica groups to which queues of a topic moved, as of the last `slots`. They may
        hold no others, which would be sent to.
        """
        return sorted(group for group, ids in self._guests.get(topic, {}).items() if ids)

    def at_hand(self, topic: str, now: float) -> list[Slot]:
        """The cached result of `slots`, for any thread; empty where it would ask."""
        until, slots = self._known.get(topic, _UNKNOWN)
        return slots if now < until else []

    async def _ask(self, topic: str, timeout: float, create: bool) -> list[Slot]:
        """Ask nodes for `slots`; a topic is unknown only if every group says so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        back_off = BackOff(self._router.runtime.chance)
        while True:
            try:
                return await self._ask_once(topic, max(0.001, deadline - loop.time()), create)
            except UnknownTopic:
                groups = self._router.unreachable()
                pause = back_off.next()
                if not groups:
                    raise
                if loop.time() + pause >= deadline:
                    raise Unavailable(
                        f"topic {topic!r} is unknown to the replica groups that answer, "
                        f"and {', '.join(groups)} cannot be reached"
                    ) from None
                await asyncio.sleep(pause)

    async def _ask_once(self, topic: str, timeout: float, create: bool) -> list[Slot]:
        groups = await self._router.groups(timeout)
        answers = await self._answers(groups, topic, timeout, create)
        found = [
            (group, queue_id)
            for group, answer in zip(groups, answers, strict=True)
            if isinstance(answer, int)
            for queue_id in range(answer)
        ]
        if not found and all(isinstance(answer, int) for answer in answers):
            # The groups that they were made in have left.
            guests = self._guests.get(topic, {}).items()
            found = [(group, queue_id) for group, ids in sorted(guests) for queue_id in ids]
        if not found:
            self._known.pop(topic, None)
            self._whole.pop(topic, None)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            raise UnknownTopic(f"topic {topic!r} does not exist; create it first")
        complete = all(isinstance(answer, int) for answer in answers)
        complete = complete and not self._router.unreachable()
        now = asyncio.get_running_loop().time()
        if complete:
            self._whole[topic] = (now, found)
        else:
            silent = [g for g, a in zip(groups, answers, strict=True) if not isinstance(a, int)]
            found = sorted({*found, *self._kept(topic, silent, now)})
        seconds = FRESH_SECONDS if complete else INCOMPLETE_SECONDS
        self._known[topic] = (now + seconds, found)
        return found

    def _kept(self, topic: str, silent: list[str], now: float) -> list[Slot]:
        """Queues of groups that do not answer, for a while: a failover moves no key elsewhere."""
        since, slots = self._whole.get(topic, (now, []))
        if now - since >= 2 * FRESH_SECONDS:
            return []
        return [slot for slot in slots if slot[0] in silent]

    async def _answers(
        self, groups: list[str], topic: str, timeout: float, create: bool
    ) -> list[int | Exception | None]:
        """Each group's answer, None where none came in time.

        A dead one does not delay callers that got queues from another one.
        """
        answers: dict[str, int | Exception] = {}

        async def ask(group: str) -> None:
            try:
                answers[group] = await self._queues(group, topic, timeout, create)
            except Exception as error:
                answers[group] = error

        if len(groups) == 1:  # most often: with less to do
            await ask(*groups)
            return [answers[groups[0]]]
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(ask(group)) for group in groups]
            left = set(asking)
            while left and not any(map(_has_queues, answers.values())):
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if left:
                await asyncio.wait(left, timeout=GROUP_SECONDS)
            for task in asking:
                task.cancel()
        return [answers.get(group) for group in groups]

    async def _queues(self, group: str, topic: str, timeout: float, create: bool) -> int:
        """Queues of a topic in one group, 0 if it has none."""
        connection = self._router.connection(group)
        request = wire.ListTopicsRequest(topics=[topic], create=create)
        reply = await connection.call(
            lambda left: connection.admin.ListTopics(request, timeout=left), timeout
        )
        self.note_end(group, LogEnd(reply.confirm_offset, reply.confirm_nonce))
        found = reply.topics[0] if reply.topics else wire.TopicReply()
        guests = self._guests.setdefault(topic, {})
        guests[group] = [guest.queue_id for guest in found.guests]
        return int(found.queues)

    async def slot(
        self, topic: str, queue_id: int, group: str | None, timeout: float
    ) -> tuple[str, int]:
        """The queue that a user named. Raises UnknownTopic where the name fits several."""
        groups = await self._router.groups(timeout)
        if group is None and len(groups) > 1:
            groups = sorted({name for name, _ in await self.slots(topic, timeout)})
        if group is None and len(groups) > 1:
            raise UnknownTopic(
                f"{topic} has queues in {', '.join(groups)}: name the replica group of queue "
                f"{queue_id}"
            )
        return (group if group is not None else groups[0]), queue_id

    def forget(self, topic: str) -> None:
        """Ask again the next time."""
        self._known.pop(topic, None)

    async def close(self) -> None:
        """Ask no more."""
        if self._router.forked:
            return
        for shared in (self._asking, self._learning):
            await shared.stop()


def _has_queues(answer: int | Exception) -> bool:
    return isinstance(answer, int) and answer > 0
