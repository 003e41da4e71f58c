"""Light queues: further consume queues that name a record of another topic's queue (LMQ).

A record that is in light queues says so itself, as in RocketMQ's multi-dispatch: its property
INNER_MULTI_DISPATCH names them, INNER_MULTI_QUEUE_OFFSET says where in each of them it stands.
Their files are small and lie in a directory of their own, so many of them cost little and RocketMQ,
which wants consume queues of one size, does not meet them.

A light queue begins at the offset that the log ends at, and may be forgotten and begin again: then
past all that any node may still have of it, as each of its entries took more than a byte of log.
What lay before is dropped there.
"""

from collections.abc import Mapping, Sequence

from store.columns import BadProperties, Columns
from store.errors import BadMessage
from store.kernels import scan
from store.record import PROPERTIES_BYTES_MAX, PROPERTIES_RESERVE

START = scan.LIGHT_START.tobytes().decode()  # of every name; no topic has a $ in its own
NAME_BYTES_MAX = 255
ROOT = "lightqueue"
FILE_BYTES = 4096 * 20  # whole pages
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTIES = (MULTI_DISPATCH, MULTI_QUEUE_OFFSET)
_PAIR, _END = b"\x01", b"\x02"
_MARKS = tuple(name.encode() for name in PROPERTIES)


def is_light(topic: str) -> bool:
    """Tell whether a queue's name is that of a light queue."""
    return topic.startswith(START)


def parent_of(name: str) -> str:
    """The topic that a light queue's messages are of: what stands before the second $."""
    return name[len(START) :].partition("$")[0]


def check_names(names: Sequence[str]) -> None:
    """Raise BadMessage for a name that no light queue can have."""
    for name in names:
        if not is_light(name) or len(name.encode()) > NAME_BYTES_MAX or "/" in name or "," in name:
            raise BadMessage(f"{name!r} is not the name of a light queue")
        if not name.isprintable():
            raise BadMessage(f"light queue {name!r} has control characters")


def light_places(properties: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """A record's places in light queues: name, queue id, queue offset."""
    names = properties.get(MULTI_DISPATCH, "").split(",")
    offsets = properties.get(MULTI_QUEUE_OFFSET, "").split(",")
    return [
        (name, 0, int(offset))
        for name, offset in zip(names, offsets, strict=False)
        if is_light(name) and offset.isdecimal()
    ]


def claims_light_queues(columns: Columns) -> bool:
    """Tell whether properties of a batch speak of light queues: only the store may write that."""
    text = columns.properties.tobytes()
    return any(mark in text for mark in _MARKS)


def in_light_queues(columns: Columns, names: Sequence[str], offsets: Sequence[int]) -> Columns:
    """A single message with its places in light queues. Raises BadProperties: they do not fit."""
    added = _END.join(
        (
            MULTI_DISPATCH.encode() + _PAIR + ",".join(names).encode(),
            MULTI_QUEUE_OFFSET.encode() + _PAIR + ",".join(map(str, offsets)).encode(),
        )
    )
    text = columns.properties.tobytes().rstrip(_END)
    block = text + _END + added if text else added
    if len(block) > PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE:
        raise BadProperties(0, f"its properties have {len(block)} bytes with its light queues")
    return Columns.of([columns.bodies.tobytes()], [block])
