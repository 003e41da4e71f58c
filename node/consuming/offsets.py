"""Queue offsets by time."""

from duolog import _errors as sdk

from store.messagestore import MessageStore

EARLIEST = -1
LATEST = -2


def offset_at(store: MessageStore, topic: str, queue_id: int, time: int) -> int:
    """Queue offset at a wall-clock time in ms, EARLIEST or LATEST. Raises BadRequest."""
    low, high = store.queue_range(topic, queue_id)
    if time == EARLIEST:
        return low
    if time == LATEST:
        return high
    if time < 0:
        raise sdk.BadRequest(f"time {time} is negative")
    return store.offset_at_time(topic, queue_id, time)
