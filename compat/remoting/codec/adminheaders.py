"""The fields of requests of administration: a class for each code."""

from dataclasses import dataclass

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.fields import Int, Long

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
    """DELETE_TOPIC_IN_BROKER, and others that name a topic alone."""

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


ADMIN_REQUESTS: dict[RequestCode, type] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicRequest,
    RequestCode.GET_KV_CONFIG: KeyValueRequest,
    RequestCode.DELETE_KV_CONFIG: KeyValueRequest,
    RequestCode.GET_TOPIC_STATS_INFO: TopicRequest,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducersRequest,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteGroupRequest,
    RequestCode.GET_CONSUME_STATS: ConsumeStatsRequest,
    RequestCode.DELETE_TOPIC_IN_BROKER: TopicRequest,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: TopicRequest,
    RequestCode.GET_KVLIST_BY_NAMESPACE: NamespaceRequest,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetRequest,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatusRequest,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetRequest,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusRequest,
    RequestCode.GET_TOPICS_BY_CLUSTER: ClusterRequest,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicRequest,
    RequestCode.QUERY_CONSUME_TIME_SPAN: GroupTopicRequest,
    RequestCode.GET_CONSUMER_RUNNING_INFO: RunningInfoRequest,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyRequest,
    RequestCode.CLONE_GROUP_OFFSET: CloneOffsetRequest,
    RequestCode.VIEW_BROKER_STATS_DATA: StatsRequest,
    RequestCode.GET_BROKER_CONSUME_STATS: BrokerConsumeStatsRequest,
    RequestCode.QUERY_CONSUME_QUEUE: ConsumeQueueRequest,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeCheckRequest,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: GroupRequest,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: GroupTopicRequest,
    RequestCode.GET_TOPIC_CONFIG: TopicRequest,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GroupRequest,
}
WITHOUT_FIELDS = (
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
