"""Queries and locks over the remoting protocol."""

import json

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.bodies import LockBatch, QueueName, read_locks
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.consuming.clients import LOCK_MS, QueueLocks
from duolog_server.compat.remoting.lookups import led_to, reached_at
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Host, RecordHeader
from tests.compat.remoting.client import Remoting, connected, records
from tests.compat.remoting.forged import forged
from tests.known import known
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

# -- queries -----------------------------------------------------------------------------------


async def query(remoting: Remoting, key: str, **more: object) -> tuple[int, list[bytes]]:
    fields = {
        "topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60,
        **more,
    }  # fmt: skip
    found = await remoting.ask(RequestCode.QUERY_MESSAGE, fields)
    return found.code, [one.body for one in records(found.body)]


async def test_messages_are_found_by_key_and_id(node: Node, remoting: Remoting) -> None:
    await remoting.send("T", b"one", "KEYS\x01a b\x02UNIQ_KEY\x01ID1")
    await remoting.send("T", b"two", "KEYS\x01b\x02UNIQ_KEY\x01ID2", 1)
    assert await query(remoting, "b") == (0, [b"one", b"two"])
    assert await query(remoting, "b", maxNum=1) == (0, [b"two"])  # the newest
    assert await query(remoting, "b", maxNum=0) == (ResponseCode.QUERY_NOT_FOUND, [])
    assert await query(remoting, "b", maxNum=-1) == (ResponseCode.SYSTEM_ERROR, [])
    assert await query(remoting, "ID2", _UNIQUE_KEY_QUERY="true") == (0, [b"two"])
    assert await query(remoting, "nothing") == (ResponseCode.QUERY_NOT_FOUND, [])
    assert await query(remoting, "b", endTimestamp=5) == (ResponseCode.QUERY_NOT_FOUND, [])
    assert (await query(remoting, "b", topic="Unknown"))[0] == ResponseCode.TOPIC_NOT_EXIST
    assert broker_of(node).untaken.held_bytes == 0


async def test_a_message_is_found_by_its_place(node: Node, remoting: Remoting) -> None:
    sent = await remoting.send("T", b"one")
    place = int(sent.fields["msgId"][16:], 16)
    found = await remoting.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
    assert [one.body for one in records(found.body)] == [b"one"]
    for wrong in (place + 1, 1 << 40, -1):
        refused = await remoting.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": wrong})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert not refused.body
    within = {"offset": await forged(node, remoting)}
    refused = await remoting.ask(RequestCode.VIEW_MESSAGE_BY_ID, within)
    assert (refused.code, refused.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    inside = sent.fields["msgId"][:16] + f"{within['offset']:016X}"
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        assert await client.admin.find(message_id=sent.fields["msgId"])
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.find(message_id=inside)
    note = known(broker_of(node).store.record_at("DUOLOG_SYS_METADATA", 0, QueueOffset(0)))
    fields = {"offset": note.physical_offset}
    refused = await remoting.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields)
    assert refused.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("sealed", [True, False])
async def test_ids_of_messages_lead_to_the_remoting_port(
    start_node: StartNode, sealed: bool
) -> None:
    node = await start_node(remoting={"listen": free_endpoint()}, enabled_append_prop_crc=sealed)
    async with connected(node) as remoting:
        broker_of(node).metadata.auto_create("T", 1)
        sent = await remoting.send("T", b"one", "KEYS\x01a\x02UNIQ_KEY\x01ID1")
        place = {"offset": int(sent.fields["msgId"][16:], 16)}
        found = records((await remoting.ask(RequestCode.VIEW_MESSAGE_BY_ID, place)).body)
        assert found[0].message_id == sent.fields["msgId"]
        assert (found[0].store_host.address, found[0].store_host.port) == (
            "127.0.0.1", known(node.remoting).port,
        )  # fmt: skip
        assert ("__CRC32#" in found[0].properties) is sealed


def test_a_host_of_another_length_stays() -> None:
    record = RecordHeader("T", 0, 0, 0).packed()
    assert led_to(record, Host("fe80::1", 1)) == record
    assert led_to(record, Host("10.0.0.7", 1)) != record


@pytest.mark.parametrize(
    ("advertised", "host"),
    [
        ("10.0.0.7:9876", Host("10.0.0.7", 9876)),
        ("[fe80::1]:9876", Host("fe80::1", 9876)),
        ("broker.example:9876", Host("10.0.0.9", 9876)),
    ],
)
def test_where_ids_lead_follows_from_what_is_advertised(advertised: str, host: Host) -> None:
    assert reached_at(advertised, Host("10.0.0.9", 8081)) == host


async def test_the_age_of_a_queue_is_told(remoting: Remoting) -> None:
    code, place = RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0}
    assert (await remoting.ask(code, place)).fields["timestamp"] == "-1"
    await remoting.send("T", b"one")
    assert int((await remoting.ask(code, place)).fields["timestamp"]) > 1_600_000_000_000


# -- locks -------------------------------------------------------------------------------------


async def lock(
    remoting: Remoting, client_id: str, code: int = RequestCode.LOCK_BATCH_MQ, **more: object
) -> list[int]:
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": k, **more} for k in range(5)]
    body = json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": queues}).encode()
    found = await remoting.ask(code, body=body)
    if found.code != ResponseCode.SUCCESS or not found.body:
        return []
    return [row["queueId"] for row in json.loads(found.body)["lockOKMQSet"]]


async def test_a_queue_is_locked_by_one_client_at_a_time(remoting: Remoting) -> None:
    assert await lock(remoting, "c1") == []  # no such group
    await remoting.beat("c1", "g", "T")
    assert await lock(remoting, "c1", brokerName="other") == []
    assert await lock(remoting, "c1", topic="Unknown") == []
    assert await lock(remoting, "c1") == [0, 1, 2, 3]  # those that exist
    assert await lock(remoting, "c1") == [0, 1, 2, 3]
    assert await lock(remoting, "c2") == []
    await lock(remoting, "c2", RequestCode.UNLOCK_BATCH_MQ)
    assert await lock(remoting, "c2") == []
    await lock(remoting, "c1", RequestCode.UNLOCK_BATCH_MQ)
    assert await lock(remoting, "c2") == [0, 1, 2, 3]


def test_a_lock_that_is_not_renewed_ends() -> None:
    locks, key = QueueLocks(), ("T", 0)
    assert locks.lock("g", "c1", [key], MonoMs(0)) == [key]
    assert locks.lock("h", "c2", [key], MonoMs(0)) == [key]  # of another group
    assert locks.lock("g", "c2", [key], MonoMs(LOCK_MS)) == []
    locks.expire(MonoMs(LOCK_MS))
    assert len(locks) == 2
    assert locks.lock("g", "c2", [key], MonoMs(LOCK_MS + 1)) == [key]
    locks.expire(MonoMs(2 * LOCK_MS + 2))
    assert len(locks) == 0


def test_there_is_a_limit_to_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.consuming.clients.LOCKS_MAX", 2)
    locks, keys = QueueLocks(), [("T", k) for k in range(3)]
    assert locks.lock("g", "c1", keys, MonoMs(0)) == keys[:2]
    assert locks.lock("g", "c1", keys, MonoMs(1)) == keys[:2]


def test_a_batch_of_locks_is_read() -> None:
    row = {"topic": "T", "brokerName": "b", "queueId": 3}
    body = json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [row], "more": 1}).encode()
    assert read_locks(body) == LockBatch("g", "c", (QueueName("T", "b", 3),))
