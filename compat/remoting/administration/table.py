"""Which request of administration goes to whom, and the bounds of all answers."""

import asyncio

from duolog_server.compat.remoting.administration import namespace
from duolog_server.compat.remoting.administration.brokers.configuration import Configuration
from duolog_server.compat.remoting.administration.brokers.files import Files
from duolog_server.compat.remoting.administration.brokers.replicas import Replicas
from duolog_server.compat.remoting.administration.brokers.runtime import Runtime
from duolog_server.compat.remoting.administration.brokers.statistics import Statistics
from duolog_server.compat.remoting.administration.consumers.asking import Asking
from duolog_server.compat.remoting.administration.consumers.connections import Connections
from duolog_server.compat.remoting.administration.consumers.progress import Progress
from duolog_server.compat.remoting.administration.consumers.resets import Resets
from duolog_server.compat.remoting.administration.groups import Groups
from duolog_server.compat.remoting.administration.topics import Topics
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import HEADER_BYTES_MAX, BadRequest, Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Handler, Peer
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.node.identity.quotas.quotas import Who

BODY_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX
LISTS_AT_ONCE = 2  # that are made at a time, for all clients
# Requests whose work and answers grow with the number of topics or groups.
LISTS = (
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_TOPICS_BY_CONSUMER,
)


class Administration:
    """Serves them.

    Attributes:
        handlers: by code.
    """

    def __init__(
        self,
        broker: Broker,
        members: Members,
        verbs: Verbs,
        advertised: str,
        sight: Sight,
    ) -> None:
        """advertised: HOST:PORT of the remoting port."""
        self._untaken = broker.untaken
        self._turns = asyncio.Semaphore(LISTS_AT_ONCE)
        self._statistics = statistics = Statistics(broker)
        topics = Topics(broker, verbs, statistics, sight)
        groups = Groups(broker, verbs.changes.groups)
        progress = Progress(broker, members, verbs, statistics)
        resets = Resets(broker, members, verbs.changes.groups, sight)
        connections = Connections(broker.times, members)
        asking = Asking(broker, members, sight)
        runtime = Runtime(broker, statistics)
        configuration = Configuration(broker, advertised)
        files = Files(broker, members)
        replicas = Replicas(broker)
        served: dict[RequestCode, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.put_all,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda _, request: topics.forget(request),
            RequestCode.GET_TOPIC_STATS_INFO: topics.stats,
            RequestCode.GET_TOPIC_CONFIG: lambda _, request: topics.config(request),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _, request: topics.names(
                request
            ),
            RequestCode.GET_TOPICS_BY_CLUSTER: lambda _, request: topics.of_cluster(request),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _, request: topics.system(request),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: lambda _, request: (
                topics.system_of_broker(request)
            ),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda _, request: topics.readers(request),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.put_all,
            RequestCode.SET_MESSAGE_REQUEST_MODE: groups.set_mode,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: lambda _, request: groups.config(request),
            RequestCode.GET_CONSUME_STATS: progress.of_group,
            RequestCode.GET_BROKER_CONSUME_STATS: progress.of_all,
            RequestCode.QUERY_CONSUME_TIME_SPAN: progress.time_spans,
            RequestCode.CLONE_GROUP_OFFSET: progress.clone,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: resets.reset,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda _, request: connections.consumers(
                request
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: lambda _, request: connections.producers(
                request
            ),
            RequestCode.GET_ALL_PRODUCER_INFO: lambda _, request: connections.all_producers(
                request
            ),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: lambda _, request: topics.read_by(request),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: lambda _, request: connections.subscription(
                request
            ),
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda _, request: asking.running_info(request),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda _, request: asking.consume(request),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: lambda _, request: asking.status(
                request
            ),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda _, request: runtime.info(request),
            RequestCode.GET_BROKER_HA_STATUS: lambda _, request: replicas.status(request),
            RequestCode.GET_BROKER_EPOCH_CACHE: lambda _, request: replicas.epochs(request),
            RequestCode.VIEW_BROKER_STATS_DATA: lambda _, request: statistics.view(request),
            RequestCode.GET_BROKER_CONFIG: lambda _, request: configuration.of_broker(request),
            RequestCode.GET_NAMESRV_CONFIG: lambda _, request: configuration.of_name_server(
                request
            ),
            RequestCode.QUERY_CONSUME_QUEUE: lambda _, request: files.entries(request),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: lambda _, request: files.clean(request),
            RequestCode.CLEAN_UNUSED_TOPIC: lambda _, request: files.clean(request),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: lambda _, request: files.resume_check(request),
            RequestCode.GET_KV_CONFIG: lambda _, request: namespace.one(request),
            RequestCode.DELETE_KV_CONFIG: lambda _, request: namespace.delete(request),
            RequestCode.GET_KVLIST_BY_NAMESPACE: lambda _, request: namespace.all_of(request),
        }
        self.handlers: dict[int, Handler] = {
            code: self.bounded(serve, code in LISTS) for code, serve in served.items()
        }

    def tick(self) -> None:
        """Now and then: keep the statistics of days."""
        self._statistics.tick()

    def bounded(self, serve: Handler, is_list: bool) -> Handler:
        """The same, whose answers fit a frame and count in the memory of answers."""

        make = self._list if is_list else self._one
        return lambda peer, request: make(serve, peer, request)

    async def _one(self, serve: Handler, peer: Peer, request: Command) -> Command:
        begun = serve(peer, request)
        return self._counted(peer, begun if isinstance(begun, Command) else await begun)

    async def _list(self, serve: Handler, peer: Peer, request: Command) -> Command:
        """In its turn, once the client has taken other answers. Raises Busy."""
        await self._untaken.some_room(_address(peer))
        async with self._turns:
            return await self._one(serve, peer, request)

    def _counted(self, peer: Peer, answer: Command) -> Command:
        """Raises BadRequest for one that fits no frame."""
        size, untaken, address = len(answer.body), self._untaken, _address(peer)
        if size > BODY_BYTES_MAX:
            raise BadRequest(
                f"the answer has {size} bytes and fits no frame, whose limit is {BODY_BYTES_MAX}: "
                "ask for topics and groups by their names"
            )
        untaken.take(address, size)
        peer.after_answer(lambda: untaken.give(address, size))
        return answer


def _address(peer: Peer) -> str:
    return Who.at("", peer.host.address).address
