"""Converts messages between RocketMQ's API and the store: properties, digests, encodings, times."""

import hashlib
import zlib
from dataclasses import dataclass

from duolog.wire import duolog_pb2 as wire
from google.protobuf.timestamp_pb2 import Timestamp

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.names import (
    LITE_TOPIC,
    check_key,
    check_lite_topic,
    check_message_group,
    check_tag,
    check_user_properties,
)
from duolog_server.compat.grpc.protocol.stubs import (
    Code,
    Message,
    MessageType,
    Resource,
    SystemProperties,
    definition,
)
from duolog_server.node.deferred.transactionservice import HALF_WORDS
from duolog_server.node.pop.popservice import Popped
from duolog_server.node.runtime.clocks import TIME_MS_MAX
from duolog_server.store import lightqueues
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.record import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Host,
    Record,
    decode_properties,
    encode_properties,
    has_control,
    keys_of,
)


def ms_of(timestamp: Timestamp, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Wall-clock ms. name: of the field. code: of the refusal.

    Raises Refused for what is no time: before the year 1, after 9999, or with wrong nanos.
    """
    try:
        return int(timestamp.ToMilliseconds())
    except ValueError as error:
        raise Refused(code, f"{name}: {error}") from None


# System properties that are not user properties of a delivered message.
_OWN = frozenset(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "__SHARDINGKEY",
        "TRACE_CONTEXT",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "_SYS_MSG_PRIORITY_",
        "WAIT",
        "DELAY",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        LITE_TOPIC,
        *lightqueues.PROPERTIES,
        *HALF_WORDS,
    ]
)
_DIGESTS = {
    definition.DigestType.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest(),
    definition.DigestType.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest(),
    definition.DigestType.CRC32: lambda body: f"{zlib.crc32(body):x}",
}
# Message types as plain numbers: the enum looks up a name on every access.
NORMAL, FIFO, DELAY = definition.NORMAL, definition.FIFO, definition.DELAY
TRANSACTION, LITE, PRIORITY = definition.TRANSACTION, definition.LITE, definition.PRIORITY
GZIP, IDENTITY, MD5 = definition.GZIP, definition.IDENTITY, definition.MD5
PRIORITY_MAX = (1 << 31) - 1
RECOVERY_SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class Sent:
    """A checked message of a client. kind: derived from its content."""

    message_id: str
    kind: MessageType
    properties: dict[str, str]
    body: bytes
    sysflag: int
    born_time: int
    message_group: str = ""
    priority: int = -1
    deliver_ms: int = 0
    recovery_seconds: int = 0  # age of a half message at its first check; 0: default
    lite_topic: str = ""

    def batch(self, topic: str, queue_id: int, host: Host) -> PutBatch:
        """The batch to store. Raises BadMessage."""
        text = encode_properties(self.properties).encode()
        columns = Columns.of([self.body], [text])
        light = (lightqueues.lite_queue(topic, self.lite_topic),) if self.lite_topic else ()
        return PutBatch(
            topic,
            queue_id,
            columns,
            self.born_time,
            host,
            sysflag=self.sysflag,
            light_queues=light,
        )


def kind_of(system: SystemProperties) -> MessageType:
    """The type of a message, derived as RocketMQ's broker does."""
    if system.message_type == TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return DELAY
    if system.HasField("message_group"):
        return FIFO
    if system.HasField("priority"):
        return PRIORITY
    return LITE if system.HasField("lite_topic") else NORMAL


def sent(message: Message, body_bytes_max: int) -> Sent:
    """Check a message of a SendMessage request. Raises Refused."""
    system = message.system_properties
    _check_body(message.body, system, body_bytes_max)
    if not system.message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message id is blank")
    properties = dict(message.user_properties)
    other, tag = 0, ""
    if system.HasField("tag"):
        check_tag(system.tag)
        tag = system.tag
        other += len(tag.encode())
    for key in system.keys:
        check_key(key)
        other += len(key.encode())
    check_user_properties(properties, other)
    properties = {name: value for name, value in properties.items() if name and value}
    if tag:
        properties["TAGS"] = tag
    if keys := " ".join(filter(None, system.keys)):
        properties["KEYS"] = keys
    properties["UNIQ_KEY"] = system.message_id
    group = ""
    if system.HasField("message_group"):
        check_message_group(system.message_group)
        properties["__SHARDINGKEY"] = group = system.message_group
    if system.HasField("trace_context") and system.trace_context:
        properties["TRACE_CONTEXT"] = system.trace_context
    priority = -1
    if system.HasField("priority"):
        priority = system.priority
        if not 0 <= priority <= PRIORITY_MAX:
            raise Refused(Code.BAD_REQUEST, f"priority {priority} is negative")
        properties["_SYS_MSG_PRIORITY_"] = str(priority)
    kind, lite_topic = kind_of(system), ""
    if kind == LITE:
        check_lite_topic(system.lite_topic)
        properties[LITE_TOPIC] = lite_topic = system.lite_topic
    if any(has_control(value) for value in properties.values()):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message id has control characters")
    return Sent(
        system.message_id,
        kind,
        properties,
        message.body,
        COMPRESSED if system.body_encoding == GZIP else 0,
        ms_of(system.born_timestamp, "born_timestamp"),
        group,
        priority,
        _delivery_ms(system),
        _recovery_seconds(system),
        lite_topic,
    )


def _recovery_seconds(system: SystemProperties) -> int:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    seconds = int(system.orphaned_transaction_recovery_duration.ToSeconds())
    return min(max(0, seconds), RECOVERY_SECONDS_MAX)


def _delivery_ms(system: SystemProperties) -> int:
    if not system.HasField("delivery_timestamp"):
        return 0
    at, code = system.delivery_timestamp, Code.ILLEGAL_DELIVERY_TIME
    return max(1, ms_of(at, "delivery_timestamp", code))


def _check_body(body: bytes, system: SystemProperties, body_bytes_max: int) -> None:
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > body_bytes_max:
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(body)} bytes, the limit is {body_bytes_max}",
        )
    digest = _DIGESTS.get(system.body_digest.type)
    found = system.body_digest.checksum.lstrip("0").lower()
    if digest is not None and found and digest(body).lstrip("0") != found:
        raise Refused(Code.MESSAGE_CORRUPTED, "the body does not match its digest")


def delivered(popped: Popped, topic: Resource, handle: str) -> Message:
    """A Message for a consumer. topic: the Resource it subscribed to."""
    message = _message(popped.body, popped.properties, popped.sysflag, topic)
    system = _stamped(message, popped.born_time, popped.born_host, popped.store_time)
    system.receipt_handle = handle
    system.queue_id, system.queue_offset = popped.handle.queue_id, popped.handle.offset
    system.invisible_duration.FromMilliseconds(popped.invisible_ms)
    system.delivery_attempt = popped.attempt
    return message


def pulled(
    queue_id: int, row: tuple[list[int], bytes, bytes], host: Host, topic: Resource
) -> Message:
    """A Message for a consumer that pulls. row: of a read."""
    numbers, body, text = row
    offset, _, store_time, born_time, _, sysflag, reconsumed = numbers[:7]
    message = _message(body, decode_properties(text.decode(errors="replace")), sysflag, topic)
    system = _stamped(message, born_time, f"{host.address}:{host.port}", store_time)
    system.queue_id, system.queue_offset = queue_id, offset
    system.delivery_attempt = reconsumed + 1
    return message


def found(row: wire.FoundMessage, topic: Resource) -> Message:
    """A Message that was looked up."""
    message = _message(row.body, dict(row.properties), row.sysflag, topic)
    system = _stamped(message, row.born_time, row.born_host, row.store_time)
    system.queue_id, system.queue_offset = row.queue_id, row.queue_offset
    system.delivery_attempt = row.reconsume_times + 1
    return message


def orphaned(record: Record, topic: Resource) -> Message:
    """A half message for the producer that is asked for a decision."""
    message = _message(record.body, record.properties, record.sysflag, topic)
    host = f"{record.born_host.address}:{record.born_host.port}"
    system = _stamped(message, record.born_time, host, record.store_time)
    system.message_type = TRANSACTION
    system.delivery_attempt = 1
    return message


def _stamped(message: Message, born_time: int, born_host: str, store_time: int) -> SystemProperties:
    """The system properties of a message, with where it comes from, and its times."""
    system = message.system_properties
    system.born_timestamp.FromMilliseconds(born_time)
    system.born_host = born_host
    system.store_timestamp.FromMilliseconds(store_time)
    return system


def _type_of(properties: dict[str, str], sysflag: int) -> MessageType:
    """The type with which a stored message was sent."""
    if sysflag & TRANSACTION_MASK == TRANSACTION_COMMIT:
        return TRANSACTION
    if "TIMER_DELIVER_MS" in properties or "DELAY" in properties:
        return DELAY
    if LITE_TOPIC in properties:
        return LITE
    return FIFO if "__SHARDINGKEY" in properties else NORMAL


def _number(text: str, limit: int) -> int | None:
    """The number in a property, None for none: producers of other APIs may write any text."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(limit)):
        return None
    number = int(text)
    return number if number <= limit else None


def _message(body: bytes, properties: dict[str, str], sysflag: int, topic: Resource) -> Message:
    """The common part of every message sent to a client."""
    message = Message(topic=topic, body=body)
    for name, value in properties.items():
        if name not in _OWN:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = properties.get("UNIQ_KEY") or properties.get("ORIGIN_MESSAGE_ID", "")
    if "TAGS" in properties:
        system.tag = properties["TAGS"]
    system.keys.extend(keys_of(properties))
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_digest.type, system.body_digest.checksum = MD5, digest
    gzipped = sysflag & COMPRESSED
    system.body_encoding = GZIP if gzipped else IDENTITY
    system.message_type = _type_of(properties, sysflag)
    if (due := _number(properties.get("TIMER_DELIVER_MS", ""), TIME_MS_MAX)) is not None:
        system.delivery_timestamp.FromMilliseconds(due)
    if "__SHARDINGKEY" in properties:
        system.message_group = properties["__SHARDINGKEY"]
    if LITE_TOPIC in properties:
        system.lite_topic = properties[LITE_TOPIC]
    if "TRACE_CONTEXT" in properties:
        system.trace_context = properties["TRACE_CONTEXT"]
    if (priority := _number(properties.get("_SYS_MSG_PRIORITY_", ""), PRIORITY_MAX)) is not None:
        system.priority = priority
    if "DLQ_ORIGIN_TOPIC" in properties:
        system.dead_letter_queue.topic = properties["DLQ_ORIGIN_TOPIC"]
        system.dead_letter_queue.message_id = properties.get("DLQ_ORIGIN_MESSAGE_ID", "")
    return message
