"""A new master refuses nothing because of settings that the last one may have changed."""

import duolog
import pytest

from duolog_server.compat.grpc.consuming import Puller
from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.node.core.admission import Admission
from duolog_server.serve.server import Node
from tests.compat.grpc.api import CALL_SECONDS, Api, message, resource
from tests.compat.grpc.test_pulling import queue
from tests.node.replicas import broker_of


@pytest.fixture
async def master(node: Node) -> Node:
    """It has topics with some settings."""
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("ReadOnly", 1, 4)
        await client.admin.create_topic("SendOnly", 1, 2)
        await client.admin.create_topic("Normal", 1, message_type="NORMAL")
    return node


def is_refused(admission: Admission, topic: str) -> type[Exception] | None:
    """The error with which a put to a topic is refused, None if it is not."""
    try:
        admission.writable_topic(topic, "")
    except duolog.DuologError as error:
        return type(error)
    return None


async def test_puts_and_reads_are_admitted_by_permission_and_role(
    master: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = broker_of(master).admission
    assert is_refused(admission, "ReadOnly") is duolog.NoPermission
    with pytest.raises(duolog.NoPermission):
        admission.readable_topic("SendOnly")
    monkeypatch.setattr(broker_of(master).replication, "may_be_behind", lambda: True)
    assert is_refused(admission, "ReadOnly") is duolog.NotMaster
    assert is_refused(admission, "Normal") is None
    with pytest.raises(duolog.NotMaster):
        admission.readable_topic("SendOnly")
    assert admission.readable_topic("Normal").queues == 1


async def test_settings_of_topics_and_groups_are_checked(
    master: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"127.0.0.1:{master.port}"
    async with duolog.Client(endpoint) as client, duolog.Client(endpoint, timeout=1) as hasty:
        admin = client.admin
        with pytest.raises(duolog.BadRequest, match="no lite topics"):
            await admin.put_group("G", lite_topic="Normal")
        with pytest.raises(duolog.BadRequest, match="no lite topics"):
            await admin.alter_topic("Normal", lite_ttl_minutes=5)
        monkeypatch.setattr(broker_of(master).replication, "may_be_behind", lambda: True)
        with pytest.raises(duolog.Retryable):
            await hasty.admin.put_group("G", lite_topic="Normal")
        with pytest.raises(duolog.Retryable):
            await hasty.admin.alter_topic("Normal", lite_ttl_minutes=5)


async def test_calls_of_rocketmqs_clients_are_admitted_like_those_of_the_sdk(
    master: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(master)
    puller = Puller(broker_of(master).core, broker_of(master).reader, broker_of(master).offsets)
    lite = service.SyncLiteSubscriptionRequest(
        action=definition.PARTIAL_ADD,
        topic=resource("Normal"),
        group=resource("G"),
        lite_topic_set=["a"],
    )
    calls = [
        ("SendMessage", service.SendMessageRequest(messages=[message(topic="ReadOnly")])),
        (
            "SendMessage",
            service.SendMessageRequest(messages=[message(topic="Normal", message_group="m")]),
        ),
        ("SyncLiteSubscription", lite),
    ]

    async def codes() -> list[int]:
        return [(await api.call(name, call)).status.code for name, call in calls]

    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await codes() == [Code.FORBIDDEN, conflict, Code.ILLEGAL_TOPIC]
    with pytest.raises(duolog.BadRequest):
        puller._place(queue(1, "Normal"))
    monkeypatch.setattr(broker_of(master).replication, "may_be_behind", lambda: True)
    # What waits is answered a second after the call, and has all the rest of its time for that.
    monkeypatch.setattr(
        "duolog_server.compat.grpc.relay.forward.MARGIN_SECONDS", CALL_SECONDS - 1.0
    )
    assert await codes() == [Code.HA_NOT_AVAILABLE] * 3
    with pytest.raises(duolog.NotMaster):
        puller._place(queue(1, "Normal"))
    await api.close()
