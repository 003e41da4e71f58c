"""What messages survive that a master acknowledges, in the words of `node.durability`."""

from duolog import NodeStatus

from duolog_server.ha.guarantee import DURABLE, OPTIONS, SYNC, BadGuarantee, Guarantee
from duolog_server.ha.options import AckMode
from duolog_server.node.runtime.durability import LOST_WITH_THE_PROCESS
from duolog_server.store.status import BrokerRole

REPLICAS, FLUSH, ACK = OPTIONS.values()
POOL = "store.transient_store_pool_enable"


def durability(node: NodeStatus) -> str:
    """Its settings' and its group's word, the stronger; empty for slaves and where not known."""
    settings = node.settings
    if not node.is_master or not {REPLICAS, FLUSH, ACK} <= settings.keys():
        return ""
    alone = node.role == BrokerRole.ASYNC_MASTER.value
    sync, ack = settings[FLUSH] == SYNC, settings[ACK]
    try:
        own = Guarantee(
            1 if alone else int(settings[REPLICAS]),
            sync,
            ack == DURABLE or (ack == AckMode.AUTO.value and sync),
        )
        promised = Guarantee()
        for name, value in node.replication.guarantee.items():
            promised = promised.altered(name, value)
    except (BadGuarantee, ValueError):  # of a newer version
        return ""
    word = own.joined(promised).durability
    pooled = alone and settings.get(POOL) == str(True)
    return LOST_WITH_THE_PROCESS if pooled and word == "process" else word
