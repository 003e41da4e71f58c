"""Access rules of RocketMQ's API. A method without one is not served.

As in RocketMQ 5's proxy, but for all messages and topics of a call, and also for the methods that
the proxy asks nothing for. Names have their namespace.
"""

from duolog_server.compat.grpc.protocol.names import group_of, topic_of
from duolog_server.compat.grpc.protocol.stubs import Resource, definition, service
from duolog_server.node.identity.access.rules import (
    Facts,
    Needs,
    Rule,
    group_sub,
    of_owners,
    pub,
    reads,
)
from duolog_server.node.identity.rights.resources import Action, Need


def _group(resource: Resource) -> Need:
    return group_sub(group_of(resource))


def _topic(resource: Resource, facts: Facts) -> list[Need]:
    return reads(topic_of(resource), facts)


def _consumes(group: Resource, topic: Resource, facts: Facts) -> Needs:
    return [_group(group), *_topic(topic, facts)]


# -- Methods that name group and topic in fields of the same name --------------------------------

OfTopic = (
    service.QueryAssignmentRequest
    | service.AckMessageRequest
    | service.ForwardMessageToDeadLetterQueueRequest
    | service.ChangeInvisibleDurationRequest
    | service.SyncLiteSubscriptionRequest
)
OfQueue = (
    service.ReceiveMessageRequest
    | service.PullMessageRequest
    | service.UpdateOffsetRequest
    | service.GetOffsetRequest
)
OfGroup = service.HeartbeatRequest | service.NotifyClientTerminationRequest
ByProducer = service.EndTransactionRequest | service.RecallMessageRequest


def _of_topic(request: OfTopic, facts: Facts) -> Needs:
    return _consumes(request.group, request.topic, facts)


def _of_queue(request: OfQueue, facts: Facts) -> Needs:
    return _consumes(request.group, request.message_queue.topic, facts)


def _of_group(request: OfGroup, facts: Facts) -> Needs:
    """Producers name no group, and concern only themselves."""
    return (_group(request.group),) if request.HasField("group") else ()


def _by_producer(request: ByProducer, facts: Facts) -> Needs:
    return pub(topic_of(request.topic), facts)


# -- The others ----------------------------------------------------------------------------------


def _route(request: service.QueryRouteRequest, facts: Facts) -> Needs:
    return of_owners(topic_of(request.topic), facts, Action.PUB, Action.SUB, Action.GET)


def _send(request: service.SendMessageRequest, facts: Facts) -> Needs:
    topics = {topic_of(message.topic) for message in request.messages}
    return [need for topic in topics for need in pub(topic, facts)]


def _query_offset(request: service.QueryOffsetRequest, facts: Facts) -> Needs:
    return of_owners(topic_of(request.message_queue.topic), facts, Action.SUB, Action.GET)


def _settings(command: service.TelemetryCommand, facts: Facts) -> Needs:
    """Of what a client sends on its telemetry stream, settings have an effect, and answers to what
    it was asked: whether it may answer was looked at when it was asked.
    """
    settings = command.settings
    match settings.WhichOneof("pub_sub"):
        case "publishing":
            topics = settings.publishing.topics
            return [need for topic in topics for need in pub(topic_of(topic), facts)]
        case "subscription":
            return _subscription(settings.subscription, facts)
        case _:
            return ()


def _subscription(subscription: definition.Subscription, facts: Facts) -> Needs:
    group = [_group(subscription.group)] if subscription.HasField("group") else []
    entries = subscription.subscriptions
    return [*group, *(need for entry in entries for need in _topic(entry.topic, facts))]


def _commands(command: service.TelemetryCommand, facts: Facts) -> Needs:
    """A transaction check has the message of a topic in it, and so has one to verify."""
    match command.WhichOneof("command"):
        case "recover_orphaned_transaction_command":
            message = command.recover_orphaned_transaction_command.message
            return pub(topic_of(message.topic), facts)
        case "verify_message_command":
            return _topic(command.verify_message_command.message.topic, facts)
        case _:
            return ()


RULES = {
    "QueryRoute": Rule(_route),
    "Heartbeat": Rule(_of_group),
    "SendMessage": Rule(_send),
    "QueryAssignment": Rule(_of_topic),
    "ReceiveMessage": Rule(_of_queue),
    "AckMessage": Rule(_of_topic),
    "ForwardMessageToDeadLetterQueue": Rule(_of_topic),
    "PullMessage": Rule(_of_queue),
    "UpdateOffset": Rule(_of_queue),
    "GetOffset": Rule(_of_queue),
    "QueryOffset": Rule(_query_offset),
    "EndTransaction": Rule(_by_producer),
    "Telemetry": Rule(_settings, delivers=_commands),
    "NotifyClientTermination": Rule(_of_group),
    "ChangeInvisibleDuration": Rule(_of_topic),
    "RecallMessage": Rule(_by_producer),
    "SyncLiteSubscription": Rule(_of_topic),
}
