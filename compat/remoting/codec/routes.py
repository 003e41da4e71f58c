"""Routes as JSON, in the two dialects that clients read.

Older clients of Java were written against a library that leaves numbers unquoted as keys; newer
ones, and those of other languages, ask for standard JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

STANDARD_JSON_VERSION = 401  # V4_9_4: clients from it on read standard JSON
MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """A replica group. addresses: HOST:PORT by broker id; the master's is 0."""

    cluster: str
    name: str
    addresses: Mapping[int, str]

    def to_json(self, standard: bool) -> str:
        """Encode as BrokerData."""
        quote = '"' if standard else ""
        addresses = ",".join(
            f"{quote}{number}{quote}:{json.dumps(address)}"
            for number, address in sorted(self.addresses.items())
        )
        return (
            f'{{"brokerAddrs":{{{addresses}}},"brokerName":{json.dumps(self.name)},'
            f'"cluster":{json.dumps(self.cluster)}}}'
        )


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """How many queues of a topic a replica group has, and what may be done with them."""

    broker_name: str
    queues: int
    perm: int
    sysflag: int = 0


def topic_route(queues: TopicQueues, broker: BrokerAddresses, standard: bool) -> bytes:
    """TopicRouteData."""
    row = {
        "brokerName": queues.broker_name,
        "perm": queues.perm,
        "readQueueNums": queues.queues,
        "topicSynFlag": queues.sysflag,
        "topicSysFlag": queues.sysflag,
        "writeQueueNums": queues.queues,
    }
    text = (
        f'{{"brokerDatas":[{broker.to_json(standard)}],"filterServerTable":{{}},'
        f'"queueDatas":[{json.dumps(row, separators=(",", ":"))}]}}'
    )
    return text.encode()


def cluster_info(broker: BrokerAddresses) -> bytes:
    """ClusterInfo, which has numbers as keys for every client."""
    clusters = json.dumps({broker.cluster: [broker.name]}, separators=(",", ":"))
    text = (
        f'{{"brokerAddrTable":{{{json.dumps(broker.name)}:{broker.to_json(standard=False)}}},'
        f'"clusterAddrTable":{clusters}}}'
    )
    return text.encode()
