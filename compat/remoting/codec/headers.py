"""The fields of requests and responses: a class for each form, whose docstring names the codes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.fields import (
    Int,
    Long,
    fields_of,
    read_fields,
    read_header,
)

# -- name server -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


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
class PopMessageRequest:
    """POP_MESSAGE. queue_id: negative for any. init_mode: where a new group begins, see INIT_MAX.

    order: whether the client expects each queue in order.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    init_mode: Int
    exp_type: str = ""
    exp: str = ""
    order: bool = False
    attempt_id: str = ""


@dataclass(frozen=True, slots=True)
class PopMessageResponse:
    """Answer to POP_MESSAGE; the body has the records.

    The texts say, for each queue, the first offset and all of them (`remoting/receipts.py`); each
    client makes its receipts of them.
    """

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long = 0
    start_offset_info: str = ""
    msg_offset_info: str = ""
    order_count_info: str = ""


@dataclass(frozen=True, slots=True)
class AckMessageRequest:
    """ACK_MESSAGE. extra_info: the receipt."""

    consumer_group: str
    topic: str
    extra_info: str


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeRequest:
    """CHANGE_MESSAGE_INVISIBLETIME. extra_info: the receipt."""

    consumer_group: str
    topic: str
    extra_info: str
    invisible_time: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeResponse:
    """Answer to CHANGE_MESSAGE_INVISIBLETIME, of which the client makes the new receipt."""

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0


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
    """SEARCH_OFFSET_BY_TIMESTAMP. boundary_type: of RocketMQ 5, LOWER where it is not UPPER."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str = ""


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


# -- clients ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembersRequest:
    """GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST, and NOTIFY_CONSUMER_IDS_CHANGED to
    clients.
    """

    consumer_group: str


@dataclass(frozen=True, slots=True)
class UnregisterRequest:
    """UNREGISTER_CLIENT."""

    client_id: str = dataclasses.field(metadata={"name": "clientID"})
    producer_group: str = ""
    consumer_group: str = ""


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


# -- topics ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopicRequest:
    """UPDATE_AND_CREATE_TOPIC. attributes: `+name=value` and `-name`, separated by commas."""

    topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    default_topic: str = ""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


@dataclass(frozen=True, slots=True)
class ConsumeQueueRequest:
    """QUERY_CONSUME_QUEUE. index: queue offset of the first entry."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str = ""


# -- groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeleteGroupRequest:
    """DELETE_SUBSCRIPTIONGROUP. Deletes the group's offsets as well, in any case."""

    group_name: str


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumeStatsRequest:
    """GET_CONSUME_STATS. topic: empty for all that the group reads."""

    consumer_group: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsRequest:
    """GET_BROKER_CONSUME_STATS. is_order: of ordered topics alone."""

    is_order: bool


@dataclass(frozen=True, slots=True)
class GroupTopicRequest:
    """QUERY_CONSUME_TIME_SPAN, QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class CloneOffsetRequest:
    """CLONE_GROUP_OFFSET. topic: empty for all that the source has read."""

    src_group: str
    dest_group: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ResetOffsetRequest:
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET to clients.

    timestamp: wall-clock ms; negative for the end of each queue. is_force: forwards as well.
    queue_id, offset: one queue, and where to, as RocketMQ 5's tools ask.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool = False
    queue_id: Int = -1
    offset: Long = -1


# -- clients ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducersRequest:
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


@dataclass(frozen=True, slots=True)
class ConsumerStatusRequest:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and GET_CONSUMER_STATUS_FROM_CLIENT to clients.

    client_addr: the id of one client; empty for all.
    """

    topic: str
    group: str
    client_addr: str = ""


@dataclass(frozen=True, slots=True)
class RunningInfoRequest:
    """GET_CONSUMER_RUNNING_INFO, from tools and to clients."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyRequest:
    """CONSUME_MESSAGE_DIRECTLY, from tools and, with the message as its body, to clients."""

    consumer_group: str
    client_id: str
    msg_id: str
    broker_name: str = ""


@dataclass(frozen=True, slots=True)
class ResumeCheckRequest:
    """RESUME_CHECK_HALF_MESSAGE. msg_id: the offset id of the half message."""

    msg_id: str


# -- the broker, and the name server ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """VIEW_BROKER_STATS_DATA. stats_key: a topic, topic@group, or the cluster."""

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True)
class KeyValueRequest:
    """GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class NamespaceRequest:
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str
