"""Preconditions on a broker for copying its log, and remarks before anything is copied."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.rocketmqbroker import BrokerFacts
from duolog_server.compat.migration.state import Following
from duolog_server.node.deferred.delayservice import DELAY_MS_MAX
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.options import StoreOptions

_SEGMENT = "mappedFileSizeCommitLog"
_MASTER = "0"
# Logs of another form, and a port on which another protocol is spoken.
_FOREIGN = {
    "enableDLegerCommitLog": "its log is DLedger's, with another form of records",
    "enableControllerMode": "its HA port speaks the protocol of controllers",
}


def check_settings(settings: Mapping[str, str], options: StoreOptions) -> None:
    """Raise CannotFollow unless a broker's log can be copied into a store with these options."""
    for key, why in _FOREIGN.items():
        if settings.get(key) == "true":
            raise CannotFollow(f"the broker has {key}=true: {why}")
    theirs, ours = settings.get(_SEGMENT, ""), options.mapped_file_size_commit_log
    if theirs != str(ours):
        raise CannotFollow(
            f"the broker's segments have {theirs or 'an unknown number of'} bytes "
            f"({_SEGMENT}), this store's {ours}: set store.mapped_file_size_commit_log to the same"
        )


def check_name(settings: Mapping[str, str], group: str) -> None:
    """Raise CannotFollow unless a node's replica group has the broker's name."""
    name = settings.get("brokerName", "")
    if name != group:
        raise CannotFollow(
            f"the broker's name is {name!r}, the replica group's {group!r}: set node.group to the "
            "same. Clients know their queues, and where they are in them, by this name"
        )


def check_same(settings: Mapping[str, str], name: str, address: str) -> None:
    """Raise CannotFollow unless the broker at an address has this name."""
    found = settings.get("brokerName", "")
    if found != name:
        raise CannotFollow(f"{address} is broker {found!r}, not {name!r}")


def check_master(settings: Mapping[str, str], following: Following) -> None:
    """Raise CannotFollow unless settings are of the master that was followed: it may be changed.

    Brokers that copy each other have one name; a master's number is 0, whatever its role is now.
    """
    check_same(settings, following.name, following.broker)
    number = settings.get("brokerId", _MASTER)
    if number != _MASTER:
        raise CannotFollow(
            f"{following.broker} is broker {following.name!r} with brokerId={number}, "
            "not the master that was followed"
        )


def following_of(settings: Mapping[str, str], broker: str, ha: str) -> Following:
    """The source of a new directory. Raises CannotFollow.

    ha: HOST:PORT of the log; empty for the broker's host and its haListenPort.
    """
    host = broker.rpartition(":")[0]
    port = settings.get("haListenPort", "")
    if not ha and not port.isdecimal():
        raise CannotFollow("the broker does not report its haListenPort: give --ha HOST:PORT")
    return Following(broker, ha or f"{host}:{port}", settings.get("brokerName", ""))


TOPIC_BYTES_MAX = 127
RETRY, DEAD = "%RETRY%", "%DLQ%"
_USERS = ("aclEnable", "authenticationEnabled")  # of RocketMQ 4, and of 5
_REVIVE = "rmq_sys_REVIVE_LOG_"
_TIMERS = "rmq_sys_wheel_timer"
_TIMER_SECONDS_MAX = DELAY_MS_MAX // 1000
_SETTLE = (
    "stop consumers that pop, and wait for longer than their invisible time (60 s by default), so "
    "that what they did not acknowledge is in their retry topics: it is not delivered again after "
    "a cut-over"
)
# Settings that keep what clients use outside the log that is copied: what is so, and what to do.
_BESIDE_THE_LOG = {
    ("enableRetryTopicV2", "true"): (
        "retries of POP are in topics %RETRY%<group>+<topic>, which no group reads here",
        "let the consumers read them to their end, with enableRetryTopicV2=false",
    ),
    ("popConsumerKVServiceEnable", "true"): ("leases of POP are in RocksDB", _SETTLE),
    ("timerRocksDBEnable", "true"): (
        "timed messages wait in RocksDB",
        "switch that off, and wait until they are delivered",
    ),
    ("transRocksDBEnable", "true"): (
        "half messages wait in RocksDB",
        "switch that off, and wait until they are decided",
    ),
    ("enableSlaveActingMaster", "true"): (
        "its slaves act as master when it stops, and clients would read from them",
        "stop the slaves, or set enableSlaveActingMaster=false there and here, before the cut-over",
    ),
}


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
        if "COMPACTION" in attributes.get("cleanup.policy", ""):
            yield Remark(
                True,
                f"topic {topic} is compacted: its oldest messages are outside the log that is "
                "copied, and duolog keeps the newest of a key no longer than the others "
                "(store.file_reserved_time)",
                "move its readers to another store; then delete the topic, or set its "
                "cleanup.policy to DELETE",
            )
    for topic in sorted(facts.static_topics):
        yield Remark(
            True,
            f"topic {topic} is static: its logical queues are mapped to those of several brokers",
            "let its consumers finish, and delete it: clients would find no queues of its",
        )
    yield from _beside_the_log(facts)


def _beside_the_log(facts: BrokerFacts) -> Iterator[Remark]:
    settings = facts.settings
    for (key, value), (what, do) in _BESIDE_THE_LOG.items():
        if settings.get(key) == value:
            yield Remark(True, f"{key}={value}: {what}", do)
    if "Tiered" in settings.get("messageStorePlugIn", ""):
        yield Remark(
            True,
            "a tiered store (messageStorePlugIn): messages that are in its second tier alone are "
            "not copied",
            "let consumers finish with what is older than fileReservedTime",
        )
    is_lite = any(row.get("message.type") == "LITE" for row in facts.attributes.values())
    if settings.get("enableLmq") == "true" and not is_lite:
        yield Remark(
            True,
            "enableLmq=true: of light queues (%LMQ%), those of lite topics alone exist here",
            "let their consumers finish",
        )
    if settings.get("defaultMessageRequestMode") == "POP":
        yield Remark(
            True,
            "defaultMessageRequestMode=POP: groups without a mode of their own pull here",
            "after the cut-over: mqadmin setConsumeMode -m POP at the node, for each group whose "
            "consumers have setClientRebalance(false)",
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
    longest = facts.settings.get("timerMaxDelaySec", "")
    if longest.isdecimal() and int(longest) > _TIMER_SECONDS_MAX:
        yield Remark(
            False,
            f"timerMaxDelaySec is {longest} there: timers may be {_TIMER_SECONDS_MAX} s ahead here",
            "nothing for those that wait; producers get MESSAGE_ILLEGAL for new ones",
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
    if any(topic.startswith(_REVIVE) for topic, _ in facts.tables.offsets):
        yield Remark(True, "messages were consumed by POP, and some not acknowledged", _SETTLE)
    elif any(name.startswith(_REVIVE) for name in topics):  # RocketMQ 5 always makes it
        yield Remark(False, "messages may be consumed by POP", _SETTLE)
    for topic, group in facts.popping:
        yield Remark(
            True,
            f"group {group} reads topic {topic} by POP (setConsumeMode)",
            f"after the cut-over: mqadmin setConsumeMode -t {topic} -g {group} -m POP at the node; "
            "until then its consumers pull; a group set to PULL before can be moved as it is",
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
