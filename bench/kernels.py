"""What each step of a put and its dispatch takes for a message of a batch, in memory: see
docs/adr/026.

Best of several runs, as others share the machine; beside a copy of the same records.
"""

import time
from collections.abc import Callable

import numpy as np
from duolog._columns import crc32
from duolog.wire import duolog_pb2 as wire

from bench.harness import Figure
from duolog_server.node.service.requests import is_whole, send_of
from duolog_server.store.commitlog import topic_field, uniq_key_field
from duolog_server.store.kernels import encode, index, queue, scan
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.record import LOCAL_HOST, RecordHeader

RUNS = 50
SLOTS, ENTRIES = 500_000, 2_000_000  # a tenth of an index file's
HEAD = RecordHeader("bench", 0, 1, 1)
PRODUCER = b"bench-----"
Limits = dict[str, float]  # the most that a step may take, in copies of the records
SHORT: Limits = {
    "receive": 3,
    "encode": 8,
    "encode and seal": 12,
    "scan and verify": 9,
    "scan": 6,
    "group by queue": 3,
    "queue entries": 2,
    "index": 8,
}
LONG: Limits = {"receive": 2, "encode": 2, "encode and seal": 4, "scan": 0.1}


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def _works(count: int, body_bytes: int) -> dict[str, Callable[[], object]]:
    """The steps by name, and a copy of their records, for messages of a length."""
    header = np.frombuffer(HEAD.packed(), np.uint8)
    topic = topic_field(HEAD.topic, HEAD.topic_length_bytes())
    producer = uniq_key_field(PRODUCER)
    bodies = np.full(count * body_bytes, ord("x"), np.uint8)
    body_offsets = np.arange(count + 1, dtype=np.uint32) * body_bytes
    texts: U8 = np.empty(0, np.uint8)
    text_offsets = np.zeros(count + 1, np.uint32)
    log: U8 = np.zeros(count * (body_bytes + 200), np.uint8)
    rows: I64 = np.empty((scan.COLUMNS, 2 * count + 184), np.int64)
    order, starts = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    entries: U8 = np.zeros(count * queue.ENTRY_BYTES, np.uint8)
    slots_bytes = index.HEADER_BYTES + SLOTS * index.SLOT_BYTES
    keys: U8 = np.zeros(slots_bytes + ENTRIES * index.ENTRY_BYTES, np.uint8)
    result: I64 = np.zeros(2, np.int64)
    request = wire.AppendRequest(
        topic=HEAD.topic, producer_id=PRODUCER, body_offsets=body_offsets.tobytes()
    )
    request.crc32 = crc32(bodies.data, request.body_offsets)
    sent = request.SerializeToString()  # the bodies are beside it in a frame

    def receive() -> None:
        got = wire.AppendRequest.FromString(sent)
        assert is_whole(got, bodies.data)
        send_of(got, LOCAL_HOST, bodies.data, None).batch.columns.check(body_bytes)

    def encoded(sealed: bool) -> int:
        return int(
            encode.encode(
                log, 0, len(log), 0, header, topic, bodies, body_offsets, texts, text_offsets,
                0, 0, producer, 0, sealed, encode.NO_FIELDS, result,
            )
        )  # fmt: skip

    end = encoded(True)  # as by default
    copy: U8 = np.empty(end, np.uint8)

    def scanned(verify: bool) -> int:
        return int(scan.scan(log, 0, end, 0, verify, EMPTY_I64, rows, result))

    def put_entries() -> None:
        queue.put_entries(entries, 0, 0, rows, order, 0, count, np.full(3, -1, np.int64))

    def put_keys() -> None:
        keys[: index.HEADER_BYTES] = 0
        index.put_keys(keys, SLOTS, ENTRIES, log, rows, count, np.zeros(2, np.int64))

    return {
        "copy": lambda: np.copyto(copy, log[:end]),
        "receive": receive,
        "encode": lambda: encoded(False),
        "encode and seal": lambda: encoded(True),
        "scan and verify": lambda: scanned(True),
        "scan": lambda: scanned(False),
        "group by queue": lambda: scan.group_rows(log, rows, count, order, starts),
        "queue entries": put_entries,
        "index": put_keys,
    }


async def kernels() -> list[Figure]:
    """Each step, for short messages and for long ones."""
    return [*_figures(4000, 100, "100 B", SHORT), *_figures(64, 64 << 10, "64 KiB", LONG)]


def _figures(count: int, body_bytes: int, size: str, limits: Limits) -> list[Figure]:
    works = _works(count, body_bytes)
    copy = _seconds(works["copy"])
    figures = []
    for name, copies_max in limits.items():
        found = _seconds(works[name])
        ns = found / count * 1e9
        figures.append(
            Figure(
                f"{name}, {size} in batches",
                f"<= {copies_max} x a copy",
                f"{ns:.1f} ns, {found / copy:.1f} x",
                f"copy of a record {copy / count * 1e9:.1f} ns",
                found <= copies_max * copy,
                {"ns": ns, "ratio": found / copy},
            )
        )
    return figures
