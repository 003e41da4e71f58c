"""The reply to a client's settings: limits, back-off, order."""

from google.protobuf.duration_pb2 import Duration

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.names import LITE_TOPIC_MAX
from duolog_server.compat.grpc.protocol.stubs import Code, definition
from duolog_server.node.pop.liteservice import bound_topic
from duolog_server.node.pop.retrytopics import RETRY_TIMES
from duolog_server.store.kernels.jit import I64
from duolog_server.store.metadata import Json

RECEIVE_BATCH = 32
LONG_POLL_SECONDS = 20
SEND_ATTEMPTS = 3
LITE_KINDS = (
    definition.ClientType.LITE_PUSH_CONSUMER,
    definition.ClientType.LITE_SIMPLE_CONSUMER,
)
LITE_QUOTA = 2000  # lite topics that one client may subscribe to


def _seconds(seconds: float) -> Duration:
    made = Duration()
    made.FromMilliseconds(int(seconds * 1000))
    return made


def _for_producers(settings: definition.Settings, body_bytes_max: int) -> None:
    settings.publishing.max_body_size = body_bytes_max
    settings.publishing.validate_message_type = True
    backoff = settings.backoff_policy
    backoff.max_attempts = SEND_ATTEMPTS
    backoff.exponential_backoff.initial.CopyFrom(_seconds(0.01))
    backoff.exponential_backoff.max.CopyFrom(_seconds(1))
    backoff.exponential_backoff.multiplier = 2


def _for_consumers(settings: definition.Settings, group: Json, delays_ms: I64) -> None:
    subscription = settings.subscription
    lite = settings.client_type in LITE_KINDS or bool(bound_topic(group))
    subscription.fifo = lite or bool(group.get("consumeMessageOrderly"))
    subscription.receive_batch_size = RECEIVE_BATCH
    subscription.long_polling_timeout.CopyFrom(_seconds(LONG_POLL_SECONDS))
    subscription.lite_subscription_quota = LITE_QUOTA
    subscription.max_lite_topic_size = LITE_TOPIC_MAX
    backoff = settings.backoff_policy
    backoff.max_attempts = int(group.get("retryMaxTimes", RETRY_TIMES)) + 1
    policy = group.get("groupRetryPolicy", {}).get("customizedRetryPolicy", {})
    ladder = policy.get("next") or [int(delay) for delay in delays_ms]
    backoff.customized_backoff.next.extend(_seconds(delay / 1000) for delay in ladder)


def reply_to(
    asked: definition.Settings,
    group: Json,
    delays_ms: I64,
    body_bytes_max: int,
    measured: bool = False,
) -> definition.Settings:
    """The effective settings of a client.

    group: settings of its consumer group, or empty. delays_ms: between attempts, if the group has
    none. measured: the client has to push its metrics. Raises Refused if the client has neither a
    publishing nor a subscription part.
    """
    settings = definition.Settings()
    settings.CopyFrom(asked)
    settings.ClearField("backoff_policy")
    settings.ClearField("metric")
    settings.metric.on = measured and bool(asked.access_point.addresses)
    if settings.metric.on:  # where the client can reach a node: it uses that address already
        settings.metric.endpoints.CopyFrom(asked.access_point)
    match asked.WhichOneof("pub_sub"):
        case "publishing":
            _for_producers(settings, body_bytes_max)
        case "subscription":
            _for_consumers(settings, group, delays_ms)
        case _:
            raise Refused(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
    return settings
