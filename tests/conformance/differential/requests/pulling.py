"""Pulls, and offsets of queues and groups."""

import asyncio
import json
from typing import Any

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from tests.compat.remoting.client import records
from tests.conformance.differential.session import (
    GROUP,
    HAS_SUBSCRIPTION,
    SUSPENDS,
    Cases,
    Session,
    properties,
    pull_fields,
)

TOPIC, COUNT = "P", 10  # queue 0 has messages, the others have none
HOLD_MS = 300
COMMITS = 1
PULLS: dict[str, dict[str, Any]] = {
    "from the first message": {},
    "from the middle": {"queueOffset": 5},
    "of three": {"maxMsgNums": 3},
    "of none": {"maxMsgNums": 0},
    "of a negative number": {"maxMsgNums": -1},
    "of 1,000": {"maxMsgNums": 1000},
    "at the end": {"queueOffset": COUNT},
    "just beyond the end": {"queueOffset": COUNT + 1},
    "far beyond the end": {"queueOffset": 1000},
    "before the beginning": {"queueOffset": -1},
    "far before the beginning": {"queueOffset": -(1 << 40)},
    "of an empty queue": {"queueId": 1},
    "of an empty queue, beyond its end": {"queueId": 1, "queueOffset": 5},
    "of an empty queue, before its beginning": {"queueId": 1, "queueOffset": -1},
    "of a queue beyond the last": {"queueId": 9},
    "of a negative queue": {"queueId": -1},
    "of a topic that is not there": {"topic": "Nowhere"},
    "of a topic that may not be read": {"topic": "PClosed"},
    "of a topic with an empty name": {"topic": ""},
    "of SCHEDULE_TOPIC_XXXX": {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": 17},
    "of RMQ_SYS_TRANS_HALF_TOPIC": {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"},
    "of an unknown group": {"consumerGroup": "unknown"},
    "of an empty group": {"consumerGroup": ""},
    "of a group with bad characters": {"consumerGroup": "a b"},
    "of a group that may not consume": {"consumerGroup": "closed"},
    "with one tag": {"subscription": "a"},
    "with two tags": {"subscription": "a || b"},
    "with two tags without spaces": {"subscription": "a||b"},
    "with an unknown tag": {"subscription": "z"},
    "with an unknown tag, of two": {"subscription": "z", "maxMsgNums": 2},
    "with an empty tag": {"subscription": ""},
    "with bars alone": {"subscription": "||"},
    "with a bar behind": {"subscription": "a||"},
    "with a bar before": {"subscription": "|| a || || b"},
    "with an unknown kind": {"expressionType": "X"},
    "with a kind in small letters": {"expressionType": "sql92", "subscription": "n > 7"},
    "with an empty kind": {"expressionType": ""},
    "without a kind": {"expressionType": None},
    "with SQL": {"expressionType": "SQL92", "subscription": "n > 7"},
    "with SQL that is none": {"expressionType": "SQL92", "subscription": "n > > 7"},
    "with empty SQL": {"expressionType": "SQL92", "subscription": ""},
    "without a subscription": {"subscription": None},
    "by a heartbeat that did not come": {"sysFlag": 0},
    "without its topic": {"topic": None},
    "without its group": {"consumerGroup": None},
    "without its queue": {"queueId": None},
    "without its offset": {"queueOffset": None},
    "without its flags": {"sysFlag": None},
    "with an offset that is no number": {"queueOffset": "x"},
    "that waits in vain": {
        "queueOffset": COUNT,
        "sysFlag": HAS_SUBSCRIPTION | SUSPENDS,
        "suspendTimeoutMillis": HOLD_MS,
    },
    "of the dead letters of no group": {"topic": "%DLQ%noone"},
    "of the retry topic of no group": {"topic": "%RETRY%noone"},
}
OF_QUEUES = {
    "first": RequestCode.GET_MIN_OFFSET,
    "end": RequestCode.GET_MAX_OFFSET,
    "earliest time": RequestCode.GET_EARLIEST_MSG_STORETIME,
}
QUEUES: dict[str, dict[str, Any]] = {
    "of a queue": {"topic": TOPIC, "queueId": 0},
    "of an empty queue": {"topic": TOPIC, "queueId": 1},
    "of a queue beyond the last": {"topic": TOPIC, "queueId": 9},
    "of a negative queue": {"topic": TOPIC, "queueId": -1},
    "of a topic that is not there": {"topic": "Nowhere2", "queueId": 0},
    "without a queue": {"topic": TOPIC},
}


async def pulls(session: Session) -> None:
    """PULL_MESSAGE and LITE_PULL_MESSAGE, of a queue with messages and of others."""
    await session.topic(TOPIC)
    await session.topic("PClosed", perm=2)
    await session.group("closed", consumeEnable=False)
    for number in range(COUNT):
        text = properties(TAGS="ab"[number % 2], n=number)
        await session.send(TOPIC, b"%d" % number, text)
        await asyncio.sleep(0.005)  # each has another time
    await session.delivered(TOPIC, COUNT)
    for name, fields in PULLS.items():
        await _pulled(session, f"pull {name}", pull_fields(**{"topic": TOPIC, **fields}))
    lite = pull_fields(TOPIC, sysFlag=HAS_SUBSCRIPTION | 16)
    await _pulled(session, "lite pull", lite, RequestCode.LITE_PULL_MESSAGE)
    await _offsets(session)


async def _pulled(
    session: Session, name: str, fields: dict[str, Any], code: int = RequestCode.PULL_MESSAGE
) -> None:
    answer = await session.note(name, code, fields)
    if answer.code == ResponseCode.SUCCESS:
        session.seen.note(f"{name}: bodies", b"".join(one.body for one in records(answer.body)))


async def _offsets(session: Session) -> None:
    for asked, code in OF_QUEUES.items():
        for name, fields in QUEUES.items():
            await session.note(f"{asked} {name}", code, fields)
    await _times(session)
    await _commits(session)


async def _times(session: Session) -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP."""
    times = [one.store_time for one in await session.delivered(TOPIC, COUNT)]
    asked: dict[str, dict[str, Any]] = {
        "0": {"timestamp": 0},
        "before all": {"timestamp": times[0] - 1},
        "of the first": {"timestamp": times[0]},
        "of the fifth": {"timestamp": times[4]},
        "just before the fifth": {"timestamp": times[4] - 1},
        "just after the fifth": {"timestamp": times[4] + 1},
        "of the last": {"timestamp": times[-1]},
        "just after the last": {"timestamp": times[-1] + 1},
        "in an hour": {"timestamp": times[-1] + 3_600_000},
        "negative": {"timestamp": -1},
        "of an empty queue": {"timestamp": times[0], "queueId": 1},
        "of a queue beyond the last": {"timestamp": times[0], "queueId": 9},
        "of a topic that is not there": {"timestamp": times[0], "topic": "Nowhere3"},
        "missing": {},
    }
    for name, fields in asked.items():
        row = {"topic": TOPIC, "queueId": 0, **fields}
        await session.note(f"offset by time, {name}", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, row)


async def _commits(session: Session) -> None:
    """QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, and the commit in a pull."""
    await session.group("commits")
    cases: Cases = {
        "good": {"commitOffset": 5},
        "backwards": {"commitOffset": 3},
        "beyond the end": {"commitOffset": 1000, "queueId": 2},
        "negative": {"commitOffset": -5, "queueId": 3},
        "to a queue beyond the last": {"commitOffset": 1, "queueId": 9},
        "to a topic that is not there": {"commitOffset": 1, "topic": "Nowhere4"},
        "of an unknown group": {"commitOffset": 1, "consumerGroup": "unknown2"},
        "without its offset": {},
    }
    for name, fields in cases.items():
        row = {"consumerGroup": "commits", "topic": TOPIC, "queueId": 0, **fields}
        await session.note(f"commit {name}", RequestCode.UPDATE_CONSUMER_OFFSET, row)
        row.pop("commitOffset", None)
        await session.note(f"committed, {name}", RequestCode.QUERY_CONSUMER_OFFSET, row)
    cases = {
        "nothing": {"queueId": 1},
        "nothing, not zero": {"queueId": 1, "setZeroIfNotFound": "false"},
        "in an unknown group": {"consumerGroup": "unknown3"},
        "without its group": {"consumerGroup": ""},
    }
    for name, fields in cases.items():
        row = {"consumerGroup": "commits", "topic": TOPIC, "queueId": 0, **fields}
        await session.note(f"committed, {name}", RequestCode.QUERY_CONSUMER_OFFSET, row)
    with_commit = pull_fields(
        TOPIC,
        consumerGroup="commits",
        sysFlag=HAS_SUBSCRIPTION | COMMITS,
        commitOffset=7,
    )
    await _pulled(session, "pull that commits", with_commit)
    row = {"consumerGroup": "commits", "topic": TOPIC, "queueId": 0}
    await session.note("committed, by a pull", RequestCode.QUERY_CONSUMER_OFFSET, row)


async def held(session: Session) -> None:
    """A pull that waits, and is answered by the message that it waits for."""
    topic = await session.topic("PHeld")
    waiting = [asyncio.ensure_future(_held(session, topic, tag)) for tag in "ab"]
    await asyncio.sleep(0.3)
    for tag in ("a", "b"):
        await session.send(topic, tag.encode(), properties(TAGS=tag))
    for tag, answer in zip("ab", await asyncio.gather(*waiting), strict=True):
        session.seen.answer(f"held pull of tag {tag}", answer, "maxOffset", "nextBeginOffset")
        bodies = [one.body for one in records(answer.body)]
        session.seen.note(f"held pull of tag {tag}: bodies", bodies)


async def _held(session: Session, topic: str, tag: str) -> Command:
    """The answer with a message of a tag. A side that stood still sees another one before the pull,
    and has it begin again behind that.
    """
    fields = pull_fields(
        topic,
        sysFlag=HAS_SUBSCRIPTION | SUSPENDS,
        suspendTimeoutMillis=15_000,
        subscription=tag,
    )
    answer = await session.ask(RequestCode.PULL_MESSAGE, fields)
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        fields["queueOffset"] = answer.fields["nextBeginOffset"]
        answer = await session.ask(RequestCode.PULL_MESSAGE, fields)
    return answer


async def check(session: Session, name: str, expression: str, kind: str) -> Command:
    """CHECK_CLIENT_CONFIG."""
    row = {"topic": TOPIC, "subString": expression, "subVersion": 1, "expressionType": kind}
    data = {**row, "tagsSet": [], "codeSet": [], "classFilterMode": False}
    body = json.dumps({"clientId": "c", "group": GROUP, "subscriptionData": data}).encode()
    return await session.note(name, RequestCode.CHECK_CLIENT_CONFIG, body=body)


__all__ = ["check", "held", "pulls"]
