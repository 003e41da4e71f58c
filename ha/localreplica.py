"""This node's replica: who it is to others, and whose log it holds."""

from dataclasses import dataclass

from ha.epochs import EpochHistory
from ha.identity import Identity
from store.commitlog import CorruptRange
from store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class Member:
    """Who a node is to others. endpoint: HOST:PORT of its client API."""

    cluster: str
    group: str
    node: str
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """A copy of the group's log on this node: what a change of roles hands on.

    history: of the log in the store. identity: as config/replica.json has it.
    """

    store: MessageStore
    me: Member
    identity: Identity
    history: EpochHistory


def was_never_synced(store: MessageStore, damage: CorruptRange) -> bool:
    """Whether a power cut left this hole, among bytes that nobody may count on (ADR 6).

    What lies below the confirm offset of the checkpoint was on disk: a hole there is damage.
    """
    mapped = store.log.queue.find(damage.start)
    if mapped is None or damage.start < store.checkpoint.confirm_phy_offset:
        return False
    return damage.is_torn(mapped.memory, mapped.start)
