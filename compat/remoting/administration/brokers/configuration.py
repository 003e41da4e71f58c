"""The configuration of this node as a broker and as a name server, for reading.

It has no secrets, and nothing is set by it.
"""

import dataclasses
from collections.abc import Iterator
from enum import Enum

from duolog_server.compat.remoting.administration.bodies import dumps, properties_text
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import camel
from duolog_server.node.broker import Broker
from duolog_server.store.directories import INDEX, LOG, QUEUES
from duolog_server.store.metadata import TRACE_TOPIC
from duolog_server.store.status import BrokerRole

_PATHS = {LOG: "storePathCommitLog", QUEUES: "storePathConsumeQueue", INDEX: "storePathIndex"}


class Configuration:
    """Serves GET_BROKER_CONFIG and GET_NAMESRV_CONFIG."""

    def __init__(self, broker: Broker, advertised: str) -> None:
        """advertised: HOST:PORT at which clients reach this node's remoting port."""
        self._broker = broker
        self._host, _, self._port = advertised.rpartition(":")

    def of_broker(self, request: Command) -> Command:
        """GET_BROKER_CONFIG: properties under RocketMQ's names."""
        version = dumps({"counter": 0, "timestamp": self._broker.started_ms}).decode()
        body = properties_text(sorted(dict(self._broker_rows()).items()))
        return request.answer(0, fields={"version": version}, body=body)

    def of_name_server(self, request: Command) -> Command:
        """GET_NAMESRV_CONFIG."""
        rows = [("bindAddress", self._host), ("listenPort", self._port)]
        return request.answer(0, body=properties_text(rows))

    def _broker_rows(self) -> Iterator[tuple[str, object]]:
        broker = self._broker
        for field in dataclasses.fields(broker.store.options):
            value = getattr(broker.store.options, field.name)
            yield camel(field.name), value.name if isinstance(value, Enum) else value
        is_slave = broker.store.role is BrokerRole.SLAVE
        yield "autoCreateTopicEnable", broker.limits.auto_create_topic
        yield "autoCreateSubscriptionGroup", True
        yield "brokerClusterName", broker.node.cluster
        yield "brokerIP1", self._host
        yield "brokerId", int(is_slave)
        yield "brokerName", broker.group
        yield "brokerRole", broker.store.role.name
        yield "defaultTopicQueueNums", broker.limits.default_topic_queues
        yield "filterServerNums", 0
        yield "inSyncReplicas", broker.replication.options.in_sync_replicas
        yield "listenPort", self._port
        yield "msgTraceTopicName", TRACE_TOPIC
        yield "namesrvAddr", f"{self._host}:{self._port}"
        yield "slaveReadEnable", broker.replication.options.slave_read_enable
        for name, path in broker.store.options.paths.items():
            yield _PATHS[name], path or broker.node.data / name
        yield "storePathRootDir", broker.node.data
        yield "traceOn", True
        yield "traceTopicEnable", TRACE_TOPIC in broker.metadata.topics
        yield "transactionCheckMax", broker.transactions.checks_max
        yield "useTLS", False  # RocketMQ's brokers: as clients of others; exportConfigs needs it
