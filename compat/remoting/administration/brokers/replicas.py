"""Replication of the broker, as RocketMQ 5's tools ask for it."""

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fastjson import Value
from duolog_server.compat.remoting.codec.nameserver import MASTER_ID
from duolog_server.node.api.replicationstatus import replication_status
from duolog_server.node.broker import Broker

LONG_MAX = (1 << 63) - 1  # the end of an epoch that is not over


class Replicas:
    """Reports the state of the slaves and the epochs of the log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def status(self, request: Command) -> Command:
        """GET_BROKER_HA_STATUS. Speeds are not measured."""
        await self._broker.log.caught_up()
        found, end = replication_status(self._broker), self._broker.store.max_offset
        slaves: list[Value] = [
            {
                "addr": row.endpoint,
                "diff": row.lag_bytes,
                "inSync": row.in_sync,
                "slaveAckOffset": row.durable_offset,
                "transferFromWhere": row.sent_offset,
            }
            for row in found.slaves
        ]
        body: dict[str, Value] = {
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(row.in_sync for row in found.slaves),
            "master": not self._broker.replication.not_master(),
            "masterCommitLogMaxOffset": end,
        }
        if self._broker.replication.not_master():
            body["haClientRuntimeInfo"] = {
                "masterAddr": found.master,
                "masterFlushOffset": found.master_offset,
                "maxOffset": end,
            }
        return request.answer(0, body=dumps(body))

    async def epochs(self, request: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE: the oldest epoch first."""
        await self._broker.log.caught_up()
        found, end = replication_status(self._broker), self._broker.store.max_offset
        begun = sorted((one.epoch, one.start) for one in found.log_epochs)
        ends = [start for _, start in begun[1:]] + [LONG_MAX]
        rows: list[Value] = [
            {"endOffset": end, "epoch": epoch, "startOffset": start}
            for (epoch, start), end in zip(begun, ends, strict=False)
        ]
        body: dict[str, Value] = {
            "brokerId": MASTER_ID + int(bool(self._broker.replication.not_master())),
            "brokerName": self._broker.group,
            "clusterName": self._broker.node.cluster,
            "epochList": rows,
            "maxOffset": end,
        }
        return request.answer(0, body=dumps(body))
