"""The target of moves: answers requests of their sources by this group's log.

Requests of one topic are answered one at a time. What the confirmed tables do not answer is stored,
and answered by them once it is confirmed. What they lack is said only once a note that was stored
after the request is confirmed: a former master does not get that far.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from duolog import _errors as sdk
from duolog._background import all_of

from duolog_server.ha.mover import is_renewed
from duolog_server.ha.moverevents import Ask, Refused, Reply, Request, Reserve, Revoke
from duolog_server.ha.movetarget import is_absence, note, records_for, reply_to
from duolog_server.node.core.core import Core
from duolog_server.node.core.keyedlocks import KeyedLocks
from duolog_server.node.moving.movecodec import Settings
from duolog_server.store.errors import BadMessage
from duolog_server.store.metadata import LITE, Json, TopicConfig
from duolog_server.store.moves import Moves
from duolog_server.store.names import check_topic

ANSWER_SECONDS = 8.0
GROUPS_AT_ONCE = 100  # made for a topic


class MoveTarget:
    """Answers while this node is the master, and knows all that its group confirmed."""

    def __init__(self, core: Core, group: str) -> None:
        """group: this one."""
        self._core = core
        self._metadata = core.metadata
        self._group = group
        self._turns = KeyedLocks()  # for the requests of a topic

    async def answer(self, topic: str, request: Request, settings: Settings) -> Reply:
        """The answer of this group.

        Raises NotMaster, BadRequest, BadMessage, Unavailable after 8 s, and as a change of
        metadata; the request may have been stored then, and may be repeated.
        """
        self._core.admission.check_current()
        check_topic(topic)
        if isinstance(request, Reserve | Revoke) and request.came_from.group == self._group:
            raise sdk.BadRequest(f"a queue of group {self._group} cannot move to it")
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._turns.lock(topic):
                return await self._answered(topic, request, settings)
        except TimeoutError:
            raise sdk.Unavailable(f"no answer could be confirmed in {ANSWER_SECONDS:g} s") from None

    @property
    def _moves(self) -> Moves:
        """As they are confirmed."""
        return self._metadata.tables.moves

    async def _answered(self, topic: str, request: Request, settings: Settings) -> Reply:
        noted = False
        while True:
            reply = reply_to(self._moves, topic, self._group, request)
            if reply is None and isinstance(request, Reserve):
                reply = await self._unfit(topic, request, settings)
            if reply is None:
                await self._store(topic, request)
            elif is_absence(reply) and not noted:
                await self._metadata.change(note(topic))
                noted = True
            else:
                return reply

    async def _store(self, topic: str, request: Request) -> None:
        assert not isinstance(request, Ask), "the tables answer it"
        stored, unused = self._metadata.stored_moves, 0
        if stored.reserved_by(topic, request.move) is None:
            unused = self._metadata.unused_queue(topic, last=isinstance(request, Revoke))
        await self._metadata.change(*records_for(stored, topic, request, unused))

    async def _unfit(self, topic: str, asked: Reserve, settings: Settings) -> Refused | None:
        """Make what a reservation needs; why it cannot be made, or None."""
        if self._metadata.creating(topic) is not None:
            await self._metadata.all_applied()
        try:
            theirs = TopicConfig.from_json(settings.topic)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise sdk.BadRequest(
                f"the settings of topic {topic!r} cannot be read: {error}"
            ) from None
        if theirs.name != topic:
            raise sdk.BadRequest(f"the settings are those of topic {theirs.name!r}, not {topic!r}")
        if LITE in (theirs.message_type, self._type_of(topic)):
            return Refused(asked.move, f"queues of topic {topic}, which has lite topics, stay")
        if self._knows(topic) and self._type_of(topic) != theirs.message_type:
            here, there = self._type_of(topic) or "of any type", theirs.message_type or "any"
            reason = (
                f"messages of topic {topic} are {here} in group {self._group}, and {there} there"
            )
            return Refused(asked.move, reason)
        if (
            not self._knows(topic)
            and is_renewed(asked.move)
            and topic in self._metadata.tables.floors
        ):
            # Not lost: the source will hear of the deletion, too, and must not undo it here.
            return Refused(asked.move, f"topic {topic} was deleted in group {self._group}")
        # What it has lost has ended at its source: that has no other place to go.
        if self._metadata.retires() and not is_renewed(asked.move):
            return Refused(asked.move, f"group {self._group} retires, and takes no queues")
        try:
            if not self._knows(topic) and not self._metadata.retires():
                self._metadata.new_topic(topic, 1, theirs.perm, theirs.owner)
            self._metadata.unused_queue(topic)
        except (BadMessage, sdk.Busy) as error:
            return Refused(asked.move, str(error))
        if not self._knows(topic):
            await self._make(theirs)
        await self._make_groups(settings.groups)
        return None

    def _knows(self, topic: str) -> bool:
        return topic in self._metadata.topics

    def _type_of(self, topic: str) -> str:
        known = self._metadata.topics.get(topic)
        return known.message_type if known is not None else ""

    async def _make(self, theirs: TopicConfig) -> None:
        """Make a topic without queues of its own: with some, keys would get other queues."""
        await self._metadata.put_topic(replace(theirs, queues=0, guests=0))

    async def _make_groups(self, rows: Sequence[Json]) -> None:
        by_name = {str(row.get("groupName", "")): row for row in rows}
        missing = [name for name in by_name if name and not self._metadata.has_group(name)]
        for at in range(0, len(missing), GROUPS_AT_ONCE):
            some = missing[at : at + GROUPS_AT_ONCE]
            await all_of(*(self._metadata.ensure_group(name, by_name[name]) for name in some))
