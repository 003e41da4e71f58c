"""Obstacles to moving a broker to duolog, and what to do about them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from duolog_server.compat.migration.broker.survey import BrokerFacts
from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.preconditions import check_name, check_settings
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.options import StoreOptions

TOPIC_BYTES_MAX = 127
RETRY, DEAD = "%RETRY%", "%DLQ%"
_USERS = ("aclEnable", "authenticationEnabled")  # of RocketMQ 4, and of 5
_REVIVE = "rmq_sys_REVIVE_LOG_"
_TIMERS = "rmq_sys_wheel_timer"


@dataclass(frozen=True, slots=True)
class Remark:
    """blocks: the broker cannot be followed before this is changed."""

    blocks: bool
    what: str
    do: str


def remarks(facts: BrokerFacts, options: StoreOptions, group: str) -> list[Remark]:
    """Remarks before a broker is followed into a store; blocking ones come first.

    group: the node's replica group.
    """
    if facts.problem:
        why = (
            "reach its remoting port from here; with ACL, as a user who may read everything "
            "(--broker-access-key)"
        )
        return [Remark(True, f"it does not answer: {facts.problem}", why)]
    found = [*_blocking(facts, options, group), *_settings(facts, options), *_features(facts)]
    return sorted(found, key=lambda remark: not remark.blocks)


def _blocking(facts: BrokerFacts, options: StoreOptions, group: str) -> Iterator[Remark]:
    try:
        check_settings(facts.settings, options)
    except CannotFollow as error:
        yield Remark(True, str(error), "fix that first; until then, nothing is copied")
    try:
        check_name(facts.settings, group)
    except CannotFollow as error:
        yield Remark(True, str(error), f"--set node.group={facts.name}")
    for topic, attributes in sorted(facts.attributes.items()):
        if attributes.get("queue.type") == "BatchCQ":
            yield Remark(
                True,
                f"topic {topic} has batch consume queues",
                "let its consumers finish, and delete it, or leave its broker",
            )


def _settings(facts: BrokerFacts, options: StoreOptions) -> Iterator[Remark]:
    for theirs, ours, key in (
        ("messageDelayLevel", options.message_delay_level, "message_delay_level"),
        ("maxMessageSize", str(options.max_message_size), "max_message_size"),
        ("fileReservedTime", str(options.file_reserved_time), "file_reserved_time"),
    ):
        value = facts.settings.get(theirs, "")
        if value and value != ours:
            yield Remark(
                False, f"{theirs} is {value!r} there, {ours!r} here", f"set store.{key} to the same"
            )
    if "true" in (facts.settings.get(key) for key in _USERS):
        yield Remark(
            False,
            "it has users (ACL)",
            "import them: `duolog user import`, see docs/access.md. Cut over as one of its "
            "administrators",
        )


def _features(facts: BrokerFacts) -> Iterator[Remark]:
    topics = facts.tables.topics
    long = sorted(name for name in topics if len(name.encode()) > TOPIC_BYTES_MAX)
    if long:
        yield Remark(False, f"topics with more than 127 bytes: {_some(long)}", "rename them")
    for topic, attributes in sorted(facts.attributes.items()):
        if "COMPACTION" in attributes.get("cleanup.policy", ""):
            yield Remark(
                False,
                f"topic {topic} is compacted",
                "duolog keeps all its messages for store.file_reserved_time, and the newest of a "
                "key no longer",
            )
    if any(name.startswith(_REVIVE) for name in topics):
        yield Remark(
            False,
            "messages were consumed by POP",
            "what is delivered and not acknowledged at the cut-over is delivered again",
        )
    if _TIMERS in topics:
        yield Remark(
            False,
            "messages have waited for a time (timerWheelEnable)",
            "nothing: duolog delivers those that wait, and knows by their ids those that came",
        )


def user_topics(facts: BrokerFacts) -> list[str]:
    """The topics of users, without those that RocketMQ makes for itself and for groups."""
    own = {facts.name, facts.settings.get("brokerClusterName", "")}
    return sorted(
        name
        for name in facts.tables.topics
        if not is_reserved_topic(name) and not name.startswith((RETRY, DEAD)) and name not in own
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
