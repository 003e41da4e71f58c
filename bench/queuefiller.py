"""A store of very many queues, as a kill leaves it: python -m bench.queuefiller DATA HEAVY LIGHT.

A process of its own, as it ends without closing anything, and without a last sync. Each queue has
one message; a message of a light queue is in a queue of the LITE topic, too. Queues of both kinds
begin in turn.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from duolog._machine import boot_id

from duolog_server.node.core.metadatalog import QUEUE
from duolog_server.node.runtime.clocks import mono_ms, wall_ms
from duolog_server.node.runtime.openfiles import raise_limit
from duolog_server.store.columns import Columns
from duolog_server.store.flush import FlushSchedule, QueuesFlush
from duolog_server.store.lightqueues import lite_queue
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.metadata import LITE, SYSTEM_TOPIC, Metadata, TopicConfig, changes_of
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.queueflushes import at_once
from duolog_server.store.status import PutMessageStatus

QUEUES_EACH = 4
LITE_TOPIC = "lite"
DISPATCHED_AT_ONCE = 1000
USED_RATIO_MAX = 0.85  # of the disk; past it, a node would delete segments
PRODUCER = b"bench-----"
BODY = b"." * 100
DEFAULTS = StoreOptions()
ROOT = Path(__file__).parent.parent


class NoRoom(Exception):
    """The disk has no room for so many queues."""


def check_room(disk: OsDisk) -> None:
    """Raise NoRoom on a disk that is nearly full."""
    used = disk.used_ratio()
    if used > USED_RATIO_MAX:
        raise NoRoom(
            f"{used:.0%} of the disk at {disk.root} are used: measure with a lower --scale"
        )


def heavy_topic(number: int) -> str:
    """A topic of QUEUES_EACH queues."""
    return f"heavy-{number:05d}"


def _places(heavy: int, light: int) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Topic, queue id and light queues of one message for every queue."""
    made = 0
    for number in range(heavy + light):
        if (number + 1) * heavy // (heavy + light) > made:
            yield heavy_topic(made // QUEUES_EACH), made % QUEUES_EACH, ()
            made += 1
        else:
            name = lite_queue(LITE_TOPIC, f"{number - made:06d}")
            yield LITE_TOPIC, number % QUEUES_EACH, (name,)


def _put(store: MessageStore, batch: PutBatch) -> None:
    result = store.put(batch, wall_ms())
    if result.status is not PutMessageStatus.PUT_OK:
        raise RuntimeError(f"{batch.topic} {batch.queue_id}: {result.status.name} {result.reason}")


def _dispatch(store: MessageStore, schedule: FlushSchedule) -> None:
    """Dispatch all, and flush queues as often as a node does."""
    while True:
        while store.dispatch():
            pass
        pages = schedule.queues.due(mono_ms())
        if pages is not None:
            work = QueuesFlush(store, pages)
            at_once(work.gather())
            work.sync()
            if work.settle():
                store.checkpoint.flush()
        if not store.dispatcher.behind_bytes() or not store.flags.writeable:
            break
        time.sleep(0.01)  # as many files wait for a sync as may be open
    if not store.flags.writeable:
        raise RuntimeError(f"the queues cannot be made: {', '.join(store.flags.names())}")


def fill(data: Path, heavy: int, light: int, options: StoreOptions = DEFAULTS) -> MessageStore:
    """A store with so many queues of topics and so many light ones, open and not flushed.

    Raises NoRoom, RuntimeError, or what `MessageStore.start` does.
    """
    disk = OsDisk(data)
    options = replace(options, max_lmq_consume_queue_num=light)
    store = MessageStore(disk, options, boot_id=boot_id())
    store.events.problem = lambda text: print(text, file=sys.stderr)
    store.start()
    schedule = FlushSchedule.of(options)
    names = [heavy_topic(number) for number in range(-(-heavy // QUEUES_EACH))]
    tables = Metadata(topics={name: TopicConfig(name, QUEUES_EACH) for name in names})
    tables.topics[LITE_TOPIC] = TopicConfig(LITE_TOPIC, QUEUES_EACH, message_type=LITE)
    rows = changes_of(tables)
    rows[0] = {**rows[0], "complete": True}  # the log has all of the tables
    for at in range(0, len(rows), DISPATCHED_AT_ONCE):
        changes = [json.dumps(row).encode() for row in rows[at : at + DISPATCHED_AT_ONCE]]
        _put(store, PutBatch(SYSTEM_TOPIC, QUEUE, Columns.of(changes), wall_ms()))
    columns = Columns.of([BODY])
    for number, (topic, queue_id, names_of_light) in enumerate(_places(heavy, light)):
        _put(
            store,
            PutBatch(
                topic,
                queue_id,
                columns,
                wall_ms(),
                producer=PRODUCER,
                sequence=number,
                light_queues=names_of_light,
            ),
        )
        if number % DISPATCHED_AT_ONCE == 0:
            check_room(disk)
            _dispatch(store, schedule)
    _dispatch(store, schedule)
    return store


def fill_in_child(data: Path, heavy: int, light: int) -> None:
    """The directory, made by a process that ended as a killed one. Raises CalledProcessError."""
    command = [sys.executable, "-m", "bench.queuefiller", str(data), str(heavy), str(light)]
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    raise_limit()
    fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
