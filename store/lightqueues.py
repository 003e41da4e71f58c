"""Light queues: further consume queues that name a record of another topic's queue (LMQ).

A record that is in light queues says so itself, as in RocketMQ's multi-dispatch: its property
INNER_MULTI_DISPATCH names them, INNER_MULTI_QUEUE_OFFSET says where in each of them it stands.
Their files are small and lie in a directory of their own, so many of them cost little and RocketMQ,
which wants consume queues of one size, does not meet them.

A light queue begins at the offset that the log ends at, and may be forgotten and begin again: then
past all that any node may still have of it, as each of its entries took more than a byte of log.
What lay before is dropped there.
"""

from collections.abc import Mapping

# Of every name; no topic has a $ in its own. A kernel has it as well: to import that takes longer
# than most commands do.
START = "%LMQ%$"
NAME_BYTES_MAX = 255
ROOT = "lightqueue"
FILE_BYTES = 4096 * 20  # whole pages
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTIES = (MULTI_DISPATCH, MULTI_QUEUE_OFFSET)


def is_light(topic: str) -> bool:
    """Tell whether a queue's name is that of a light queue."""
    return topic.startswith(START)


def lite_queue(topic: str, lite_topic: str) -> str:
    """The light queue of a topic's lite topic."""
    return f"{START}{topic}${lite_topic}"


def parent_of(name: str) -> str:
    """The topic that a light queue's messages are of: what stands before the second $."""
    return name[len(START) :].partition("$")[0]


def lite_topic_of(name: str) -> str:
    """A light queue's lite topic."""
    return name[len(START) :].partition("$")[2]


def light_places(properties: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """A record's places in light queues: name, queue id, queue offset."""
    names = properties.get(MULTI_DISPATCH, "").split(",")
    offsets = properties.get(MULTI_QUEUE_OFFSET, "").split(",")
    return [
        (name, 0, int(offset))
        for name, offset in zip(names, offsets, strict=False)
        if is_light(name) and offset.isdecimal()
    ]
