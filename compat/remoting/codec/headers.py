"""The fields of requests and responses: a class for each code."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.adminheaders import ADMIN_REQUESTS, WITHOUT_FIELDS
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.fields import (
    Int,
    Long,
    fields_of,
    read_fields,
    read_header,
)
from duolog_server.compat.remoting.codec.registrations import (
    RegisterRequest,
    UnregisterBrokerRequest,
)

# -- name server -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


@dataclass(frozen=True, slots=True)
class RegisterResponse:
    """REGISTER_BROKER: where a slave copies the log, and where it asks for the rest."""

    ha_server_addr: str
    master_addr: str


# -- producing -------------------------------------------------------------------------------------


@dataclass(slots=True)  # as a Command: never changed
class SendRequest:
    """SEND_MESSAGE and SEND_REPLY_MESSAGE; SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and
    SEND_REPLY_MESSAGE_V2 under their short names.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int = -1
    batch: bool = False


SHORT_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "brokerName",
}


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Answer to every send request. msg_id: the offset id; clients have an id of their own."""

    msg_id: str
    queue_id: Int
    queue_offset: Long


@dataclass(frozen=True, slots=True)
class PushReplyRequest:
    """PUSH_REPLY_MESSAGE_TO_CLIENT; the body is the reply's. Hosts are HOST:PORT, times ms."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class EndTransactionRequest:
    """END_TRANSACTION. tran_state_table_offset: what the send was answered as its queue offset."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str = ""


@dataclass(frozen=True, slots=True)
class CheckTransactionRequest:
    """CHECK_TRANSACTION_STATE, to producers; the body has the half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str = ""
    transaction_id: str = ""
    offset_msg_id: str = ""


@dataclass(frozen=True, slots=True)
class SendBackRequest:
    """CONSUMER_SEND_MSG_BACK. offset: in the commit log."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: Int = -1


# -- consuming -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullRequest:
    """PULL_MESSAGE, LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str = ""
    expression_type: str = ""
    max_msg_bytes: Int = 0


@dataclass(frozen=True, slots=True)
class PullResponse:
    """Answer to every pull; the body has the records."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


@dataclass(frozen=True, slots=True)
class QueryOffsetRequest:
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool = True


@dataclass(frozen=True, slots=True)
class UpdateOffsetRequest:
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int


@dataclass(frozen=True, slots=True)
class SearchOffsetRequest:
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int
    timestamp: Long


@dataclass(frozen=True, slots=True)
class StoreTimeResponse:
    """GET_EARLIEST_MSG_STORETIME."""

    timestamp: Long


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """VIEW_MESSAGE_BY_ID. offset: in the commit log, as the id says."""

    offset: Long


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """QUERY_MESSAGE: by key. Times are ms."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique: bool = dataclasses.field(default=False, metadata={"name": "_UNIQUE_KEY_QUERY"})


@dataclass(frozen=True, slots=True)
class QueryResponse:
    """QUERY_MESSAGE; the body has the records."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@dataclass(frozen=True, slots=True)
class OffsetResponse:
    """Answer to every request for an offset."""

    offset: Long


# -- clients ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembersRequest:
    """GET_CONSUMER_LIST_BY_GROUP, and NOTIFY_CONSUMER_IDS_CHANGED to clients."""

    consumer_group: str


@dataclass(frozen=True, slots=True)
class UnregisterRequest:
    """UNREGISTER_CLIENT."""

    client_id: str = dataclasses.field(metadata={"name": "clientID"})
    producer_group: str = ""
    consumer_group: str = ""


@dataclass(frozen=True, slots=True)
class NoFields:
    """A request without fields."""


REQUESTS: dict[RequestCode, type] = {
    RequestCode.SEND_MESSAGE: SendRequest,
    RequestCode.SEND_MESSAGE_V2: SendRequest,
    RequestCode.SEND_BATCH_MESSAGE: SendRequest,
    RequestCode.SEND_REPLY_MESSAGE: SendRequest,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendRequest,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyRequest,
    RequestCode.PULL_MESSAGE: PullRequest,
    RequestCode.LITE_PULL_MESSAGE: PullRequest,
    RequestCode.QUERY_MESSAGE: QueryRequest,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryOffsetRequest,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateOffsetRequest,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetRequest,
    RequestCode.GET_MAX_OFFSET: QueueRequest,
    RequestCode.GET_MIN_OFFSET: QueueRequest,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueRequest,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewRequest,
    RequestCode.HEART_BEAT: NoFields,
    RequestCode.UNREGISTER_CLIENT: UnregisterRequest,
    RequestCode.CONSUMER_SEND_MSG_BACK: SendBackRequest,
    RequestCode.END_TRANSACTION: EndTransactionRequest,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionRequest,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: MembersRequest,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: MembersRequest,
    RequestCode.LOCK_BATCH_MQ: NoFields,
    RequestCode.UNLOCK_BATCH_MQ: NoFields,
    RequestCode.CHECK_CLIENT_CONFIG: NoFields,
    RequestCode.REGISTER_BROKER: RegisterRequest,
    RequestCode.UNREGISTER_BROKER: UnregisterBrokerRequest,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: RouteRequest,
    RequestCode.GET_BROKER_CLUSTER_INFO: NoFields,
    RequestCode.GET_ALL_TOPIC_CONFIG: NoFields,
    RequestCode.GET_ALL_CONSUMER_OFFSET: NoFields,
    RequestCode.GET_ALL_DELAY_OFFSET: NoFields,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: NoFields,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: MembersRequest,
    **ADMIN_REQUESTS,
    **dict.fromkeys(WITHOUT_FIELDS, NoFields),
}


_LETTERS = {name: letter for letter, name in SHORT_NAMES.items()}
_SHORT_FIELDS = tuple(one._replace(key=_LETTERS[one.name]) for one in fields_of(SendRequest))
_LONG_FORMS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


def sent_fields(code: int, texts: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of a request that sends, under their long names."""
    if code in _LONG_FORMS:
        return texts
    return {SHORT_NAMES.get(name, name): value for name, value in texts.items()}


def read_send(code: int, texts: Mapping[str, str]) -> SendRequest:
    """The header of a request that sends. Raises BadRequest."""
    if code not in _LONG_FORMS and texts.keys() <= SHORT_NAMES.keys():  # as nearly all are
        return read_fields(SendRequest, _SHORT_FIELDS, texts)
    return read_header(SendRequest, sent_fields(code, texts))
