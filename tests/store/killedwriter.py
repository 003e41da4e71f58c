"""A program that a write into its commit log kills.

`python -m tests.store.killedwriter DIRECTORY HOW` fills a store, and takes the right to write to a
page in the middle of the segment before it goes on: the first byte there is a SIGSEGV.
"""

import ctypes
import mmap
import random
import sys
from pathlib import Path

from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.status import BrokerRole
from sim.disk import SimDisk
from tests.support import NOW, options, put_ok

PAGE_AT = 16 << 10  # in the segment
BODIES = [b"%06d" % n + b"." * 300 for n in range(100)]
BEFORE = 3  # of them are stored before
APPEND, COMMIT, TRUNCATE = "append", "commit", "truncate"
CHOSEN = {
    APPEND: options(mapped_file_size_commit_log=64 << 10, broker_role=BrokerRole.SLAVE),
    COMMIT: options(
        mapped_file_size_commit_log=64 << 10,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
    ),
    TRUNCATE: options(mapped_file_size_commit_log=64 << 10),
}


def kill_soon(store: MessageStore) -> None:
    """Who writes to the page is killed."""
    address = store.log.queue.files[-1].memory.ctypes.data + PAGE_AT
    system = ctypes.CDLL(None, use_errno=True)
    done = system.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ)
    assert done == 0, ctypes.get_errno()


def fill(store: MessageStore, bodies: list[bytes]) -> list[int]:
    """Put messages; where each ends."""
    return [put_ok(store, [body], now=NOW).end_offset for body in bodies]


def append(store: MessageStore) -> None:
    """What a master sends, in one piece."""
    master = MessageStore(SimDisk(random.Random(1), lambda: 0.0), CHOSEN[TRUNCATE])
    master.start()
    first = fill(master, BODIES)[BEFORE - 1]
    data = master.log.get_data(0)
    store.append_replica(PhyOffset(0), data[:first], NOW)
    kill_soon(store)
    store.append_replica(PhyOffset(first), data[first:], NOW)


def commit(store: MessageStore) -> None:
    """What waits in a buffer of the pool."""
    fill(store, BODIES[:BEFORE])
    store.log.commit()
    fill(store, BODIES[BEFORE:])
    kill_soon(store)
    store.log.commit()


def truncate(store: MessageStore) -> None:
    """What another master's log has not."""
    end = fill(store, BODIES)[BEFORE - 1]
    kill_soon(store)
    store.truncate(PhyOffset(end))


if __name__ == "__main__":
    opened = MessageStore(OsDisk(Path(sys.argv[1])), CHOSEN[sys.argv[2]])
    opened.start()
    {APPEND: append, COMMIT: commit, TRUNCATE: truncate}[sys.argv[2]](opened)
