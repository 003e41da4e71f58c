"""Writes a store directory as a process of its own, so that it can be killed in the middle."""

import sys
import time
from pathlib import Path

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=262_144,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=2000,
    max_index_num=8000,
)


def main() -> None:
    """writer.py DIR UNTIL [FROM]: numbers of messages, until 0 means for ever. Prints the count."""
    store = MessageStore(OsDisk(Path(sys.argv[1])), OPTIONS)
    store.start()
    limit = int(sys.argv[2])
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    while limit == 0 or number < limit:
        count = 1 + number % 7
        texts = [
            b"KEYS\x01k%d p%d\x02TAGS\x01%s" % (n, n % 50, [b"JFK", b"LGA", b"EWR"][n % 3])
            for n in range(number, number + count)
        ]
        now = WallMs(time.time_ns() // 1_000_000)
        store.put(
            PutBatch(
                "flights",
                number % 4,
                Columns.of([b"body %d" % n * 20 for n in range(number, number + count)], texts),
                now,
                producer=b"interop---",
                sequence=number,
            ),
            now,
        )
        if number % 50 == 0:
            late = b"REAL_TOPIC\x01flights\x02REAL_QID\x010\x02DELAY\x0118\x02TAGS\x01JFK"
            store.put(PutBatch("SCHEDULE_TOPIC_XXXX", 17, Columns.of([b"late"], [late]), now), now)
            light = ("%LMQ%$flights$late", f"%LMQ%$flights${number}")  # RocketMQ passes them over
            store.put(PutBatch("flights", 1, Columns.of([b"light"]), now, light_queues=light), now)
        number += count
        while store.dispatch():
            pass
        if number % 11 == 0:
            print(number, flush=True)
    print(number, flush=True)
    store.shutdown()


if __name__ == "__main__":
    main()
