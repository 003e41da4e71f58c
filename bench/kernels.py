"""What each kernel takes for a message of a batch, in memory: see docs/adr/026.

Best of several runs, as others share the machine; beside a copy of the same records.
"""

import time
from collections.abc import Callable

import numpy as np

from bench.harness import Figure
from duolog_server.store.commitlog import topic_field, uniq_key_field
from duolog_server.store.kernels import encode, index, queue, scan
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.record import RecordHeader

MESSAGES, BODY_BYTES, RUNS = 4000, 100, 50
SLOTS, ENTRIES = 500_000, 2_000_000  # a tenth of an index file's
# The most that a kernel may take, in copies of the records.
COPIES_MAX = {
    "encode": 8,
    "encode and seal": 12,
    "scan and verify": 9,
    "scan": 6,
    "group by queue": 3,
    "queue entries": 2,
    "index": 8,
}


def _nanoseconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best / MESSAGES * 1e9


async def kernels() -> list[Figure]:
    """Each kernel of a put and its dispatch."""
    first = RecordHeader("bench", 0, 1, 1)
    header = np.frombuffer(first.packed(), np.uint8)
    topic = topic_field(first.topic, first.topic_length_bytes())
    producer = uniq_key_field(b"bench-----")
    bodies = np.full(MESSAGES * BODY_BYTES, ord("x"), np.uint8)
    body_offsets = np.arange(MESSAGES + 1, dtype=np.uint32) * BODY_BYTES
    texts: U8 = np.empty(0, np.uint8)
    text_offsets = np.zeros(MESSAGES + 1, np.uint32)
    log: U8 = np.zeros(MESSAGES * (BODY_BYTES + 200), np.uint8)
    rows: I64 = np.empty((scan.COLUMNS, 2 * MESSAGES + 184), np.int64)
    order, starts = np.empty(MESSAGES, np.int64), np.empty(MESSAGES + 1, np.int64)
    entries: U8 = np.zeros(MESSAGES * queue.ENTRY_BYTES, np.uint8)
    slots_bytes = index.HEADER_BYTES + SLOTS * index.SLOT_BYTES
    keys: U8 = np.zeros(slots_bytes + ENTRIES * index.ENTRY_BYTES, np.uint8)
    result: I64 = np.zeros(2, np.int64)

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
        queue.put_entries(entries, 0, 0, rows, order, 0, MESSAGES, np.full(3, -1, np.int64))

    def put_keys() -> None:
        keys[: index.HEADER_BYTES] = 0
        index.put_keys(keys, SLOTS, ENTRIES, log, rows, MESSAGES, np.zeros(2, np.int64))

    works: dict[str, Callable[[], object]] = {
        "encode": lambda: encoded(False),
        "encode and seal": lambda: encoded(True),
        "scan and verify": lambda: scanned(True),
        "scan": lambda: scanned(False),
        "group by queue": lambda: scan.group_rows(log, rows, MESSAGES, order, starts),
        "queue entries": put_entries,
        "index": put_keys,
    }
    limit = _nanoseconds(lambda: np.copyto(copy, log[:end]))
    figures = []
    for name, work in works.items():
        found = _nanoseconds(work)
        figures.append(
            Figure(
                f"{name}, 100 B in batches",
                f"<= {COPIES_MAX[name]} x a copy",
                f"{found:.1f} ns, {found / limit:.1f} x",
                f"copy of {end // MESSAGES} B {limit:.1f} ns",
                found <= COPIES_MAX[name] * limit,
                {"ns": found, "ratio": found / limit},
            )
        )
    return figures
