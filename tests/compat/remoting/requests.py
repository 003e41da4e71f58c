"""The headers of requests, by the codes that their docstrings name, and the body of a batch."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from duolog_server.compat.remoting.codec import headers, nameserver
from duolog_server.compat.remoting.codec.codes import RequestCode


@dataclass(frozen=True)
class NoFields:
    """A request without fields."""


WITHOUT_FIELDS = frozenset(
    (
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,  # its body has them
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_ALL_PRODUCER_INFO,
    )
)
_WITH_BODIES = (
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.BATCH_ACK_MESSAGE,
)
_FOR_ALL = (
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)
REQUESTS: dict[RequestCode, type] = {
    **dict.fromkeys((*WITHOUT_FIELDS, *_WITH_BODIES, *_FOR_ALL), NoFields),
    **{
        RequestCode[word]: kind
        for name, kind in {**vars(headers), **vars(nameserver)}.items()
        if name.endswith("Request")
        for word in re.findall("[A-Z_0-9]+", str(kind.__doc__))
        if word in RequestCode.__members__
    },
}

_FIXED = struct.Struct(">iiiii")  # length, magic code, CRC, flag, length of the body
_SHORT = struct.Struct(">h")


def write_batch(messages: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """A batch, as clients make it, of flags, bodies and properties."""
    parts: list[bytes] = []
    for flag, body, properties in messages:
        size = _FIXED.size + len(body) + _SHORT.size + len(properties)
        parts += (_FIXED.pack(size, 0, 0, flag, len(body)), body)
        parts += (_SHORT.pack(len(properties)), properties)
    return b"".join(parts)
