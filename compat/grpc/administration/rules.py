"""What each method of RocketMQ's Admin service asks for: what the native method that it calls does.

A method that is refused asks for what it would need, so that strangers learn nothing of a node.
"""

from collections.abc import Callable
from typing import Any

from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.administration.groups import named
from duolog_server.compat.grpc.protocol.names import group_of, topic_of
from duolog_server.compat.grpc.protocol.stubs import admin
from duolog_server.node.api.rules import RULES as NATIVE
from duolog_server.node.api.rules import SEES_CLUSTER
from duolog_server.node.identity.access.rules import (
    Facts,
    Needs,
    Rule,
    group_sub,
    need,
    pub,
    reads,
    sees_group,
    sees_topic,
)
from duolog_server.node.identity.rights.resources import Action, cluster, group

OfSubscription = admin.ListSubscriptionRequest | admin.DescribeSubscriptionRequest


def _native(method: str, made: Callable[[Any], Any]) -> Rule:
    """The rule of a native method, for the request that is made of this one."""
    rule = NATIVE[f"/duolog.v1.{method}"]
    return Rule(lambda request, facts: rule.needs(made(request), facts))


def _subscription(request: OfSubscription, facts: Facts) -> Needs:
    """Of a topic's groups, the answer has those that the caller may see."""
    topics = sees_topic(topic_of(request.topic), facts) if request.HasField("topic") else []
    groups = [sees_group(group_of(request.group))] if request.HasField("group") else []
    return [*groups, *topics]


def _spans(request: admin.QueryTimeSpanRequest, facts: Facts) -> Needs:
    of_topics = (need for topic in named(request.topics) for need in sees_topic(topic, facts))
    return [sees_group(group_of(request.group)), *of_topics]


def _of_client(request: Any, facts: Facts) -> Needs:
    return (sees_group(group_of(request.group)),)


def _verify(request: admin.VerifyMessageRequest, facts: Facts) -> Needs:
    """The client processes the message as its group."""
    return [group_sub(group_of(request.group)), *reads(topic_of(request.topic), facts)]


RULES = {
    "ChangeLogLevel": Rule(
        lambda request, facts: (need(cluster(facts.cluster), Action.UPDATE),),
    ),
    "DescribeTopicStatus": _native(
        "Admin/ListTopics", lambda asked: wire.ListTopicsRequest(topics=[topic_of(asked.topic)])
    ),
    "ListSubscription": Rule(_subscription),
    "DescribeSubscription": Rule(_subscription),
    "DeleteSubscription": Rule(
        lambda request, facts: (need(group(group_of(request.group)), Action.UPDATE),)
    ),
    "DescribeGroupAccumulation": _native(
        "Admin/DescribeGroup",
        lambda asked: wire.DescribeGroupRequest(group=group_of(asked.group)),
    ),
    "ListConsumerConnection": Rule(_of_client),
    "ResetGroupOffset": _native(
        "Admin/ResetGroup",
        lambda asked: wire.ResetGroupRequest(
            group=group_of(asked.group), topic=topic_of(asked.topic)
        ),
    ),
    "QueryMessage": _native(
        "Messages/Find", lambda asked: wire.FindRequest(topic=topic_of(asked.topic))
    ),
    "PrintThreadStackTrace": Rule(_of_client),
    "VerifyMessage": Rule(_verify),
    "AdminSendMessage": Rule(lambda request, facts: pub(topic_of(request.topic), facts)),
    "GetConsumerRunningInfo": Rule(_of_client),
    "GetTopicRoute": Rule(lambda request, facts: sees_topic(topic_of(request.topic), facts)),
    "QueryTimeSpan": Rule(_spans),
    "GetProxyRuntimeStats": SEES_CLUSTER,
}
