"""This node's replica: its identity towards others, and the log that it holds."""

from dataclasses import dataclass

from duolog_server.ha.epochs import EpochHistory
from duolog_server.ha.identity import Identity
from duolog_server.store.commitlog import CorruptRange
from duolog_server.store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class Member:
    """A node's identity towards others. endpoint: HOST:PORT of its client API."""

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
    """Whether a power cut left this hole, among bytes that were never guaranteed (ADR 6).

    Bytes below the confirm offset of the checkpoint were on disk: a hole there is damage.
    """
    mapped = store.log.queue.find(damage.start)
    if mapped is None or damage.start < store.checkpoint.confirm_phy_offset:
        return False
    return damage.is_torn(mapped.memory, mapped.start)


def unfit(store: MessageStore) -> str:
    """Why a node with this store may not be elected, empty where it may.

    Any damage is a reason: what is known here to be confirmed may be less than what this node
    acknowledged, and another member may hold it whole. The next master would truncate it.
    """
    if store.fence_reason or not store.flags.writeable:
        return store.fence_reason or ", ".join(store.flags.names())
    damaged = len(store.log.corrupt_ranges)
    return f"{damaged} corrupt ranges in its log" if damaged else ""
