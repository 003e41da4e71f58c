"""Producers and consumers, and the history of their operations."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from duolog_server.store.columns import Columns
from duolog_server.store.kernels import decode
from duolog_server.store.lightqueues import lite_queue
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult
from duolog_server.store.status import WEAK, PutMessageStatus
from sim.node import WALL_MS, Node
from sim.stage import Stage
from sim.witness import Violation

LIGHT_QUEUES = 3
QUEUES = (("T", 0), ("T", 1), ("U", 0))
_UNKNOWN = (PutMessageStatus.UNKNOWN_ERROR, *WEAK)


def key_of(body: bytes) -> str:
    """The key of a message: its producer and sequence."""
    return "-".join(body.decode().split("-")[:2])


@dataclass(slots=True)
class Send:
    """One send and its result: ok, weak (stored at these offsets, or lost), info (may or may not be
    stored), or fail.
    """

    key: QueueKey
    bodies: list[bytes]
    sequence: int
    outcome: str = ""
    offsets: list[tuple[QueueKey, int]] = field(default_factory=list)
    begin: float = 0.0
    end: float = -1.0


@dataclass(frozen=True, slots=True)
class Read:
    """What one poll got: bodies from an offset on, by some time."""

    key: QueueKey
    first: int
    bodies: tuple[bytes, ...]
    end: float


@dataclass(slots=True)
class History:
    """All sends, and what every queue offset was seen to hold."""

    sends: list[Send] = field(default_factory=list)
    seen: dict[tuple[QueueKey, int], bytes] = field(default_factory=dict)
    polls: int = 0
    reads: list[Read] = field(default_factory=list)

    def saw(self, key: QueueKey, offset: int, body: bytes, where: str) -> None:
        """A reader got a message: the same one as everybody before, anywhere."""
        known = self.seen.setdefault((key, offset), body)
        if known != body:
            raise Violation(
                f"{key} offset {offset} was {known[:24]!r}, and is {body[:24]!r} on {where}"
            )

    def outcomes(self) -> dict[str, int]:
        """How many sends ended how."""
        found = {"ok": 0, "weak": 0, "info": 0, "fail": 0}
        for send in self.sends:
            found[send.outcome or "info"] += 1
        return found


class Producer:
    """Sends one batch after the other; repeats a batch (same sequence) until it is answered."""

    TIMEOUT_MS = 700.0
    PATIENCE_MS = 3000.0

    def __init__(self, cluster: Stage, name: str, history: History) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.history = history
        self.chance = cluster.world.chance(f"producer:{name}")
        self.producer_id = name.encode().ljust(10, b"-")
        self.sequence = 0
        self._attempt = 0
        self._maybe = False
        self._target = ""
        self._until = 0.0
        self._send: Send | None = None
        self._idle = True
        self.queues: Sequence[QueueKey] = QUEUES
        self._known_end = (0, 0)  # confirmed before the send began: log offset, its epoch's nonce

    def begin(self) -> None:
        """Start, unless it goes on anyway."""
        if self._idle:
            self._idle = False
            self.go_on()

    def go_on(self) -> None:
        """Start the next send."""
        if self.world.now >= self.cluster.produce_until:
            self._idle = True
            return
        size = self.cluster.setup.message_bytes
        bodies = [
            b"%s-%d-" % (self.name.encode(), self.sequence + k)
            + b"." * self.chance.randint(0, size)
            for k in range(self.chance.choice((1, 1, 2, 5)))
        ]
        key = self.chance.choice(self.queues)
        self._send = Send(key, bodies, self.sequence, begin=self.world.now)
        self.history.sends.append(self._send)
        self.sequence += len(bodies)
        self._maybe = False
        told, known = self._told_end(), self._known_end
        if told[1] != known[1] or told > known:
            self._known_end = told
        self._until = self.world.now + self.PATIENCE_MS
        self._try()

    def _told_end(self) -> tuple[int, int]:
        """Up to where some node that runs says that the log is confirmed, and in which epoch."""
        node = self.cluster.keeper.target(self._target)
        return (0, 0) if node is None else node.told_end()

    def _batch(self, send: Send) -> PutBatch:
        """What the node gets; a single message is in one of a few light queues as well.

        Where there is an index, each message can be found by what its body begins with.
        """
        topic, queue_id = send.key
        keys = [f"KEYS\x01{key_of(body)}".encode() for body in send.bodies]
        light = (lite_queue(topic, str(send.sequence % LIGHT_QUEUES)),)
        return PutBatch(
            topic,
            queue_id,
            Columns.of(send.bodies, keys if self.cluster.setup.index else None),
            WALL_MS,
            producer=self.producer_id,
            sequence=send.sequence,
            light_queues=light if len(send.bodies) == 1 else (),
        )

    def _try(self) -> None:
        send = self._send
        assert send is not None, "something is being sent"
        self._attempt += 1
        attempt = self._attempt
        node = self.cluster.keeper.target(self._target)
        network = self.cluster.network
        if node is not None:
            batch = self._batch(send)
            master, known_end = node, self._known_end

            def reply(status: PutMessageStatus, result: PutResult | None) -> None:
                network.call(master.name, "client", lambda: self._answered(attempt, status, result))

            def send_it() -> None:
                master.put(batch, known_end, reply)

            network.call("client", node.name, node.guarded(send_it))
        self.world.after(self.TIMEOUT_MS, lambda: self._timed_out(attempt, node is not None))

    def _timed_out(self, attempt: int, sent: bool) -> None:
        if attempt != self._attempt:
            return
        self._maybe = self._maybe or sent
        self._again()

    def _again(self) -> None:
        self._target = self.chance.choice(self.cluster.nodes).name
        self._attempt += 1  # late answers are ignored
        if self.world.now > self._until:
            self._end("info" if self._maybe else "fail")
        else:
            self.world.after(self.chance.uniform(10, 100), self._try)

    def _answered(self, attempt: int, status: PutMessageStatus, result: PutResult | None) -> None:
        send = self._send
        if attempt != self._attempt or send is None:
            return
        if status is PutMessageStatus.PUT_OK and result is not None:
            send.offsets = _offsets(send, result)
            self._end("ok")
            return
        self._maybe = self._maybe or status in _UNKNOWN
        self._again()

    def _end(self, outcome: str) -> None:
        assert self._send is not None, "something was being sent"
        self._attempt += 1
        self._send.outcome, self._send.end = outcome, self.world.now
        self.world.note(f"{self.name} {self._send.sequence} {outcome}")
        self.world.after(self.chance.expovariate(1 / self.cluster.setup.put_gap), self.go_on)


class ClassicProducer(Producer):
    """Sends as RocketMQ's clients do: no node can tell a message that comes again, and each of the
    three statuses of what is stored and not safe is an answer. Each try is a message of its own.
    """

    def _batch(self, send: Send) -> PutBatch:
        return replace(super()._batch(send), producer=b"", sequence=0, repeat_of=None)

    def _answered(self, attempt: int, status: PutMessageStatus, result: PutResult | None) -> None:
        send = self._send
        if attempt == self._attempt and send is not None and status in WEAK and result is not None:
            send.offsets = _offsets(send, result)
            self._end("weak")
        else:
            super()._answered(attempt, status, result)

    def _again(self) -> None:
        self._target = self.chance.choice(self.cluster.nodes).name
        self._end("info" if self._maybe else "fail")


def _offsets(send: Send, result: PutResult) -> list[tuple[QueueKey, int]]:
    """Where each body of a send is, by the answer."""
    found: list[tuple[QueueKey, int]] = []
    for run in result.duplicates:
        found += [
            ((run.topic, run.queue_id), run.queue_offset + k) for k in range(run.end - run.first)
        ]
    found += [(send.key, result.queue_offset + k) for k in range(result.count)]
    return found


class Consumer:
    """Reads all queues in turn, from any node that answers, each from where it stands."""

    GAP_MS = 90.0

    def __init__(self, cluster: Stage, name: str, history: History) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.history = history
        self.chance = cluster.world.chance(f"consumer:{name}")
        self.offsets: dict[QueueKey, int] = dict.fromkeys(QUEUES, 0)
        self._idle = True

    def begin(self) -> None:
        """Start, unless it goes on anyway."""
        if self._idle:
            self._idle = False
            self._poll()

    def _poll(self) -> None:
        """One poll, and the next one later."""
        if self.world.now >= self.cluster.produce_until:
            self._idle = True
            return
        key = self.chance.choice(QUEUES)
        node = self.chance.choice(self.cluster.nodes)
        network = self.cluster.network
        network.call("client", node.name, node.guarded(lambda: self._ask(node, key)))
        self.world.after(self.GAP_MS * self.chance.uniform(0.5, 1.5), self._poll)

    def _ask(self, node: Node, key: QueueKey) -> None:
        asked = self.offsets[key]
        result = node.read(*key, asked)
        if node.may_be_behind():
            result = result.where_behind(QueueOffset(asked))
        self.history.polls += 1
        check_visible(node, result)
        if _passes_over(node, asked, result):
            return  # what its log lacks; whoever reads on elsewhere gets it
        self.cluster.network.call(
            node.name, "client", lambda: self._got(node.name, key, asked, result)
        )

    def _got(self, where: str, key: QueueKey, asked: int, result: GetResult) -> None:
        if asked != self.offsets[key]:
            return
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
            master = self.cluster.keeper.master
            if master is None or where != master.name:
                return  # a master that was replaced and does not know it yet
            raise Violation(f"{where} says that {key} ends before {asked}, which was read before")
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
            self.offsets[key] = result.next_offset  # the rest has expired
        if not result.count:
            return
        found = messages(result)
        bodies = tuple(body for _, body in found)
        self.history.reads.append(Read(key, found[0][0], bodies, self.world.now))
        for offset, body in found:
            if offset != self.offsets[key]:
                raise Violation(
                    f"{where}: poll of {key} skips from {self.offsets[key]} to {offset}"
                )
            self.history.saw(key, offset, body, where)
            self.offsets[key] = offset + 1


def _passes_over(node: Node, asked: int, result: GetResult) -> bool:
    """A node that knows of damage in its log skips messages of it: first ones, or in between."""
    found = [offset for offset, _ in messages(result)] if result.count else []
    return found != list(range(asked, asked + len(found))) and bool(node.store.log.corrupt_ranges)


def messages(result: GetResult) -> list[tuple[int, bytes]]:
    """Queue offsets and bodies of a read."""
    ends = [0, *result.table[decode.OUT_BODY_END].tolist()]
    offsets = result.table[decode.OUT_QUEUE_OFFSET].tolist()
    return [(offset, result.bodies[ends[k] : ends[k + 1]]) for k, offset in enumerate(offsets)]


def check_visible(node: Node, result: GetResult) -> None:
    """I7: nothing at or above the confirm offset is ever read."""
    if result.count:
        newest = int(result.table[decode.OUT_PHY].max())
        if newest >= node.store.confirm_offset:
            raise Violation(
                f"{node.name} shows a record at {newest}, confirmed is {node.store.confirm_offset}"
            )


def read_all(node: Node, key: QueueKey, offset: int = 0) -> list[tuple[int, bytes]]:
    """A queue from an offset on, its beginning where none is given; also what has expired of it."""
    gone = node.ghost.expired(node, *key, offset)
    found: list[tuple[int, bytes]] = [(record.queue_offset, record.body) for record in gone]
    offset = found[-1][0] + 1 if found else offset
    while True:
        result = node.read(*key, offset)
        check_visible(node, result)
        found += messages(result)
        if result.next_offset <= offset and not result.count:
            return found
        if result.status is not GetMessageStatus.FOUND:
            return found
        offset = result.next_offset
