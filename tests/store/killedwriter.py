"""A program that a write into its commit log kills.

`python -m tests.store.killedwriter DIRECTORY HOW` fills a store, and cuts the segment's file before
it writes more: the first byte behind the file's end is a SIGBUS.
"""

import os
import random
import sys
from pathlib import Path

from sim.disk import SimDisk
from store.messagestore import MessageStore
from store.osdisk import OsDisk
from store.status import BrokerRole
from tests.support import NOW, options, put_ok

SEGMENT = 64 << 10
KEPT = 16 << 10  # bytes of the file, which are mapped still
BODIES = [b"%06d" % n + b"." * 300 for n in range(100)]
BEFORE = 3  # of them are stored before
APPEND, COMMIT = "append", "commit"
CHOSEN = {
    APPEND: options(mapped_file_size_commit_log=SEGMENT, broker_role=BrokerRole.SLAVE),
    COMMIT: options(
        mapped_file_size_commit_log=SEGMENT,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
    ),
}


def segment(directory: Path) -> Path:
    """The file that is cut."""
    return directory / "commitlog" / "00000000000000000000"


def append(store: MessageStore, cut: Path) -> None:
    """What a master sends, in one piece."""
    master = MessageStore(
        SimDisk(random.Random(1), lambda: 0.0), options(mapped_file_size_commit_log=SEGMENT)
    )
    master.start()
    ends = [put_ok(master, [body], now=NOW).end_offset for body in BODIES]
    data = master.log.get_data(0)
    first = ends[BEFORE - 1]
    store.append_replica(master.log.min_offset, data[:first], NOW)
    os.truncate(cut, KEPT)
    store.append_replica(store.log.max_offset, data[first:], NOW)


def commit(store: MessageStore, cut: Path) -> None:
    """What waits in a buffer of the pool."""
    for body in BODIES[:BEFORE]:
        put_ok(store, [body], now=NOW)
    store.log.commit()
    for body in BODIES[BEFORE:]:
        put_ok(store, [body], now=NOW)
    os.truncate(cut, KEPT)
    store.log.commit()


if __name__ == "__main__":
    directory, how = Path(sys.argv[1]), sys.argv[2]
    opened = MessageStore(OsDisk(directory), CHOSEN[how])
    opened.start()
    {APPEND: append, COMMIT: commit}[how](opened, segment(directory))
