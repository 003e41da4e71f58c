"""Consumer groups as operators change them, and the offsets that groups commit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.node.core.core import Core
from duolog_server.node.identity.access.rules import Facts, need, reads, sees_topic
from duolog_server.node.identity.rights.resources import Action, Need, group
from duolog_server.node.moving.crossings import Crossings
from duolog_server.node.pop.liteservice import bound, bound_topic, is_exclusive
from duolog_server.node.pop.popservice import PopService
from duolog_server.node.service.operatorchanges import OperatorChange, OperatorChanges
from duolog_server.store.metadata import LITE, Json, TopicConfig, check_group, new_group

RETRY_TIMES_MAX = 1000
REQUEST_MODES = "messageRequestModes"  # in a group's settings: by topic, where it is not PULL


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings that a group gets; those that are None, or empty, stay as they are.

    request_mode: a topic, and how clients by the remoting protocol that let the node assign their
    queues read it, PULL or POP.
    others: settings that this node stores for RocketMQ's tools, by RocketMQ's names, and ignores.
    """

    orderly: bool | None = None
    retry_times: int | None = None
    retry_delays_ms: tuple[int, ...] = ()
    lite_topic: str | None = None
    lite_exclusive: bool | None = None
    request_mode: tuple[str, str] | None = None
    others: Mapping[str, bool | int] = field(default_factory=dict)

    def shown(self) -> dict[str, object]:
        """The settings that are given, for the audit log."""
        found = {key: value for key, value in asdict(self).items() if value not in (None, ())}
        return {**found.pop("others"), **found}


@dataclass(frozen=True, slots=True)
class Reset:
    """Where a group continues in a topic.

    Attributes:
        place: computes the new offsets, by queue, from the queues that the group has come to.
        shown: the request's fields, for the audit log.
        told: notifies members that keep their own offsets; returns whether there are any.
    """

    group: str
    topic: str
    place: Callable[[Sequence[int]], dict[int, int]]
    shown: Mapping[str, object]
    told: Callable[[dict[int, int]], bool] = lambda offsets: False


class Groups:
    """Changes of consumer groups, by any protocol: authorised, audited, stored."""

    def __init__(
        self,
        core: Core,
        changes: OperatorChanges,
        pop: PopService,
        crossings: Crossings,
        members: Callable[[str], int],
    ) -> None:
        """members: counts the members that a group has now, by all protocols."""
        self._core = core
        self._changes = changes
        self._pop = pop
        self._crossings = crossings
        self._members = members

    async def put(self, address: str, name: str, settings: GroupSettings) -> None:
        """Create a group, or alter it. address: the caller's, as in all changes.

        Raises BadRequest, UnknownTopic, and as `OperatorChanges.taken` and a change of metadata.
        """
        shown = {"group": name, **settings.shown()}
        topic, mode = settings.lite_topic or "", settings.request_mode

        def needs(facts: Facts) -> list[Need]:
            sees = sees_topic(mode[0], facts) if mode is not None else ()
            return [*put_needs(name, topic, facts), *sees]

        change = OperatorChange("Admin/PutGroup", group(name), needs, shown)
        async with self._changes.taken(address, change):
            self._core.admission.check_current()
            check_group(name)
            known = self._core.admission.group_tables().groups.get(name)
            await self._core.metadata.put_group(self._altered(known or new_group(name), settings))

    def _altered(self, known: Json, settings: GroupSettings) -> Json:
        row = {**known, **settings.others}
        times, delays = settings.retry_times, settings.retry_delays_ms
        if settings.orderly is not None:
            row["consumeMessageOrderly"] = settings.orderly
        if times is not None:
            if not 0 <= times <= RETRY_TIMES_MAX:
                raise sdk.BadRequest(f"retry_times is {times}; it must be 0 to {RETRY_TIMES_MAX}")
            row["retryMaxTimes"] = times
        if delays:
            if min(delays) < 0 or len(delays) > RETRY_TIMES_MAX:
                raise sdk.BadRequest(
                    f"retry_delays_ms has {len(delays)} delays, the shortest {min(delays)} ms; it "
                    f"must have at most {RETRY_TIMES_MAX}, none of them negative"
                )
            policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": list(delays)}}
            row["groupRetryPolicy"] = policy
        if settings.request_mode is not None:
            row[REQUEST_MODES] = self._modes(row, *settings.request_mode)
        topic, exclusive = settings.lite_topic, settings.lite_exclusive
        if topic is None and exclusive is None:
            return row
        return self._bound(
            row,
            bound_topic(row) if topic is None else topic,
            is_exclusive(row) if exclusive is None else exclusive,
        )

    def _modes(self, row: Json, topic: str, mode: str) -> dict[str, str]:
        """A group's topics that are not read by PULL. Raises UnknownTopic, BadRequest."""
        self._core.admission.known_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise sdk.BadRequest(f"{topic} is a retry topic: the mode is that of its origin")
        others = {key: value for key, value in row.get(REQUEST_MODES, {}).items() if key != topic}
        exists = self._core.metadata.topics
        kept = {key: value for key, value in others.items() if key in exists}
        return kept if mode == "PULL" else {**kept, topic: mode}

    def _bound(self, row: Json, topic: str, exclusive: bool) -> Json:
        """A group's settings with the topic whose lite topics it subscribes to."""
        if exclusive and not topic:
            raise sdk.BadRequest(
                "an exclusive group must name the topic whose lite topics it subscribes to"
            )
        if topic and self._core.admission.known_topic(topic).message_type != LITE:
            self._core.admission.check_knows()
            raise sdk.BadRequest(f"topic {topic!r} has no lite topics: its type is not {LITE}")
        return bound(row, topic, exclusive)

    def exists(self, name: str) -> bool:
        """Whether there is a group, or members of one. Raises NotMaster."""
        if name in self._core.admission.group_tables().groups:
            return True
        return self._members(name) > 0

    def check_exists(self, name: str) -> None:
        """Raise UnknownGroup, NotMaster."""
        if not self.exists(name):
            raise sdk.UnknownGroup(f"group {name!r} does not exist")

    async def delete(self, address: str, name: str) -> None:
        """Delete a group, its offsets and its dead letters. Raises UnknownGroup, and as `put`."""
        shown = {"group": name}
        change = OperatorChange(
            "Admin/DeleteGroup", group(name), lambda _: delete_needs(name), shown
        )
        async with self._changes.taken(address, change):
            self.check_exists(name)
            await self._core.metadata.delete_group(name)

    def _come_to(self, name: str, topic: TopicConfig) -> list[int]:
        """The queues of a topic but guests that a group has not come to: it skips nothing there."""
        tables = self._core.metadata.tables
        committed = tables.offsets.get((topic.name, name), {})
        found = tables.readable("", topic.name)
        return [queue for queue in found if queue < topic.queues or queue in committed]

    async def reset(self, address: str, reset: Reset) -> dict[int, int]:
        """Set the offsets of a group, and create it if it is missing; the new offsets, by queue.

        Where queues have moved, it reads nothing behind a seam until it has come there again: see
        `Crossings.reset`. Raises UnknownTopic, Busy where the group has members, and as `put`.
        """
        name, topic, admission = reset.group, reset.topic, self._core.admission
        change = OperatorChange(
            "Admin/ResetGroup",
            group(name),
            lambda facts: reset_needs(name, topic, facts),
            {"group": name, "topic": topic, **reset.shown},
        )
        async with self._changes.taken(address, change):
            check_group(name)
            offsets = reset.place(self._come_to(name, admission.known_topic(topic)))
            if reset.told(offsets):
                await self._crossings.reset(name, topic, offsets)
                return offsets
            if self._members(name):
                raise sdk.Busy(f"group {name} has members: stop them first")
            if name not in admission.group_tables().groups:
                await self._core.metadata.put_group(new_group(name))
            offsets = await self._crossings.reset(name, topic, offsets)
            await self._pop.reset(name, {topic: offsets})
        return offsets


def put_needs(name: str, lite_topic: str, facts: Facts) -> list[Need]:
    """The rights to alter a group, or to create it if it does not exist.

    A caller with neither right is refused alike in both cases, and does not learn which it is.
    """
    either = need(group(name), Action.CREATE, Action.UPDATE)
    one = need(group(name), Action.UPDATE if facts.has_group(name) else Action.CREATE)
    return [either, one, *(reads(lite_topic, facts) if lite_topic else ())]


def delete_needs(name: str) -> list[Need]:
    """The right to delete a group."""
    return [need(group(name), Action.DELETE)]


def reset_needs(name: str, topic: str, facts: Facts) -> list[Need]:
    """The rights to set a group's offsets in a topic."""
    return [*put_needs(name, "", facts), *sees_topic(topic, facts)]
