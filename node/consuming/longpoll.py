"""Long polling: reads a queue, and waits for messages until a deadline.

A read that has an answer counts it as not taken yet, and charges it to the quotas of its reader. If
there is no room for it by then, it is dropped and made again: a call that only waits for messages
keeps no room from others.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.node.consuming.reading import Reader, Selection
from duolog_server.node.consuming.waiting import Waiting
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult

NOTHING_NEW = (
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE,
    GetMessageStatus.OFFSET_OVERFLOW_ONE,
)

MESSAGE_BYTES = 64  # of columns, for each message


def check_place(key: QueueKey, queues: int, offset: int) -> None:
    """Raise BadRequest for a queue that does not exist or a negative offset.

    queues: that readers may name.
    """
    topic, queue_id = key
    if not 0 <= queue_id < queues:
        raise sdk.BadRequest(f"queue {queue_id}: {topic} has queues 0..{queues - 1}")
    if offset < 0:
        raise sdk.BadRequest(f"offset {offset} is negative")


async def poll(
    reader: Reader, key: QueueKey, offset: int, selection: Selection, deadline: float
) -> tuple[int, GetResult]:
    """The first read with a result from `offset` on, and the offset at which it was made.

    It passes the reader's quotas, and is charged to them by `within_room`. deadline: loop time;
    with a past one the queue is read once. Raises Busy if too many calls wait, Throttled where the
    reader is over a quota until the deadline.
    """
    who, topic = selection.who, key[0]
    if who is None:
        return await _poll(reader, key, offset, selection, deadline)
    while True:
        await reader.may_read(who, topic, selection.group, deadline)
        share = reader.share(who, topic, selection)
        offset, result = await _poll(reader, key, offset, share, deadline)
        # Of many that waited for the same messages, the first one may have used the quota up.
        if not result.count or reader.may_go_out(who, topic):
            return offset, result


async def _poll(
    reader: Reader, key: QueueKey, offset: int, selection: Selection, deadline: float
) -> tuple[int, GetResult]:
    """`poll`, for any reader."""
    loop = asyncio.get_running_loop()
    result = reader.read(key, offset, selection)
    if _says_something(result, offset) or loop.time() >= deadline:
        return offset, result
    with reader.calls.one():
        waiting = Waiting(reader.board, reader.turns, key, deadline)
        try:
            while loop.time() < deadline:
                waiting.look()
                offset = max(offset, result.next_offset) if result.max_offset else offset
                result = reader.read(key, offset, selection)
                if _says_something(result, offset):
                    break
                if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
                    offset = result.next_offset
                    if offset < result.max_offset:
                        await asyncio.sleep(0)
                        continue
                if not await waiting.arrived():
                    break
        finally:
            waiting.end()
    return offset, result


async def within_room(
    reader: Reader,
    address: str,
    key: QueueKey,
    selection: Selection,
    read: Callable[[Selection], Awaitable[tuple[int, GetResult]]],
) -> tuple[int, GetResult, int]:
    """Result of `read`, and the bytes that `reader.untaken` counts until they are given back.

    read: called with as much of the selection as there is room for. Raises Busy where the client
    takes no answers.
    """
    untaken, wanted = reader.untaken, selection
    while True:
        room = await untaken.some_room(address)
        offset, result = await read(_narrowed(wanted, room))
        room = untaken.room(address)
        largest = max(len(result.bodies), len(result.properties))
        if largest <= room or result.count <= 1:
            size = size_of(result)
            untaken.take(address, size)
            if selection.who is not None:
                reader.sent(selection.who, key[0], result)
            return offset, result, size
        # A read limits its bodies; as to its properties, it is now known how many messages fit.
        fits = max(1, result.count * room // largest)
        wanted = replace(selection, messages_max=fits) if room else selection


def _narrowed(selection: Selection, room: int) -> Selection:
    if room >= selection.bytes_max:
        return selection
    most = max(1, room // MESSAGE_BYTES)
    count = min(selection.messages_max, most)
    return replace(selection, messages_max=count, bytes_max=room)


def size_of(result: GetResult) -> int:
    """The memory of an answer, about; 0 without messages."""
    return len(result.bodies) + len(result.properties) + MESSAGE_BYTES * result.count


def _says_something(result: GetResult, offset: int) -> bool:
    if result.status in NOTHING_NEW:
        return offset > result.max_offset
    return result.status is not GetMessageStatus.NO_MATCHED_MESSAGE or result.lost > 0
