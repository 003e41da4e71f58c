"""Final checks of the logs and of the history of clients."""

from duolog_server.linearizable import Append, Read, log
from duolog_server.store.kernels import decode
from duolog_server.store.lightqueues import light_places
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.record import decode_properties
from sim.clients import QUEUES, History, key_of, read_all
from sim.node import Node
from sim.witness import Violation

WORTH_OK = 0.1  # a run with fewer successful sends proves little


def final(nodes: list[Node], master: Node, history: History) -> None:
    """All checks, after the cluster has healed. Raises Violation."""
    equal_logs(nodes, master)
    queues = {key: read_all(master, key) for key in QUEUES}
    for node in nodes:
        for key in QUEUES:
            if read_all(node, key) != queues[key]:
                raise Violation(f"{node.name} serves another {key} than {master.name}")
    light_queues_follow(nodes, master)
    times_go_on(master)
    dense(queues)
    linearizable(queues, history)
    if master.setup.index:
        found_by_key(nodes, history)


def found_by_key(nodes: list[Node], history: History) -> None:
    """Every acknowledged message is found by its key, on every node, once."""
    gone = {
        node.name: {r.body for k in QUEUES for r in node.ghost.expired(node, *k)} for node in nodes
    }
    for send in history.sends:
        for body in send.bodies if send.outcome == "ok" else ():
            for node in (node for node in nodes if body not in gone[node.name]):
                found = node.store.lookups.by_key(send.key[0], key_of(body))
                if [record.body for record in found] != [body]:
                    raise Violation(
                        f"{node.name} finds {len(found)} messages by the key of {body[:24]!r}"
                    )


def equal_logs(nodes: list[Node], master: Node) -> None:
    """Replicas are equal byte for byte."""
    low, high = max(node.store.log.min_offset for node in nodes), master.store.log.max_offset
    wanted = master.log_bytes(low, high)
    master.world.note(f"log {high} {hash_of(wanted)}")
    for node in nodes:
        if node.log_bytes(low, high) != wanted or node.store.log.max_offset != high:
            raise Violation(f"the log of {node.name} is not that of {master.name}")
        if node.store.dispatcher.refused or node.store.log.corrupt_ranges:
            raise Violation(f"{node.name} could not read its log: {node.problems[-1:]}")


def light_queues_follow(nodes: list[Node], master: Node) -> None:
    """Light queues hold what the log says since each of them began last, on every node.

    What came before one was forgotten may be missing: the node may have begun it again since, by a
    record that was cut. A node that lost a segment may keep it, as it cannot tell messages that
    were forgotten from those that it lost: it leaves blank entries for them, and drops none.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    low = max(node.store.log.min_offset for node in nodes)
    for key in QUEUES:
        at, (_, end) = 0, master.store.queue_range(*key)
        while at < end:
            result = master.read(*key, at)
            for numbers, _, text in result.rows():
                for name, _, offset in light_places(decode_properties(text.decode())):
                    places.setdefault(name, []).append((numbers[1], offset))
            if result.next_offset <= at:
                break
            at = result.next_offset
    for name, everything in places.items():
        found = sorted(place for place in everything if place[0] >= low)
        if not found:
            continue  # all of them have expired
        gaps = [k for k in range(1, len(found)) if found[k][1] != found[k - 1][1] + 1]
        begin = gaps[-1] if gaps else 0
        ends = master.ghost.light_ends.get(name, ())
        if not all(found[k - 1][1] + 1 in ends for k in gaps):
            raise Violation(f"light queue {name} begins again though nobody forgot it")
        for node in nodes:
            queue = node.store.queues.get(name, 0)
            first = queue.min_offset if queue is not None else 0
            table = queue.entries(first, 1 << 20)[0].tolist() if queue is not None else []
            wanted = found[begin:]
            end = QueueOffset(wanted[-1][1] + 1)
            if any((first if table else end) <= forgotten <= end for forgotten in ends):
                wanted = [place for place in wanted if table and place[1] >= first]
            held = [(phy, first + k) for k, phy in enumerate(table) if phy >= low]
            if node.lost_segments:
                older = {*found, *((0, offset) for _, offset in held)} - {*wanted}
                held = [place for place in held if place not in older]
            if held != wanted:
                raise Violation(f"light queue {name} of {node.name} is not what the log says")


def times_go_on(master: Node) -> None:
    """Store times never go back, whatever the masters' clocks did: checkpoints rely on it."""
    times: dict[int, int] = {}
    for key in QUEUES:
        at, (_, end) = 0, master.store.queue_range(*key)
        while at < end:
            result = master.read(*key, at)
            for numbers, _, _ in result.rows():
                times[numbers[decode.OUT_PHY]] = numbers[decode.OUT_STORE_TIME]
            if result.next_offset <= at:
                break
            at = result.next_offset
    in_order = [times[offset] for offset in sorted(times)]
    if in_order != sorted(in_order):
        raise Violation("store times go back in the log")


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


def linearizable(queues: dict[QueueKey, list[tuple[int, bytes]]], history: History) -> None:
    """One order explains all sends and reads: nothing acknowledged is lost, or in another place;
    nothing read is gone; nothing is stored twice, or was refused (G1a).

    What was answered as stored and not safe is where its receipt says, or nowhere. A batch is one
    append for each message: a crash may keep the beginning of one that was not
    answered.
    """
    appends: dict[QueueKey, list[Append]] = {key: [] for key in queues}
    reads: dict[QueueKey, list[Read]] = {key: [] for key in queues}
    for send in history.sends:
        if send.outcome == "ok":
            for body, (key, offset) in zip(send.bodies, send.offsets, strict=True):
                appends[key].append(Append(body, send.begin, send.end, offset))
        elif send.outcome == "weak":
            for body, (key, offset) in zip(send.bodies, send.offsets, strict=True):
                appends[key].append(Append(body, send.begin, offset=offset))
        elif send.outcome != "fail":
            appends[send.key] += [Append(body, send.begin) for body in send.bodies]
    for read in history.reads:
        reads[read.key].append(Read(read.first, read.bodies, read.end))
    for key, found in queues.items():
        if why := log(appends[key], reads[key], [body for _, body in found]):
            raise Violation(f"{key}: {why}")
