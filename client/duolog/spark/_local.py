"""Reads past the nodes: a task on a node's machine reads the files of the node's store itself.

As far as the node itself knows its log to be confirmed, that never changes, and the files have it.
What cannot be read there is asked of the nodes, which know why.
"""

import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from duolog import sync
from duolog._background import all_of
from duolog._client import Client
from duolog._descriptions import LocalStore, NodeStatus
from duolog._errors import NoPermission
from duolog._machine import place_of
from duolog.spark._columns import Columns
from duolog.spark._plan import Queue

OPENERS = "duolog.stores"  # entry points of packages that can read a store: open_queue(path, ...)
MESSAGES_MIN = 20_000  # fewer are there sooner by asking
FRESH_SECONDS = 30.0


class QueueFiles(Protocol):
    """A queue, read from files."""

    def batches(self, start: int, end: int) -> Iterator[Columns]:
        """The queue's messages in [start, end), in order, as far as the files can be read."""
        ...


Opener = Callable[[str, str, int, int], QueueFiles]  # store, topic, queue id, confirm offset
_known: dict[tuple[str, str], tuple[float, list[str]]] = {}  # endpoints of nodes on this machine


def local_queue(client: sync.Client, endpoints: str, queue: Queue) -> QueueFiles | None:
    """The files of a queue on this machine, None if there are none that can be read."""
    opener = _opener()
    if opener is None:
        return None
    for endpoint in _neighbours(client, endpoints, queue.group):
        # Requested again: a master of the past has unconfirmed records, which others replaced.
        status = client.run(partial(_status, endpoint))
        if status is not None and is_here(status.store):
            place = queue.topic, queue.queue_id
            try:
                return opener(status.store.path, *place, status.confirm_offset)
            except OSError:
                continue  # another user's, or on its way out
    return None


async def _status(endpoint: str, client: Client) -> NodeStatus | None:
    try:
        return await client.status_of(endpoint)
    except NoPermission:  # to ask that; who may read the topic continues without it
        return None


def is_here(store: LocalStore) -> bool:
    """Tell whether a node's store lies on this machine, under the same path."""
    return store.boot_id != "" and place_of(store.path) == store


def _neighbours(client: sync.Client, endpoints: str, group: str) -> list[str]:
    """Endpoints of a group's nodes that run on this machine."""
    key = endpoints, group
    until, found = _known.get(key, (0.0, []))
    if time.monotonic() >= until:

        async def read(made: Client) -> list[str]:
            replicas = await made.replicas(group)
            answers = await all_of(*(_status(endpoint, made) for endpoint in replicas))
            return [
                endpoint
                for endpoint, status in zip(replicas, answers, strict=True)
                if status is not None and is_here(status.store)
            ]

        found = client.run(read)
        _known[key] = time.monotonic() + FRESH_SECONDS, found
    return found


@functools.cache
def _opener() -> Opener | None:
    """The reader of local stores, if its package is installed."""
    for entry in importlib.metadata.entry_points(group=OPENERS):
        try:
            opener: Opener = entry.load()
        except ImportError:
            continue
        return opener
    return None
