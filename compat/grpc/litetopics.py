"""SyncLiteSubscription: the lite topics that the clients of a group subscribe to."""

from collections.abc import Collection

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.names import check_lite_topic, group_of, topic_of
from duolog_server.compat.grpc.protocol.settings import LITE_KINDS, LITE_QUOTA
from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.compat.grpc.relay.clients import Client
from duolog_server.node.core.core import Core
from duolog_server.node.pop.liteservice import (
    EVERYTHING,
    SUBSCRIPTIONS_MAX,
    LiteService,
    bound,
    bound_topic,
)
from duolog_server.node.pop.popservice import PopService
from duolog_server.node.pop.subscriber import Subscriber
from duolog_server.store.lightqueues import lite_queue
from duolog_server.store.metadata import LITE, new_group
from duolog_server.store.offsets import QueueOffset

_ACTIONS = definition.LiteSubscriptionAction
_POLICIES = definition.OffsetOption.Policy


class LiteTopics:
    """Handles subscriptions of clients."""

    def __init__(self, core: Core, lite: LiteService, pop: PopService) -> None:
        self._core = core
        self._lite = lite
        self._pop = pop

    def subscriber(self, client: Client, group: str, topic: str) -> Subscriber | None:
        """The subscriber that a client is in a group; None if it subscribes to a topic as a whole.

        Raises Refused if the group subscribes to the lite topics of another one.
        """
        bound = bound_topic(self._core.admission.group_tables().groups.get(group, {}))
        if not bound and client.kind not in LITE_KINDS:
            return None
        if bound and bound != topic:
            raise _other_topic(group, bound)
        return self._lite.subscriber(client.client_id, group, topic)

    async def sync(self, request: service.SyncLiteSubscriptionRequest, client: Client) -> None:
        """Apply a client's subscriptions. Raises Refused, sdk errors."""
        group, topic = group_of(request.group), topic_of(request.topic)
        for name in request.lite_topic_set:
            if name != EVERYTHING:
                check_lite_topic(name)
        await self._check_bound(group, topic)
        if request.action in (_ACTIONS.PARTIAL_ADD, _ACTIONS.COMPLETE_ADD):
            queues = _queues(topic, request)
            known = self._lite.subscriber(client.client_id, group, topic).queues
            self._check_quota(known, queues, request.action == _ACTIONS.PARTIAL_ADD)
            added = [queue for queue in queues if queue not in known]
            await self._start_at(group, added, request)
        self._core.admission.check_master()  # checked again: nothing below waits
        self.note(request, client)

    def note(self, request: service.SyncLiteSubscriptionRequest, client: Client) -> None:
        """Store a client's subscriptions, also on a slave, which may be the next master.

        Raises Refused.
        """
        group, topic = group_of(request.group), topic_of(request.topic)
        everything = EVERYTHING in request.lite_topic_set
        client.group = group
        lite = self._lite
        subscriber = lite.subscriber(client.client_id, group, topic)
        queues = _queues(topic, request)
        match request.action:
            case _ACTIONS.PARTIAL_ADD:
                self._check_quota(subscriber.queues, queues, partial=True)
                lite.subscribe(subscriber, queues, takes_over=True)
                if everything:
                    lite.subscribe_to_all(subscriber)
            case _ACTIONS.COMPLETE_ADD:
                self._check_quota(subscriber.queues, queues, partial=False)
                wanted = set(queues)
                unwanted = [queue for queue in subscriber.queues if queue not in wanted]
                lite.unsubscribe(subscriber, unwanted)
                lite.subscribe(subscriber, queues, takes_over=False)
                if everything and not subscriber.everything:
                    lite.subscribe_to_all(subscriber)
                elif subscriber.everything and not everything:
                    lite.unsubscribe_from_all(subscriber)
            case _ACTIONS.PARTIAL_REMOVE:
                lite.unsubscribe(subscriber, queues)
                if everything:
                    lite.unsubscribe_from_all(subscriber)
            case _ACTIONS.COMPLETE_REMOVE:
                lite.leave(subscriber)
            case _:
                raise Refused(Code.BAD_REQUEST, f"unknown action {request.action}")

    async def _check_bound(self, group: str, topic: str) -> None:
        """Check the topic of a group: it subscribes to the lite topics of the first one it
        requested.
        """
        config = self._core.admission.readable_topic(topic)
        if config.message_type != LITE:
            self._core.admission.check_knows()
            raise Refused(Code.ILLEGAL_TOPIC, f"topic {topic!r} has no lite topics")
        row = self._core.admission.group_tables().groups.get(group)
        if row is None:
            made = bound(new_group(group), topic, exclusive=False)
            await self._core.metadata.ensure_group(group, made)
        elif not bound_topic(row):
            raise Refused(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"group {group!r} is not bound to a topic with lite topics",
            )
        elif bound_topic(row) != topic:
            raise _other_topic(group, bound_topic(row))

    def _check_quota(self, known: Collection[str], queues: list[str], partial: bool) -> None:
        count = len({*known, *queues}) if partial else len(queues)
        more = count - len(known)
        code = Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        if count > LITE_QUOTA:
            raise Refused(code, f"{count} lite topics exceed the limit of {LITE_QUOTA} per client")
        if more > 0 and self._lite.subscriptions + more > SUBSCRIPTIONS_MAX:
            raise Refused(
                code, f"this node has reached its limit of {SUBSCRIPTIONS_MAX} lite subscriptions"
            )

    async def _start_at(
        self, group: str, queues: list[str], request: service.SyncLiteSubscriptionRequest
    ) -> None:
        """Apply the requested start offset in lite topics that are new to the group."""
        option = request.offset_option
        kind = option.WhichOneof("offset_type") if request.HasField("offset_option") else None
        if kind is None or (kind == "policy" and option.policy == _POLICIES.LAST):
            return
        offsets: dict[str, dict[int, int]] = {}
        for queue in queues:
            low, high = self._core.store.queue_range(queue, 0)
            match kind:
                case "policy":
                    wanted = low if option.policy == _POLICIES.MIN else high
                case "offset":
                    wanted = QueueOffset(option.offset)
                case "tail_n":
                    wanted = QueueOffset(high - option.tail_n)
                case _:
                    wanted = self._core.positions.offset_at_time(queue, 0, option.timestamp)
            if low < high:  # otherwise all messages are new
                offsets[queue] = {0: min(max(wanted, low), high)}
        if offsets:
            await self._pop.reset(group, offsets)


def _queues(topic: str, request: service.SyncLiteSubscriptionRequest) -> list[str]:
    """Light queues of the lite topics that a request names, each once."""
    names = dict.fromkeys(request.lite_topic_set)
    return [lite_queue(topic, name) for name in names if name != EVERYTHING]


def _other_topic(group: str, bound: str) -> Refused:
    return Refused(Code.ILLEGAL_TOPIC, f"group {group!r} is bound to the lite topics of {bound!r}")
