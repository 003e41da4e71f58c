"""Members of groups: heartbeats, what they are told, locks of queues, and pulls by a heartbeat."""

import asyncio
import json
from typing import Any

from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from tests.conformance.differential.seen import Seen
from tests.conformance.differential.session import Cases, Session, pull_fields, session

TOPIC, MEMBERS = "G", "members"
TOLD_SECONDS = 30.0
BROKER = "broker-a"


def heartbeat(client: str, group: str, expression: str = "*", version: int = 2) -> bytes:
    """Of a push consumer that reads the topic."""
    row = {
        "topic": TOPIC, "subString": expression, "subVersion": version, "expressionType": "TAG",
        "tagsSet": [], "codeSet": [], "classFilterMode": False,
    }  # fmt: skip
    data = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [row],
        "unitMode": False,
    }  # fmt: skip
    return json.dumps({"clientID": client, "consumerDataSet": [data]}).encode()


async def members(first: Session) -> None:
    """Two connections, each with a member of a group."""
    await first.topic(TOPIC)
    async with session(first.address, first.seen) as second:
        await _beats(first, second)
        await _pulls(first)
        await _locks(first)
        await _leaves(first, second)


async def _beats(first: Session, second: Session) -> None:
    seen = first.seen
    await _ids(first, "members before all", MEMBERS)
    beat = RequestCode.HEART_BEAT
    seen.answer("heartbeat", await first.ask(beat, body=heartbeat("c1", MEMBERS)), "version")
    await _ids(first, "members, one", MEMBERS)
    await _silence(first)
    await second.ask(beat, body=heartbeat("c2", MEMBERS))
    seen.note("told of another member", await _told(first))
    await _ids(first, "members, two", MEMBERS)
    for name, body in {
        "of no JSON": b"x",
        "without a body": b"",
        "without a client": json.dumps({"consumerDataSet": []}).encode(),
        "of nobody": json.dumps({"clientID": "c9"}).encode(),
        "of a group with bad characters": heartbeat("c9", "a b"),
    }.items():
        seen.answer(f"heartbeat {name}", await first.ask(beat, body=body))
    await _ids(first, "members of the group that heartbeats made", "%RETRY%" + MEMBERS)
    cases: Cases = {
        "of an unknown group": {"consumerGroup": "unknown4"},
        "of an empty group": {"consumerGroup": ""},
        "without a group": {},
    }
    for name, fields in cases.items():
        await first.note(f"members {name}", RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)


async def _ids(asker: Session, name: str, group: str) -> None:
    answer = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    asker.seen.answer(name, answer)
    found = fastjson.loads(answer.body) if answer.body else {}
    assert isinstance(found, dict)
    ids = found.get("consumerIdList", [])
    assert isinstance(ids, list)
    asker.seen.note(f"{name}: ids", sorted(map(str, ids)))


async def _silence(client: Session) -> None:
    """Take what the client was told of itself."""
    await asyncio.sleep(0.3)
    while not client.told.empty():
        client.told.get_nowait()


async def _told(client: Session) -> str:
    try:
        async with asyncio.timeout(TOLD_SECONDS):
            told: Command = await client.told.get()
    except TimeoutError:
        return "nothing"
    return f"{told.code} {dict(told.fields)} oneway {told.is_oneway}"


async def _pulls(client: Session) -> None:
    """Those whose subscription is the one of the last heartbeat."""
    cases: Cases = {
        "good": {"subVersion": 2},
        "older": {"subVersion": 1},
        "newer": {"subVersion": 3},
        "of an unread topic": {"topic": "P2"},
        "of another group": {"consumerGroup": "others"},
    }
    for name, fields in cases.items():
        await client.topic("P2")
        row = {"consumerGroup": MEMBERS, "sysFlag": 0, "subscription": None, **fields}
        pulled = pull_fields(**{"topic": TOPIC, **row})
        await client.note(f"pull by a heartbeat, {name}", RequestCode.PULL_MESSAGE, pulled)


async def _locks(client: Session) -> None:
    for name, who, queues, more in (
        ("good", "c1", [(TOPIC, 0), (TOPIC, 1)], {}),
        ("again", "c1", [(TOPIC, 0), (TOPIC, 1)], {}),
        ("of another's", "c2", [(TOPIC, 1), (TOPIC, 2)], {}),
        ("of a queue beyond the last", "c1", [(TOPIC, 9)], {}),
        ("of a topic that is not there", "c1", [("Nowhere5", 0)], {}),
        ("of another broker", "c1", [(TOPIC, 3)], {"brokerName": "other"}),
        ("of nothing", "c1", [], {}),
        ("of an unknown group", "c1", [(TOPIC, 0)], {"consumerGroup": "unknown5"}),
        ("by a client that is no member", "c7", [(TOPIC, 3)], {}),
    ):
        await _locked(client, f"lock {name}", _lock(who, queues, **more))
    body = _lock("c1", [(TOPIC, 1)])
    await client.note("unlock", RequestCode.UNLOCK_BATCH_MQ, body=body)
    await client.note("unlock again", RequestCode.UNLOCK_BATCH_MQ, body=body)
    await _locked(client, "lock after unlock", _lock("c2", [(TOPIC, 0), (TOPIC, 1)]))
    await client.note("lock without a body", RequestCode.LOCK_BATCH_MQ)
    await client.note("unlock without a body", RequestCode.UNLOCK_BATCH_MQ)


def _lock(who: str, queues: list[tuple[str, int]], **more: Any) -> bytes:
    broker = more.pop("brokerName", BROKER)
    rows = [{"topic": topic, "brokerName": broker, "queueId": queue} for topic, queue in queues]
    return json.dumps({"consumerGroup": MEMBERS, "clientId": who, "mqSet": rows, **more}).encode()


async def _locked(client: Session, name: str, body: bytes) -> None:
    answer = await client.note(name, RequestCode.LOCK_BATCH_MQ, body=body)
    found = fastjson.loads(answer.body) if answer.body else {}
    assert isinstance(found, dict)
    rows = found.get("lockOKMQSet", [])
    assert isinstance(rows, list)
    client.seen.note(f"{name}: queues", sorted(str(sorted(row.items())) for row in _rows(rows)))


def _rows(rows: list[fastjson.Value]) -> list[dict[str, object]]:
    return [{str(name): one for name, one in row.items()} for row in rows if isinstance(row, dict)]


async def _leaves(first: Session, second: Session) -> None:
    code = RequestCode.UNREGISTER_CLIENT
    await _silence(first)
    await second.note("leave", code, {"clientID": "c2", "consumerGroup": MEMBERS})
    first.seen.note("told of a member that left", await _told(first))
    await _ids(first, "members, one left", MEMBERS)
    await second.note("leave again", code, {"clientID": "c2", "consumerGroup": MEMBERS})
    unknown = {"clientID": "c2", "consumerGroup": "unknown6"}
    await second.note("leave an unknown group", code, unknown)
    await second.note("leave as a producer", code, {"clientID": "c2", "producerGroup": "p"})
    await second.note("leave without a client", code, {})


async def gone(first: Session) -> None:
    """A connection that ends is a member that left."""
    await first.topic(TOPIC)
    await first.ask(RequestCode.HEART_BEAT, body=heartbeat("c1", "gone"))
    async with session(first.address, Seen()) as second:
        await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2", "gone"))
        await _silence(first)
    first.seen.note("told of a connection that ended", await _told(first))
    await _ids(first, "members, one gone", "gone")


__all__ = ["gone", "members"]
