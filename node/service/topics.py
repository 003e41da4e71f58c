"""Topics as operators change them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.access.rules import of_owners
from duolog_server.node.identity.rights.resources import Action, Kind, Resource
from duolog_server.node.service.groups import Groups
from duolog_server.node.service.operatorchanges import OperatorChange, OperatorChanges
from duolog_server.store.metadata import (
    TopicConfig,
    altered,
    check_lite_ttl,
    check_message_type,
    check_own_minimum,
    check_queues,
    check_retention,
    is_closed_topic,
    is_system_topic,
)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic; 0, empty or None: the default, or as it is."""

    queues: int = 0
    perm: int = 0
    message_type: str = ""
    lite_ttl_minutes: int | None = None
    retention_hours: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """What to hide of a topic's queues: messages before a queue offset, or stored before a time.

    queue_id: None: of all queues. time_ms: wall clock; None: before `offset`. dry_run: only tell.
    """

    queue_id: int | None = None
    offset: int = 0
    time_ms: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The minimum of a queue before a trim, and after it."""

    queue_id: int
    first: int
    minimum: int


class Topics:
    """Changes of topics, by any protocol: authorised, audited, stored.

    address: the caller's. All raise as `OperatorChanges.taken`.
    """

    def __init__(self, core: Core, changes: OperatorChanges) -> None:
        self._core = core
        self._changes = changes

    async def create(self, address: str, name: str, settings: TopicSettings) -> TopicConfig:
        """Create a topic. Repeating a call is no error; other settings for the same topic are.

        Raises TopicExists, BadRequest, Busy, Throttled.
        """
        metadata = self._core.metadata
        async with self._changes.taken(address, _change("Create", name, settings)):
            config = metadata.new_topic(name, settings.queues, settings.perm, name_of_caller())
            config = replace(
                config,
                message_type=settings.message_type,
                lite_ttl_minutes=settings.lite_ttl_minutes or 0,
                retention_hours=settings.retention_hours or 0,
                retention_bytes=settings.retention_bytes or 0,
            )
            check_message_type(config.message_type)
            check_lite_ttl(config)
            check_retention(config, self._core.options.file_reserved_time)
            if is_closed_topic(name):
                raise sdk.BadRequest(f"topic {name!r} is reserved for the system")
            known = metadata.topics.get(name) or metadata.creating(name)
            if known is not None:
                self._core.admission.check_current()  # it may have been altered, or deleted
            if known is not None and not _is_asked_for(known, config):
                raise sdk.TopicExists(
                    f"topic {name!r} exists with {known.queues} queues, perm {known.perm}, "
                    f"message type {known.message_type or 'any'}, lite TTL "
                    f"{known.lite_ttl_minutes} min, retention {known.retention_hours} h and "
                    f"{known.retention_bytes} bytes (0: as the log): alter it, or choose another "
                    "name"
                )
            if name in metadata.topics:
                return metadata.topics[name]
            await metadata.put_topic(config)
        return config

    async def alter(self, address: str, name: str, settings: TopicSettings) -> TopicConfig:
        """Add queues, or change other settings. Raises UnknownTopic, BadRequest."""
        async with self._changes.taken(address, _change("Alter", name, settings)):
            _check_own(name)
            known = self._core.admission.known_topic(name)
            self._core.admission.check_current()
            config = altered(known, settings.queues, settings.perm)
            if config.queues > known.queues and self._core.metadata.retires():
                raise sdk.BadRequest(
                    f"topic {name!r} gets no more queues here: this replica group retires"
                )
            check_message_type(settings.message_type)
            if settings.message_type:
                config = replace(config, message_type=settings.message_type)
            if settings.lite_ttl_minutes is not None:
                config = replace(config, lite_ttl_minutes=settings.lite_ttl_minutes)
            check_lite_ttl(config)
            if settings.retention_hours is not None:
                config = replace(config, retention_hours=settings.retention_hours)
            if settings.retention_bytes is not None:
                config = replace(config, retention_bytes=settings.retention_bytes)
            if _retention(config) != _retention(known) or config.message_type != known.message_type:
                check_retention(config, self._core.options.file_reserved_time)
            # One that has nothing here but queues that moved stays without queues of its own.
            check_queues(config.queues or int(not known.queues), config.perm)
            await self._core.metadata.put_topic(config)
        return config

    async def trim(self, address: str, name: str, asked: Trim) -> list[Trimmed]:
        """Hide the oldest messages of queues for good, on every replica.

        Raises UnknownTopic, BadRequest for an offset behind the end of its queue.
        """
        async with self._changes.taken(address, _trimming(name, asked)):
            _check_own(name)
            check_own_minimum(self._core.admission.known_topic(name))
            self._core.admission.check_current()
            queues = Slices().each(self._named(name, asked))
            found = [self._trimmed(name, queue_id, asked) async for queue_id in queues]
            higher = {one.queue_id: one.minimum for one in found if one.minimum > one.first}
            if higher and not asked.dry_run:
                await self._core.metadata.raise_minimums({name: higher})
        return found

    def _named(self, name: str, asked: Trim) -> Sequence[int]:
        """The queues that a trim names."""
        queues = self._core.metadata.readable("", name)
        if asked.queue_id is None:
            if asked.time_ms is None:
                raise sdk.BadRequest(
                    f"offset {asked.offset} is of one queue: name it, or give a time"
                )
            return queues
        if asked.queue_id not in queues:
            raise sdk.BadRequest(f"topic {name} has no queue {asked.queue_id} in this group")
        return [asked.queue_id]

    def _trimmed(self, name: str, queue_id: int, asked: Trim) -> Trimmed:
        low, high = self._core.store.queue_range(name, queue_id)
        wanted = asked.offset
        if asked.time_ms is not None:
            wanted = self._core.positions.offset_at_time(name, queue_id, asked.time_ms)
        elif wanted > high:
            raise sdk.BadRequest(
                f"offset {wanted} is behind the end of {name}/{queue_id}, whose confirmed messages "
                f"end at {high}"
            )
        return Trimmed(queue_id, low, max(low, wanted))

    async def delete(self, address: str, name: str) -> None:
        """Delete a topic, its queues and its groups' offsets. Raises UnknownTopic, BadRequest."""
        async with self._changes.taken(address, _change("Delete", name, TopicSettings())):
            _check_own(name)
            self._core.admission.known_topic(name)
            await self._core.metadata.delete_topic(name)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that operators make, by any protocol."""

    topics: Topics
    groups: Groups


_ACTIONS = {
    "Create": Action.CREATE,
    "Alter": Action.UPDATE,
    "Delete": Action.DELETE,
    "Trim": Action.DELETE,
}


def _change(verb: str, name: str, settings: TopicSettings) -> OperatorChange:
    given, usual = asdict(settings), asdict(TopicSettings())
    shown = {key: value for key, value in given.items() if value != usual[key]}
    return _operator_change(verb, name, shown)


def _trimming(name: str, asked: Trim) -> OperatorChange:
    before = {"offset": asked.offset} if asked.time_ms is None else {"time": asked.time_ms}
    queue = {} if asked.queue_id is None else {"queue_id": asked.queue_id}
    return replace(_operator_change("Trim", name, {**queue, **before}), plan=asked.dry_run)


def _operator_change(verb: str, name: str, shown: Mapping[str, Any]) -> OperatorChange:
    return OperatorChange(
        f"Admin/{verb}Topic",
        Resource(Kind.TOPIC, name),
        lambda facts: of_owners(name, facts, _ACTIONS[verb]),
        {"topic": name, **shown},
    )


def _is_asked_for(known: TopicConfig, config: TopicConfig) -> bool:
    """Whether a call to create a topic asks for one as it is.

    One that is here only for queues that were moved here has none of its own in this group, however
    many the call asks for in each.
    """
    same = replace(known, queues=known.queues or config.queues)
    return _asked(same) == _asked(config)


def _asked(config: TopicConfig) -> tuple[object, ...]:
    """The settings by which two calls to create a topic are the same."""
    kept = config.lite_ttl_minutes, *_retention(config)
    return config.queues, config.perm, config.message_type, *kept


def _retention(config: TopicConfig) -> tuple[int, int]:
    return config.retention_hours, config.retention_bytes


def _check_own(topic: str) -> None:
    """Raise BadRequest for a topic that is the node's, and not the users'."""
    if is_system_topic(topic):
        raise sdk.BadRequest(f"topic {topic!r} belongs to the system")
