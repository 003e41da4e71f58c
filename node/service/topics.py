"""Topics as operators change them."""

from dataclasses import asdict, dataclass, replace

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
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
    check_queues,
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
            )
            check_message_type(config.message_type)
            check_lite_ttl(config)
            if is_closed_topic(name):
                raise sdk.BadRequest(f"topic {name!r} is reserved for the system")
            known = metadata.topics.get(name) or metadata.creating(name)
            if known is not None:
                self._core.admission.check_current()  # it may have been altered, or deleted
            if known is not None and not _is_asked_for(known, config):
                raise sdk.TopicExists(
                    f"topic {name!r} exists with {known.queues} queues, perm {known.perm}, "
                    f"message type {known.message_type or 'any'} and lite TTL "
                    f"{known.lite_ttl_minutes} min: alter it, or choose another name"
                )
            if name in metadata.topics:
                return metadata.topics[name]
            await metadata.put_topic(config)
        return config

    async def alter(self, address: str, name: str, settings: TopicSettings) -> TopicConfig:
        """Add queues, or change permissions. Raises UnknownTopic, BadRequest."""
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
            # One that has nothing here but queues that moved stays without queues of its own.
            check_queues(config.queues or int(not known.queues), config.perm)
            await self._core.metadata.put_topic(config)
        return config

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


_ACTIONS = {"Create": Action.CREATE, "Alter": Action.UPDATE, "Delete": Action.DELETE}


def _change(verb: str, name: str, settings: TopicSettings) -> OperatorChange:
    given, usual = asdict(settings), asdict(TopicSettings())
    return OperatorChange(
        f"Admin/{verb}Topic",
        Resource(Kind.TOPIC, name),
        lambda facts: of_owners(name, facts, _ACTIONS[verb]),
        {"topic": name, **{key: value for key, value in given.items() if value != usual[key]}},
    )


def _is_asked_for(known: TopicConfig, config: TopicConfig) -> bool:
    """Whether a call to create a topic asks for one as it is.

    One that is here only for queues that were moved here has none of its own in this group, however
    many the call asks for in each.
    """
    same = replace(known, queues=known.queues or config.queues)
    return _asked(same) == _asked(config)


def _asked(config: TopicConfig) -> tuple[int, int, str, int]:
    """The settings by which two calls to create a topic are the same."""
    return config.queues, config.perm, config.message_type, config.lite_ttl_minutes


def _check_own(topic: str) -> None:
    """Raise BadRequest for a topic that is the node's, and not the users'."""
    if is_system_topic(topic):
        raise sdk.BadRequest(f"topic {topic!r} belongs to the system")
