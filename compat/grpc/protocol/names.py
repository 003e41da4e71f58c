"""Rules for names in RocketMQ's API: topics, groups, tags, keys and properties.

A namespace becomes a prefix of the name, as in RocketMQ 4 (`namespace%name`), after the prefix of
retry and dead-letter topics. Limits: RocketMQ's proxy.
"""

import re
from functools import lru_cache

from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import Code, Resource
from duolog_server.store import lightqueues
from duolog_server.store.metadata import is_closed_topic
from duolog_server.store.names import wrong_characters
from duolog_server.store.record import has_control

TOPIC_MAX = 127
GROUP_MAX = 255
MESSAGE_GROUP_BYTES_MAX = 64
LITE_TOPIC_MAX = 64
USER_PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16 << 10

_LITE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SYSTEM_GROUPS = ("CID_RMQ_SYS_", "CID_ONSAPI_", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER")
LITE_TOPIC = "__LITE_TOPIC"  # property that names a message's lite topic
# Names that have a meaning to the store, the broker or the clients (MessageConst).
RESERVED_PROPERTIES = frozenset(
    [
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        *lightqueues.PROPERTIES,
        LITE_TOPIC,
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "__SHARDINGKEY",
        "TRACE_CONTEXT",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "_SYS_MSG_PRIORITY_",
    ]
)


def _joined(namespace: str, name: str) -> str:
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return f"{prefix}{namespace}%{name[len(prefix) :]}"
    return f"{namespace}%{name}"


def topic_of(resource: Resource) -> str:
    """The topic a resource names here. Raises Refused (ILLEGAL_TOPIC)."""
    return _topic(resource.resource_namespace, resource.name)


@lru_cache(4096)
def _topic(namespace: str, given: str) -> str:
    name = _joined(namespace.strip(), given)
    if not given.strip():
        raise Refused(Code.ILLEGAL_TOPIC, "the topic name is empty")
    if len(name) > TOPIC_MAX:
        raise Refused(Code.ILLEGAL_TOPIC, f"the topic name has more than {TOPIC_MAX} characters")
    wrong = wrong_characters("topic", name)
    if wrong:
        raise Refused(Code.ILLEGAL_TOPIC, wrong)
    if is_closed_topic(name):
        raise Refused(Code.ILLEGAL_TOPIC, f"topic {name!r} is reserved for the system")
    return name


def resource_of(topic: str) -> Resource:
    """The resource by which clients name a topic."""
    namespace, separator, name = topic.rpartition("%")
    if not separator or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return Resource(name=topic)
    return Resource(name=name, resource_namespace=namespace)


def group_of(resource: Resource) -> str:
    """The consumer group a resource names here. Raises Refused (ILLEGAL_CONSUMER_GROUP)."""
    return _group(resource.resource_namespace, resource.name)


@lru_cache(4096)
def _group(namespace: str, given: str) -> str:
    name = _joined(namespace.strip(), given)
    code = Code.ILLEGAL_CONSUMER_GROUP
    if not given.strip():
        raise Refused(code, "the name of the consumer group is empty")
    if len(name) > GROUP_MAX:
        raise Refused(code, f"the consumer group's name has more than {GROUP_MAX} characters")
    wrong = wrong_characters("group", name)
    if wrong:
        raise Refused(code, wrong)
    if name.startswith(_SYSTEM_GROUPS):
        raise Refused(code, f"group {name!r} is reserved for the system")
    return name


def check_tag(tag: str) -> None:
    """Raise Refused (ILLEGAL_MESSAGE_TAG) for a tag that no filter could name; empty: no tag."""
    if (tag and not tag.strip()) or "|" in tag or has_control(tag):
        raise Refused(
            Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r} is blank, or has | or control characters"
        )


def check_key(key: str) -> None:
    """Raise Refused (ILLEGAL_MESSAGE_KEY). An empty key counts as no key."""
    if (key and not key.strip()) or has_control(key):
        raise Refused(Code.ILLEGAL_MESSAGE_KEY, f"key {key!r} is blank or has control characters")


def check_lite_topic(name: str) -> None:
    """Raise Refused (ILLEGAL_LITE_TOPIC)."""
    if len(name) > LITE_TOPIC_MAX or not _LITE_NAME.fullmatch(name):
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {name!r} must have 1 to {LITE_TOPIC_MAX} letters, digits, _ and -",
        )


def check_message_group(group: str) -> None:
    """Raise Refused (ILLEGAL_MESSAGE_GROUP)."""
    if not group.strip() or len(group.encode()) >= MESSAGE_GROUP_BYTES_MAX or has_control(group):
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group must have 1 to {MESSAGE_GROUP_BYTES_MAX - 1} bytes, "
            "and no control characters",
        )


def check_user_properties(properties: dict[str, str], other_bytes: int) -> None:
    """Raise Refused for properties that cannot be stored. other_bytes: of tag and keys.

    A property with an empty name or value is accepted but not stored: RocketMQ's readers ignore it.
    """
    if len(properties) > USER_PROPERTIES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} properties, the limit is {USER_PROPERTIES_MAX}",
        )
    size = other_bytes
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is reserved")
        if has_control(name) or has_control(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r}: its name or value has control characters",
            )
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{size} bytes of properties, the limit is {PROPERTIES_BYTES_MAX}",
        )
