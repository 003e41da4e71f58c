"""What is delivered later: delay levels, messages that are sent back, half messages."""

import asyncio
import json
import time
from typing import Any

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.store.record import Record, parse_message_id
from tests.compat.remoting.client import records
from tests.conformance.differential.seen import plain
from tests.conformance.differential.session import Cases, Session, properties

LEVELS_MS = (1000, 2000, 1000)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
OWN = {"KEYS": "k", "TAGS": "red", "own": "v", "UNIQ_KEY": "0A0000010000000000000000000000B1"}
ALL_SECONDS = 60.0
DECIDERS, CHECK_SECONDS = "deciders", 60.0


def place(sent: Command) -> int:
    """Where the log has a message that was sent."""
    return parse_message_id(sent.fields["msgId"])[1]


async def delays(session: Session) -> None:
    """Each level, one beyond the last, and one below the first."""
    began = {}
    for level in (1, 2, 99, -1):
        topic = await session.topic(f"D{level}")
        began[level] = time.monotonic()
        sent = await session.send(topic, b"late", properties(DELAY=level, **OWN), queueId=2)
        session.seen.answer(f"send with level {level}", sent, "queueOffset")
    for level, since in began.items():
        (record,) = await session.delivered(f"D{level}", queue=2)
        waited = 1000 * (time.monotonic() - since)
        session.seen.record(f"delayed by level {level}", record)
        wanted = LEVELS_MS[level - 1] if 0 < level <= len(LEVELS_MS) else 0
        session.seen.note(f"delayed by level {level}: early", waited < wanted - 20)


# -- messages that are sent back -------------------------------------------------------------------


async def retries(session: Session) -> None:
    """A message that fails until it is a dead letter, and requests that send back wrongly."""
    topic, group = await session.topic("R"), "failing"
    await session.group(group, retryMaxTimes=3)
    sent = await session.send(topic, b"again", properties(**OWN), queueId=1)
    (first,) = await session.delivered(topic, queue=1)
    assert first.physical_offset == place(sent)
    back = {
        "group": group, "originTopic": topic, "originMsgId": OWN["UNIQ_KEY"], "delayLevel": 0,
        "offset": first.physical_offset, "unitMode": "false", "maxReconsumeTimes": 2,
    }  # fmt: skip
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    for attempt in (1, 2):
        await session.note(f"send back {attempt}", code, {**back, "delayLevel": attempt})
        found = await session.delivered(f"%RETRY%{group}", attempt)
        session.seen.note(f"attempt {attempt}: messages", len(found))
        if len(found) < attempt:
            return
        session.seen.record(f"attempt {attempt}", found[-1])
        back["offset"] = found[-1].physical_offset
    await session.note("send back 3", code, back)
    await _dead(session, group, "the dead letter")
    await _sent_back(session, topic, first.physical_offset)


async def _dead(session: Session, group: str, name: str) -> None:
    """The dead letter of a group."""
    (record,) = await session.delivered(f"%DLQ%{group}")
    session.seen.record(name, record)


async def _sent_back(session: Session, topic: str, offset: int) -> None:
    """CONSUMER_SEND_MSG_BACK of other kinds."""
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    await session.group("dead")
    await session.group("none", retryQueueNums=0)
    good = {"group": "dead", "originTopic": topic, "delayLevel": 0, "offset": offset}
    await session.note("send back to the dead letters", code, {**good, "delayLevel": -1})
    await _dead(session, "dead", "the dead letter of level -1")
    cases: Cases = {
        "of no such message": {"offset": 1 << 40},
        "within a message": {"offset": offset + 1},
        "before the log": {"offset": -1},
        "of an unknown group": {"group": "unknown7"},
        "of an empty group": {"group": ""},
        "of a group without a retry topic": {"group": "none"},
        "without its offset": {"offset": None},
        "without its group": {"group": None},
        "without its level": {"delayLevel": None},
        "of a high level": {"delayLevel": 99},
    }
    for name, fields in cases.items():
        row = {key: value for key, value in {**good, **fields}.items() if value is not None}
        await session.note(f"send back {name}", code, row)


async def sent_to_retry_topics(session: Session) -> None:
    """What clients do where sending back fails: they send to the retry topic themselves."""
    group = "resending"
    await session.group(group, retryMaxTimes=3)
    more = {"RETRY_TOPIC": "R2", "ORIGIN_MESSAGE_ID": OWN["UNIQ_KEY"], "RECONSUME_TIME": 1}
    await session.topic("R2")
    cases: Cases = {
        "first": {"reconsumeTimes": 1, "maxReconsumeTimes": 2},
        "too often": {"reconsumeTimes": 2, "maxReconsumeTimes": 2},
        "too often for the group": {"reconsumeTimes": 3},
    }
    for name, fields in cases.items():
        text = properties(**OWN, **more, DELAY=1)
        sent = await session.send(f"%RETRY%{group}", b"again", text, **fields)
        session.seen.answer(f"send to a retry topic, {name}", sent, "queueOffset")
    places = {"delivered": f"%RETRY%{group}", "given up": f"%DLQ%{group}"}
    found: dict[str, list[Record]] = {}
    end = time.monotonic() + ALL_SECONDS
    while sum(map(len, found.values())) < 3 and time.monotonic() < end:
        for word, topic in places.items():
            found[word] = await session.delivered(topic, 3, seconds=0.2)
    for word, ended in found.items():
        for record in ended:
            name = f"sent to a retry topic, attempt {record.reconsume_times} {word}"
            session.seen.record(name, record, "queueOffset")


# -- transactions ----------------------------------------------------------------------------------


def half(number: int, **more: Any) -> str:
    """Properties of a half message of the producers of the transactions."""
    own = {**OWN, "UNIQ_KEY": f"0A0000010000000000000000000000C{number}"}
    return properties(TRAN_MSG="true", PGROUP=DECIDERS, **own, **more)


def decision(sent: Command, number: int, kind: int, **more: Any) -> dict[str, Any]:
    """Fields of END_TRANSACTION."""
    fields = {
        "producerGroup": DECIDERS,
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": place(sent),
        "commitOrRollback": kind,
        "fromTransactionCheck": "false",
        "msgId": f"0A0000010000000000000000000000C{number}",
        **more,
    }
    return {name: value for name, value in fields.items() if value is not None}


async def transactions(session: Session) -> None:
    """Half messages that are decided at once, and one whose producer is asked."""
    topic = await session.topic("X")
    seen, end = session.seen, RequestCode.END_TRANSACTION
    sent = {number: await _half(session, topic, number) for number in (0, 1, 3)}
    cases: Cases = {
        "of another group": {"producerGroup": "others"},
        "of another place": {"commitLogOffset": place(sent[1])},
        "of another queue offset": {"tranStateTableOffset": 1 << 30},
        "of no such message": {"commitLogOffset": 1 << 40, "tranStateTableOffset": 1 << 40},
        "without its group": {"producerGroup": None},
        "of another id": {"msgId": OWN["UNIQ_KEY"]},
        "without its id": {"msgId": None},
    }
    for name, fields in cases.items():
        await session.note(f"decision {name}", end, decision(sent[3], 3, ROLLBACK, **fields))
    session.tell(end, decision(sent[0], 0, UNKNOWN))  # RocketMQ does not answer it
    await session.note("commit", end, decision(sent[0], 0, COMMIT))
    (record,) = await session.delivered(topic, queue=0)
    seen.record("committed message", record, "prepared")  # which may be the first place of all
    await session.note("rollback", end, decision(sent[1], 1, ROLLBACK))
    await _asked(session, topic)


async def _half(session: Session, topic: str, number: int) -> Command:
    now = int(1000 * time.time())  # RocketMQ asks for no old ones
    more = {"queueId": number, "producerGroup": DECIDERS, "bornTimestamp": now}
    sent = await session.send(topic, b"half%d" % number, half(number), **more)
    session.seen.answer(f"half message {number}", sent, "queueOffset")
    return sent


async def _asked(session: Session, topic: str) -> None:
    """A producer that is in the group is asked for one that is undecided."""
    rows = [{"groupName": DECIDERS}]
    body = json.dumps({"clientID": "decider", "producerDataSet": rows}).encode()
    await session.ask(RequestCode.HEART_BEAT, body=body)
    sent = await _half(session, topic, 2)
    session.tell(RequestCode.END_TRANSACTION, decision(sent, 2, 99))
    asked = await _check(session)
    if asked is None:
        session.seen.note("check", "none")
        return
    session.seen.note("check: oneway", asked.is_oneway)
    for name, value in sorted(asked.fields.items()):
        session.seen.note(f"check: {name}", plain(name, value))
    (record,) = records(asked.body)
    session.seen.record("checked message", record, "queueOffset")
    fields = decision(sent, 2, COMMIT, fromTransactionCheck="true")
    fields["tranStateTableOffset"] = asked.fields["tranStateTableOffset"]
    fields["commitLogOffset"] = asked.fields["commitLogOffset"]
    await session.note("commit after a check", RequestCode.END_TRANSACTION, fields)
    (record,) = await session.delivered("X", queue=2)
    session.seen.record("message committed after a check", record)


async def _check(session: Session) -> Command | None:
    """The check of that half message; others may be asked for, too."""
    end = time.monotonic() + CHECK_SECONDS
    while (left := end - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                told: Command = await session.told.get()
        except TimeoutError:
            return None
        if told.code != RequestCode.CHECK_TRANSACTION_STATE:
            continue
        (record,) = records(told.body)
        if record.body == b"half2":
            return told
    return None


__all__ = ["delays", "retries", "sent_to_retry_topics", "transactions"]
