"""Messages that are serialized in slices are read as they were, and hold nobody up."""

from typing import Any

import pytest
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import Message

from duolog_server.node.core import slices as module
from duolog_server.node.core import turnbudget
from duolog_server.node.core.slices import Slices, serialized
from tests.turns import counted_turns


@pytest.fixture(autouse=True)
def _every_look_ends_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)


def topics(count: int, queues: int = 3) -> wire.ListTopicsReply:
    reply = wire.ListTopicsReply(confirm_offset=1 << 40, total=0, next="é" * 200)
    for number in range(count):
        row = reply.topics.add(topic=f"T{number}" * (1 + number % 30), perm=6)
        for queue in range(queues):
            row.stats.add(queue_id=queue, max_offset=number << queue)
    return reply


@pytest.mark.parametrize(
    "message",
    [
        wire.ListTopicsReply(),
        topics(1),
        topics(module.ROWS_MAX),
        topics(module.ROWS_MAX + 1),
        topics(2 * module.ROWS_MAX, queues=0),
        wire.ListTopicsRequest(topics=["T"] * (2 * module.ROWS_MAX), contains="x"),
        wire.ClusterStatusReply(nodes=[wire.NodeStatusReply(name="n")] * 2, cluster="c"),
        wire.GroupDescription(queues=[wire.GroupQueue()] * (2 * module.ROWS_MAX), orderly=False),
    ],
    ids=lambda message: f"{type(message).__name__}-{message.ByteSize()}",
)
async def test_what_is_read_is_what_was_written(message: Any) -> None:
    data = await serialized(message, Slices())
    found = type(message).FromString(data)
    assert found == message
    assert len(data) == message.ByteSize()


async def test_others_have_their_turn_between_some_rows() -> None:
    message: Message = topics(3 * module.ROWS_MAX)
    with counted_turns() as turns:
        await serialized(message, Slices())
        assert turns() >= 3 * module.ROWS_MAX / module.AT_ONCE
