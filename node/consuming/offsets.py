"""Queue offsets by time."""

from duolog import Start

from node.core.core import Core


def offset_at(core: Core, topic: str, queue_id: int, at: Start | int) -> int:
    """Queue offset of an end of a queue, or of a wall-clock time in ms."""
    low, high = core.store.queue_range(topic, queue_id)
    match at:
        case Start.EARLIEST:
            return low
        case Start.LATEST:
            return high
        case time_ms:
            return core.positions.offset_at_time(topic, queue_id, time_ms)
