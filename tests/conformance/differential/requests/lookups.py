"""Messages by key and by id, routes, and what the name server knows."""

import asyncio
import time
from typing import Any

from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.store.record import parse_message_id
from tests.compat.remoting.client import records
from tests.conformance.differential.seen import Seen
from tests.conformance.differential.session import SECONDS, Cases, Session, properties, session
from tests.conformance.differential.sides import Side

TOPIC = "Q"
UNIQUE = "0A0000010000000000000000000000D1"
HOUR_MS = 3_600_000


async def lookups(client: Session) -> None:
    """QUERY_MESSAGE, VIEW_MESSAGE_BY_ID."""
    await client.topic(TOPIC)
    sent = await client.send(TOPIC, b"one", properties(KEYS="k1 k2", UNIQ_KEY=UNIQUE))
    await client.send(TOPIC, b"two", properties(KEYS="k2 K3"))
    await client.send(TOPIC, b"three", "", queueId=1)
    await _indexed(client)
    cases: Cases = {
        "good": {"key": "k1"},
        "of two": {"key": "k2"},
        "at most one": {"key": "k2", "maxNum": 1},
        "at most none": {"key": "k2", "maxNum": 0},
        "a negative number": {"key": "k2", "maxNum": -1},
        "in other letters": {"key": "k3"},
        "of all keys": {"key": "k1 k2"},
        "unknown": {"key": "k9"},
        "empty": {"key": ""},
        "too early": {"key": "k1", "endTimestamp": 1000},
        "too late": {"key": "k1", "beginTimestamp": int(time.time() * 1000) + HOUR_MS},
        "of a topic that is not there": {"key": "k1", "topic": "Nowhere6"},
        "unique": {"key": UNIQUE, "_UNIQUE_KEY_QUERY": "true"},
        "unique, unknown": {"key": "k1", "_UNIQUE_KEY_QUERY": "true"},
        "not unique, but its id": {"key": UNIQUE},
        "without a key": {"key": None},
        "without a topic": {"key": "k1", "topic": None},
    }
    for name, fields in cases.items():
        await _found(client, f"query {name}", _query(**fields))
    offset = parse_message_id(sent.fields["msgId"])[1]
    cases = {
        "good": {"offset": offset},
        "of no such message": {"offset": 1 << 40},
        "within a message": {"offset": offset + 1},
        "before the log": {"offset": -1},
        "without its place": {},
    }
    for name, offsets in cases.items():
        await _found(client, f"view {name}", offsets, RequestCode.VIEW_MESSAGE_BY_ID)


def _query(**more: Any) -> dict[str, Any]:
    times = {"beginTimestamp": 0, "endTimestamp": int(time.time() * 1000) + HOUR_MS}
    fields = {"topic": TOPIC, "maxNum": 64, **times, **more}
    return {name: value for name, value in fields.items() if value is not None}


async def _indexed(client: Session) -> None:
    """Wait until the last message with a key can be found."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        answer = await client.ask(RequestCode.QUERY_MESSAGE, _query(key="K3"))
        if answer.code == ResponseCode.SUCCESS:
            return
        await asyncio.sleep(0.05)


async def _found(
    client: Session, name: str, fields: dict[str, Any], code: int = RequestCode.QUERY_MESSAGE
) -> None:
    answer = await client.note(name, code, fields)
    if answer.code == ResponseCode.SUCCESS:
        bodies = [one.body for one in records(answer.body)]
        client.seen.note(f"{name}: bodies", bodies)


async def routes(side: Side, seen: Seen) -> None:
    """GET_ROUTEINFO_BY_TOPIC, GET_BROKER_CLUSTER_INFO, in both dialects of JSON."""
    async with session(side.broker, Seen()) as client:
        await client.topic("V", queues=3)
        await client.topic("VClosed", queues=2, perm=4)
    async with session(side.names, seen) as client:
        await _known(client, "V")
        cases: Cases = {
            "good": {"topic": "V"},
            "in standard JSON": {"topic": "V", "acceptStandardJsonOnly": "true"},
            "of a topic that may not be written": {"topic": "VClosed"},
            "of a topic that is not there": {"topic": "Nowhere7"},
            "of TBW102": {"topic": "TBW102"},
            "of an empty topic": {"topic": ""},
            "without a topic": {},
        }
        for name, fields in cases.items():
            await _route(client, f"route {name}", RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, side)
        await _route(client, "cluster", RequestCode.GET_BROKER_CLUSTER_INFO, {}, side)


async def _known(client: Session, topic: str) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.SUCCESS:
            return
        await asyncio.sleep(0.05)


async def _route(client: Session, name: str, code: int, fields: dict[str, Any], side: Side) -> None:
    for version in (393, 401):  # bare numbers as keys, and standard JSON
        answer = await client.ask(code, fields, version=version)
        client.seen.answer(f"{name}, version {version}", answer)
        if not answer.body:
            continue
        text = answer.body.decode().replace(side.broker, "<broker>")
        quoted = '{0:"' not in text
        client.seen.note(f"{name}, version {version}: numbers as keys", not quoted)
        _noted(client.seen, f"{name}, version {version}", fastjson.loads(text.encode()))


def _noted(seen: Seen, name: str, value: fastjson.Value) -> None:
    """Each leaf of a body."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            _noted(seen, f"{name}.{key}", one)
    elif isinstance(value, list) and value:
        for number, one in enumerate(value):
            _noted(seen, f"{name}.{number}", one)
    else:
        seen.note(name, value)


__all__ = ["lookups", "routes"]
