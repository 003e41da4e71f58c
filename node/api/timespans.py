"""The times of messages between a queue's begin, a group's place in it, and the queue's end."""

from dataclasses import dataclass

from duolog.wire import duolog_pb2 as wire

from duolog_server.node.core.core import Core


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Wall-clock ms; -1 where there is no such message.

    Attributes:
        consumed_ms: when the message before the group's place was stored; where it has read
            nothing, the first one.
        delay_ms: the age of the first message that the group has not done; 0 without one.
    """

    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


def time_span(core: Core, topic: str, queue: wire.QueueStats, committed: int) -> TimeSpan:
    """Of a group in one queue. committed: its queue offset; negative without one."""

    def stored(offset: int) -> int:
        return core.positions.store_time(topic, queue.queue_id, offset)

    first, delay = stored(queue.min_offset), 0
    if committed < queue.max_offset:
        following = stored(max(committed, queue.min_offset))
        delay = max(0, core.times.wall_ms() - following) if following > 0 else 0
    consumed = stored(committed - 1) if committed > 0 else first
    return TimeSpan(first, queue.last_store_time or -1, consumed, delay)
