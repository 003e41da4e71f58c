"""Every field of a node's answer is in the SDK's descriptions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from duolog import FoundMessage, NodeStatus, _descriptions, _fromwire
from duolog.wire import duolog_pb2 as wire
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

RENAMED = {
    "store_time": "store_time_ms",
    "born_time": "born_time_ms",
    "start_time": "start_time_ms",
    "last_store_time": "last_store_time_ms",
}


def filled(message: Message, numbers: Iterator[int]) -> Message:
    """A message with another value in each field, two of those that repeat."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            getattr(message, field.name)[str(next(numbers))] = value_of(value, numbers)
        elif field.message_type is not None and field.is_repeated:
            for _ in range(2):
                filled(getattr(message, field.name).add(), numbers)
        elif field.message_type is not None:
            filled(getattr(message, field.name), numbers)
        elif field.is_repeated:
            getattr(message, field.name).extend([value_of(field, numbers) for _ in range(2)])
        else:
            setattr(message, field.name, value_of(field, numbers))
    return message


def value_of(field: Any, numbers: Iterator[int]) -> Any:
    number = next(numbers)
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return str(number)
        case FieldDescriptor.TYPE_BYTES:
            return b"%d" % number
        case FieldDescriptor.TYPE_BOOL:
            return True
    return number


# Fields of answers that are for consumers, and told by other calls to people.
LEFT_OUT = {"TopicReply": {"guests"}}
# Fields that the client knows by itself: where it asked.
ADDED = {FoundMessage: frozenset({"group"})}


def found_message_of(found: wire.FoundMessage) -> FoundMessage:
    return _fromwire.message_of(found, "broker-a")


def check_same(message: Any, found: Any) -> None:
    """Every field of the one is in the other, and it has no others."""
    if not isinstance(message, Message):
        assert message == found
        return
    left_out = LEFT_OUT.get(message.DESCRIPTOR.name, ())
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in left_out]
    names = {RENAMED.get(field.name, field.name): field for field in fields}
    told_by_the_client = ADDED.get(type(found), frozenset())
    assert {field.name for field in dataclasses.fields(found)} == names.keys() | told_by_the_client
    for name, field in names.items():
        told, value = getattr(message, field.name), getattr(found, name)
        if field.is_repeated and not isinstance(value, dict):
            assert isinstance(value, tuple)
            for one, other in zip(told, value, strict=True):
                check_same(one, other)
        else:
            check_same(dict(told) if isinstance(value, dict) else told, value)


@pytest.mark.parametrize(
    ("kind", "convert"),
    [
        (wire.TopicReply, _fromwire.topic_of),
        (wire.GroupDescription, _fromwire.group_of),
        (wire.FoundMessage, found_message_of),
        (wire.NodeStatusReply, _fromwire.node_of),
        (wire.ClusterStatusReply, _fromwire.cluster_of),
        (wire.RouteReply, _fromwire.route_of),
    ],
    ids=lambda value: value.__name__,
)
def test_every_field_of_an_answer_is_in_its_description(
    kind: type[Message], convert: Callable[[Any], Any]
) -> None:
    message = filled(kind(), itertools.count(1))
    check_same(message, convert(message))


def test_unknown_values_are_none_and_descriptions_do_not_change() -> None:
    topic = wire.TopicReply(stats=[wire.QueueStats()])
    assert _fromwire.topic_of(topic).stats[0].last_store_time_ms is None
    group = wire.GroupDescription(queues=[wire.GroupQueue(committed=-1)])
    assert _fromwire.group_of(group).queues[0].committed is None
    kinds = wire.DESCRIPTOR.enum_types_by_name["TrackState"].values
    states = [kind.name for kind in kinds if kind.number != wire.TRACK_STATE_UNSPECIFIED]
    reply = wire.TrackReply(groups=[wire.MessageTrack(group=name, state=name) for name in states])
    assert set(_fromwire.states_of([reply]).values()) == set(_descriptions.TrackState)
    track = _fromwire.way_of(wire.TrackedMessage(groups=reply.groups[:1])).groups[0]
    assert (track.copy, track.copy_time_ms) == (None, 0), "it was stored nowhere else"
    node = NodeStatus("n", "SLAVE")
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.name = "m"  # type: ignore[misc]
    assert not node.is_master
    assert NodeStatus("n", "SYNC_MASTER").is_master
