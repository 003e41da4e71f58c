"""Access rules of the requests, in the terms of the other APIs.

As in RocketMQ 5 (ACL 2.0), but for all topics of a request. A request without a row is for super
users. Some requests name a message, and not its topic: what serves them looks at the topic that it
finds, and answers about messages of others as about those that do not exist.
"""

from collections.abc import Callable, Iterable

from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.bodies import (
    group_name,
    read_assignment_query,
    read_check,
    read_group,
    read_groups,
    read_heartbeat,
    read_locks,
    read_request_mode,
    read_topics,
    topic_name,
)
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.headers import sent_fields
from duolog_server.compat.remoting.receipts import origin_topic, read_acks
from duolog_server.compat.remoting.routes import DEFAULT_TOPIC, reply_topic
from duolog_server.node.identity.access.rules import (
    Facts,
    Needs,
    Rule,
    group_sub,
    need,
    of_owners,
    pub,
    reads,
    sees_group,
    sees_topic,
)
from duolog_server.node.identity.rights.resources import FOR_SUPERS, Action, Need, cluster, group

NeedsOf = Callable[[Command, Facts], Needs]


def named(request: Command, field: str) -> str:
    """The text of a field that must be there. Raises BadRequest."""
    found = request.fields.get(field)
    if found is None:
        raise BadRequest(f"the field {field} is missing")
    return found


def sends(name: str, facts: Facts) -> list[Need]:
    """Send to a topic. A group's members send to its retry topic what they could not consume."""
    return reads(name, facts) if name.startswith(RETRY_PREFIX) else pub(name, facts)


def _all_read(topics: Iterable[str], facts: Facts) -> Needs:
    for name in dict.fromkeys(topics):  # one by one: they may be very many
        yield from reads(name, facts)


# -- kinds of rules --------------------------------------------------------------------------------


def _anybody(request: Command, facts: Facts) -> Needs:
    return ()


def _of_cluster(*actions: Action) -> NeedsOf:
    return lambda request, facts: (need(cluster(facts.cluster), *actions),)


def _sees(request: Command, facts: Facts) -> Needs:
    """About a topic."""
    return sees_topic(named(request, "topic"), facts)


def _reads_as_group(request: Command, facts: Facts) -> list[Need]:
    group, topic = named(request, "consumerGroup"), named(request, "topic")
    return [*reads(topic, facts), group_sub(group)]


def _acknowledges(request: Command, facts: Facts) -> list[Need]:
    group = named(request, "consumerGroup")
    topic = origin_topic(group, named(request, "topic"))
    return [*reads(topic, facts), group_sub(group)]


def _acknowledges_all(request: Command, facts: Facts) -> Needs:
    for acks in read_acks(request.body):
        yield from reads(origin_topic(acks.group, acks.topic), facts)
        yield group_sub(acks.group)


def _assigned(request: Command, facts: Facts) -> list[Need]:
    query = read_assignment_query(request.body)
    return [*reads(query.topic, facts), group_sub(query.group)]


def _of_topic(*actions: Action) -> NeedsOf:
    return lambda request, facts: of_owners(named(request, "topic"), facts, *actions)


def _of_group(field: str, *actions: Action) -> NeedsOf:
    return lambda request, facts: (need(group(named(request, field)), *actions),)


# -- single requests -------------------------------------------------------------------------------


def _send_back(request: Command, facts: Facts) -> Needs:
    return (group_sub(named(request, "group")),)


def _members(request: Command, facts: Facts) -> Needs:
    return (sees_group(named(request, "consumerGroup")),)


def _send(request: Command, facts: Facts) -> Needs:
    topic = sent_fields(request.code, request.fields).get("topic")
    if topic is None:
        raise BadRequest("the field topic is missing")
    return sends(topic, facts)


def _reply(request: Command, facts: Facts) -> Needs:
    """A reply is pushed to another client, so its topic does not matter."""
    return [*_send(request, facts), *pub(reply_topic(facts.cluster), facts)]


def _query(request: Command, facts: Facts) -> Needs:
    return reads(named(request, "topic"), facts)


def _committed(request: Command, facts: Facts) -> Needs:
    group, topic = named(request, "consumerGroup"), named(request, "topic")
    return [sees_group(group), *sees_topic(topic, facts)]


def _heartbeat(request: Command, facts: Facts) -> Needs:
    """Producers concern nobody: they are asked for decisions on topics only that they send to."""
    for data in read_heartbeat(request.body).consumers:
        yield group_sub(data.group)
        yield from _all_read((one.topic for one in data.subscriptions), facts)


def _unregister(request: Command, facts: Facts) -> Needs:
    group = request.fields.get("consumerGroup")
    return (group_sub(group),) if group else ()


def _locks(request: Command, facts: Facts) -> Needs:
    wanted = read_locks(request.body)
    yield group_sub(wanted.group)
    yield from _all_read((one.topic for one in wanted.queues), facts)


def _check(request: Command, facts: Facts) -> Needs:
    return reads(read_check(request.body).topic, facts)


def _route(request: Command, facts: Facts) -> Needs:
    """A route of the template for new topics has the addresses of nodes only."""
    topic = named(request, "topic")
    if topic == DEFAULT_TOPIC:
        return ()
    return of_owners(topic, facts, Action.PUB, Action.SUB, Action.GET)


# -- administration: what the native methods ask for as well is looked at there, too ---------------


def _put_topics(request: Command, facts: Facts) -> Needs:
    for row in read_topics(request.body):
        yield from of_owners(topic_name(row), facts, *PUTS)


def _put_group(request: Command, facts: Facts) -> Needs:
    return (need(group(group_name(read_group(request.body))), *PUTS),)


def _request_mode(request: Command, facts: Facts) -> Needs:
    wanted = read_request_mode(request.body)
    topic = of_owners(wanted.topic, facts, Action.GET)
    return [need(group(wanted.group), *PUTS), *topic]


def _put_groups(request: Command, facts: Facts) -> Needs:
    for row in read_groups(request.body):
        yield need(group(group_name(row)), *PUTS)


def _reset(request: Command, facts: Facts) -> Needs:
    topic = of_owners(named(request, "topic"), facts, Action.GET)
    return [need(group(named(request, "group")), Action.UPDATE), *topic]


def _clone(request: Command, facts: Facts) -> Needs:
    return (
        need(group(named(request, "destGroup")), Action.UPDATE),
        need(group(named(request, "srcGroup")), Action.GET),
    )


def _topic_for(field: str) -> NeedsOf:
    """About a topic, and about a group's place in it or subscription to it, if one is named."""

    def needs(request: Command, facts: Facts) -> Needs:
        found = of_owners(named(request, "topic"), facts, Action.GET)
        name = request.fields.get(field)
        return [*found, sees_group(name)] if name else found

    return needs


def _consumes_one(request: Command, facts: Facts) -> Needs:
    return (group_sub(named(request, "consumerGroup")),)


PUTS = (Action.CREATE, Action.UPDATE)
OF_TOPICS = (
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,  # the answer has groups that the caller may see
)
OF_CLUSTER = (
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)
CHANGES_CLUSTER = (
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
)
ADMINISTRATION: dict[int, Rule] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Rule(_of_topic(*PUTS)),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Rule(_put_topics),
    RequestCode.DELETE_TOPIC_IN_BROKER: Rule(_of_topic(Action.DELETE)),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Rule(_of_topic(Action.DELETE)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rule(_put_group),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rule(_put_groups),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Rule(_request_mode),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Rule(_of_group("groupName", Action.DELETE)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Rule(_of_group("group", Action.GET)),
    RequestCode.GET_CONSUME_STATS: Rule(_of_group("consumerGroup", Action.GET)),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Rule(_of_group("consumerGroup", Action.GET)),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Rule(_of_group("group", Action.GET)),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Rule(_of_group("group", Action.GET)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Rule(
        _of_group("group", Action.GET), again=True
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Rule(_of_group("consumerGroup", Action.GET), again=True),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Rule(_consumes_one, again=True),  # and may read it
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Rule(_reset),
    RequestCode.CLONE_GROUP_OFFSET: Rule(_clone),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Rule(_topic_for("group")),
    RequestCode.QUERY_CONSUME_QUEUE: Rule(_topic_for("consumerGroup")),
    **dict.fromkeys(OF_TOPICS, Rule(_of_topic(Action.GET))),
    **dict.fromkeys(OF_CLUSTER, Rule(_of_cluster(Action.GET))),
    **dict.fromkeys(CHANGES_CLUSTER, Rule(_of_cluster(Action.UPDATE))),
}
SUPERS_ONLY = Rule(lambda request, facts: (FOR_SUPERS,))
RULES: dict[int, Rule] = {
    RequestCode.SEND_MESSAGE: Rule(_send),
    RequestCode.SEND_MESSAGE_V2: Rule(_send),
    RequestCode.SEND_BATCH_MESSAGE: Rule(_send),
    RequestCode.SEND_REPLY_MESSAGE: Rule(_reply),
    RequestCode.SEND_REPLY_MESSAGE_V2: Rule(_reply),
    RequestCode.PULL_MESSAGE: Rule(_reads_as_group, again=True),
    RequestCode.LITE_PULL_MESSAGE: Rule(_reads_as_group, again=True),
    RequestCode.POP_MESSAGE: Rule(_reads_as_group, again=True),
    RequestCode.ACK_MESSAGE: Rule(_acknowledges),
    RequestCode.BATCH_ACK_MESSAGE: Rule(_acknowledges_all),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Rule(_acknowledges),
    RequestCode.QUERY_ASSIGNMENT: Rule(_assigned),
    RequestCode.QUERY_MESSAGE: Rule(_query, again=True),
    RequestCode.VIEW_MESSAGE_BY_ID: Rule(_anybody),  # of messages that the caller may read
    RequestCode.QUERY_CONSUMER_OFFSET: Rule(_committed),
    RequestCode.UPDATE_CONSUMER_OFFSET: Rule(lambda *of: reversed(_reads_as_group(*of))),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Rule(_sees),
    RequestCode.GET_MAX_OFFSET: Rule(_sees),
    RequestCode.GET_MIN_OFFSET: Rule(_sees),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Rule(_sees),
    RequestCode.HEART_BEAT: Rule(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Rule(_unregister),
    RequestCode.CONSUMER_SEND_MSG_BACK: Rule(_send_back),  # messages that it may read
    RequestCode.END_TRANSACTION: Rule(_anybody),  # of topics that the caller may send to
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Rule(_members),
    RequestCode.LOCK_BATCH_MQ: Rule(_locks),
    RequestCode.UNLOCK_BATCH_MQ: Rule(_locks),
    RequestCode.CHECK_CLIENT_CONFIG: Rule(_check),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rule(_route),
    RequestCode.GET_BROKER_CLUSTER_INFO: Rule(_of_cluster(Action.GET)),
    **ADMINISTRATION,
}
