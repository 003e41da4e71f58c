"""Replication of the broker, as RocketMQ 5's tools ask for it."""

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fastjson import Value
from duolog_server.compat.remoting.codec.nameserver import MASTER_ID
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker

LONG_MAX = (1 << 63) - 1  # the end of an epoch that is not over


class Replicas:
    """Tells of the slaves, and of the epochs of the log. Both raise as Admin/NodeStatus."""

    def __init__(self, broker: Broker, verbs: Verbs) -> None:
        self._broker = broker
        self._verbs = verbs

    async def status(self, peer: Peer, request: Command) -> Command:
        """GET_BROKER_HA_STATUS. Speeds are not measured."""
        node = await self._verbs.node(peer)
        slaves: list[Value] = [
            {
                "addr": row.endpoint,
                "diff": row.lag_bytes,
                "inSync": row.in_sync,
                "slaveAckOffset": row.durable_offset,
                "transferFromWhere": row.sent_offset,
            }
            for row in node.replication.slaves
        ]
        body: dict[str, Value] = {
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(row.in_sync for row in node.replication.slaves),
            "master": not self._broker.replication.not_master(),
            "masterCommitLogMaxOffset": node.max_offset,
        }
        if self._broker.replication.not_master():
            body["haClientRuntimeInfo"] = {
                "masterAddr": node.replication.master,
                "masterFlushOffset": node.replication.master_offset,
                "maxOffset": node.max_offset,
            }
        return request.answer(0, body=dumps(body))

    async def epochs(self, peer: Peer, request: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE: the oldest epoch first."""
        node = await self._verbs.node(peer)
        found = sorted((one.epoch, one.start) for one in node.replication.log_epochs)
        ends = [start for _, start in found[1:]] + [LONG_MAX]
        rows: list[Value] = [
            {"endOffset": end, "epoch": epoch, "startOffset": start}
            for (epoch, start), end in zip(found, ends, strict=False)
        ]
        body: dict[str, Value] = {
            "brokerId": MASTER_ID + int(bool(self._broker.replication.not_master())),
            "brokerName": self._broker.group,
            "clusterName": self._broker.node.cluster,
            "epochList": rows,
            "maxOffset": node.max_offset,
        }
        return request.answer(0, body=dumps(body))
