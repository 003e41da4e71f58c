"""Sends whose result is not known when the mastership ends."""

import asyncio

import duolog
import pytest

from duolog_server.compat.grpc.protocol.messages import sent
from duolog_server.compat.grpc.sending import Sender
from duolog_server.node.core.traffic import NORMAL
from duolog_server.node.service.sends import Placed
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import message
from tests.node.replicas import broker_of


@pytest.mark.parametrize("over", [True, False])
async def test_an_unknown_result_is_for_the_next_master_to_say(
    node: Node, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    broker = broker_of(node)
    sender, loop = Sender(broker), asyncio.get_running_loop()
    waiting: asyncio.Future[PutMessageStatus] = loop.create_future()
    waiting.set_result(PutMessageStatus.UNKNOWN_ERROR)
    stored = PutResult(
        PutMessageStatus.PUT_OK, queue_offset=QueueOffset(0), end_offset=PhyOffset(100)
    )
    if over:
        monkeypatch.setattr(broker.replication, "not_master", lambda: "another node leads")
    one, batch = sent(message(b"x"), 1000), PutBatch("T", 0, Columns.of([b"x"]), 0)
    placed = Placed("T", NORMAL, batch)
    putting = sender._put("T", one, placed, (stored, waiting), loop.time() + 5)
    if over:
        with pytest.raises(duolog.NotMaster):
            await putting
    else:
        assert (await putting).status is PutMessageStatus.UNKNOWN_ERROR
