"""What must be true in the end: of the logs, and of the history of what users were told."""

from sim.clients import QUEUES, History, QueueKey, read_all
from sim.ghost import Violation
from sim.node import Node

WORTH_OK = 0.1  # a run in which fewer sends succeeded says little


def final(nodes: list[Node], master: Node, history: History) -> None:
    """All checks, after the cluster has healed. Raises Violation."""
    equal_logs(nodes, master)
    queues = {key: read_all(master, key) for key in QUEUES}
    for node in nodes:
        for key in QUEUES:
            if read_all(node, key) != queues[key]:
                raise Violation(f"{node.name} serves another {key} than {master.name}")
    dense(queues)
    nothing_changed(queues, history)
    nothing_lost(queues, history)
    nothing_doubled(queues)
    nothing_refused_appears(queues, history)


def equal_logs(nodes: list[Node], master: Node) -> None:
    """Replicas are equal byte for byte."""
    low, high = master.store.log.min_offset, master.store.log.max_offset
    wanted = master.log_bytes(low, high)
    master.world.note(f"log {high} {hash_of(wanted)}")
    for node in nodes:
        if node.log_bytes(low, high) != wanted or node.store.log.max_offset != high:
            raise Violation(f"the log of {node.name} is not that of {master.name}")
        if node.store.dispatcher.refused or node.store.log.corrupt_ranges:
            raise Violation(f"{node.name} could not read its log: {node.problems[-1:]}")


def hash_of(data: bytes) -> str:
    """A short digest for the trace."""
    import hashlib

    return hashlib.blake2b(data, digest_size=8).hexdigest()


def dense(queues: dict[QueueKey, list[tuple[int, bytes]]]) -> None:
    """Queue offsets are 0, 1, 2, ..."""
    for key, found in queues.items():
        offsets = [offset for offset, _ in found]
        if offsets != list(range(len(offsets))):
            raise Violation(f"{key} has gaps: {offsets[:50]}")


def nothing_changed(queues: dict[QueueKey, list[tuple[int, bytes]]], history: History) -> None:
    """Whatever any reader saw at any time is still what stands there (no aborted read)."""
    for (key, offset), body in history.seen.items():
        if offset >= len(queues[key]) or queues[key][offset][1] != body:
            raise Violation(f"{key} offset {offset} was read as {body[:24]!r}, and is gone")


def nothing_lost(queues: dict[QueueKey, list[tuple[int, bytes]]], history: History) -> None:
    """Every acknowledged message is where its receipt says."""
    for send in history.sends:
        if send.outcome != "ok":
            continue
        for body, (key, offset) in zip(send.bodies, send.offsets, strict=True):
            if offset >= len(queues[key]) or queues[key][offset][1] != body:
                raise Violation(f"acknowledged {body[:24]!r} is not at {key} offset {offset}")


def nothing_doubled(queues: dict[QueueKey, list[tuple[int, bytes]]]) -> None:
    """A producer's sequence is stored once, however often it was sent."""
    seen: set[bytes] = set()
    for found in queues.values():
        for _, body in found:
            if body in seen:
                raise Violation(f"{body[:24]!r} is stored twice")
            seen.add(body)


def nothing_refused_appears(
    queues: dict[QueueKey, list[tuple[int, bytes]]], history: History
) -> None:
    """What a user was told to have failed is nowhere (G1a)."""
    failed = {body for send in history.sends if send.outcome == "fail" for body in send.bodies}
    for found in queues.values():
        for _, body in found:
            if body in failed:
                raise Violation(f"{body[:24]!r} was refused, and is stored")
