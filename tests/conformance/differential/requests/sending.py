"""Sends of every kind, good and bad, and what a consumer then gets.

Each has a topic of its own: what one side alone stores moves no offset of another case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from tests.compat.remoting.requests import write_batch
from tests.conformance.differential.session import (
    Session,
    properties,
    send_fields,
    short,
    topic_fields,
)

MIB = 1 << 20
UNIQUE = "0A0000010000000000000000000000A1"
ONE = ((1, b"one", b"K\x01a"), (2, b"two", b"TAGS\x01red\x02KEYS\x01k"))
IN_BATCH = {
    "good": ONE,
    "of one message": ONE[:1],
    "with WAIT": ((0, b"one", b"WAIT\x01true\x02K\x01v"), *ONE),
    "with a delayed message": (*ONE, (0, b"late", b"DELAY\x011")),
    "with a half message": (*ONE, (0, b"half", b"TRAN_MSG\x01true\x02PGROUP\x01p")),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A send. perm: of its topic; None: there is no such topic."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b"hello"
    perm: int | None = 6
    count: int = 1  # messages that can be read afterwards


def kept(name: str, text: str, **more: Any) -> Case:
    """A message with these properties."""
    return Case(name, {"properties": text, **more})


SYSTEM = properties(
    UNIQ_KEY=UNIQUE, KEYS="k1 k2", TAGS="red", WAIT="true", own="value",
    MSG_REGION="DefaultRegion", TRACE_ON="true", INSTANCE_ID="i", CORRELATION_ID="c",
)  # fmt: skip
CASES: Sequence[Case] = (
    Case("good"),
    kept("with the properties of clients", SYSTEM),
    kept("with properties without an end", "a\x01b\x02c\x01d"),
    kept("with an empty property", "KEYS\x01\x02TAGS\x01A\x02"),
    kept("with properties that are none", "nothing"),
    kept("with a property twice", "a\x01b\x02a\x01c\x02"),
    kept("with WAIT=false", properties(WAIT="false", a="b")),
    kept("with RETRY_TOPIC", properties(RETRY_TOPIC="Other")),
    kept("with DLQ_ORIGIN", properties(DLQ_ORIGIN_TOPIC="Other", DLQ_ORIGIN_MESSAGE_ID="x")),
    kept("with CLUSTER", properties(CLUSTER="other")),
    kept("with REAL_TOPIC", properties(REAL_TOPIC="Other", REAL_QID="3")),
    kept("with ORIGIN_MESSAGE_ID", properties(ORIGIN_MESSAGE_ID=UNIQUE)),
    kept("with MAX_OFFSET", properties(MAX_OFFSET="7", MIN_OFFSET="1")),
    kept("with DELAY=0", properties(DELAY="0")),
    kept("with DELAY=x", properties(DELAY="x")),
    kept("with a name in other letters", properties(**{"größe": "höhe"})),
    kept("with 31,700 bytes of properties", properties(a="b" * 31_700)),
    kept("with 32,760 bytes of properties", properties(a="b" * 32_757)),
    kept("with 33,000 bytes of properties", properties(a="b" * 33_000)),
    kept("with 70,000 bytes of properties", properties(a="b" * 70_000)),
    Case("without a body", body=b""),
    Case("of 4 MiB", body=bytes(4 * MIB)),
    Case("of more than 4 MiB", body=bytes(4 * MIB + 1)),
    Case("compressed", {"sysFlag": 1}),
    Case("with multiple tags", {"sysFlag": 2}),
    Case("said to be committed", {"sysFlag": 8}),
    Case("with zstd", {"sysFlag": 0x201}),
    Case("born now and then", {"bornTimestamp": 0}),
    Case("born before 1970", {"bornTimestamp": -1}),
    Case("with a negative flag", {"flag": -3}),
    Case("tried before", {"reconsumeTimes": 5}),
    Case("tried a negative number of times", {"reconsumeTimes": -5}),
    Case("with unitMode", {"unitMode": "true"}),
    Case("to the last queue", {"queueId": 3}),
    Case("to a queue beyond the last", {"queueId": 4}),
    Case("to any queue", {"queueId": -1}, count=0),
    Case("to a topic that is not there", {"defaultTopic": "Nowhere"}, perm=None),
    Case("to a topic that it makes", perm=None),
    Case("to a topic that may not be written", perm=4),
    Case("to a topic that may not be read", perm=2),
    Case("without its topic", {"topic": None}),
    Case("without its group", {"producerGroup": None}),
    Case("without its queue", {"queueId": None}),
    Case("without its time", {"bornTimestamp": None}),
    Case("without properties", {"properties": None}),
    Case("with a queue that is no number", {"queueId": "x"}),
    Case("with a queue that is no int", {"queueId": 1 << 40}),
    Case("with an empty topic", {"topic": ""}, perm=None),
    Case("with a topic of bad characters", {"topic": "a b"}, perm=None),
    Case("with a topic of 128 characters", {"topic": "t" * 128}, perm=None),
    Case("with an empty group", {"producerGroup": ""}),
    Case("to TBW102", {"topic": "TBW102"}, perm=None, count=0),
    Case("to SCHEDULE_TOPIC_XXXX", {"topic": "SCHEDULE_TOPIC_XXXX"}, perm=None, count=0),
    Case("to RMQ_SYS_TRANS_HALF_TOPIC", {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, perm=None, count=0),
    Case("to the retry topic of no group", {"topic": "%RETRY%nobody"}, perm=None),
    Case("to the dead letters of no group", {"topic": "%DLQ%nobody"}, perm=None, count=0),
)


async def sends(session: Session) -> None:
    """SEND_MESSAGE_V2 of all cases, and some of the other requests that send."""
    for number, case in enumerate(CASES):
        topic = f"S{number}"
        if case.perm is not None:
            await session.topic(topic, perm=case.perm)
        fields = send_fields(**{"topic": topic, **case.fields})
        await _sent(session, case, RequestCode.SEND_MESSAGE_V2, short(fields), fields)
    topic = await session.topic("SLong")
    fields = send_fields(topic, properties=SYSTEM)
    await _sent(session, Case("with long names"), RequestCode.SEND_MESSAGE, fields, fields)
    await _batches(session)
    await _topics(session)
    await session.note("request 9999", 9999)
    more = {**send_fields(await session.topic("SReply")), "storeHost": "127.0.0.1:1"}
    await session.note("request 325", 325, short(send_fields("SReply")), b"hello")
    await session.note("request 324", 324, more, b"hello")


async def _sent(
    session: Session, case: Case, code: int, fields: dict[str, Any], named: dict[str, Any]
) -> None:
    """Send, and read. What nobody may read is not read."""
    name = f"send {case.name}"
    answer = await session.ask(code, fields, case.body)
    left_out = ("queueId",) if named.get("queueId") == -1 else ()
    session.seen.answer(name, answer, *left_out)
    if answer.code != ResponseCode.SUCCESS or not case.count or case.perm == 2:
        return
    queue = int(answer.fields["queueId"])
    for record in await session.delivered(named["topic"], case.count, queue):
        session.seen.record(f"{name}, delivered", record)


async def _batches(session: Session) -> None:
    for number, (name, messages) in enumerate(IN_BATCH.items()):
        topic = await session.topic(f"SB{number}")
        await _batch(session, f"batch {name}", topic, write_batch(list(messages)), len(messages))
    good = write_batch(list(ONE))
    await _batch(session, "batch that ends too early", await session.topic("SB9"), good[:-3], 0)
    await _batch(session, "batch without messages", "SB9", b"", 0)
    await _batch(session, "batch to a queue beyond the last", "SB9", good, 0, queueId=9)
    await _batch(session, "batch to a retry topic", "%RETRY%nobody", good, 0)
    await _batch(
        session, "batch to a topic that is not there", "SBNone", good, 0, defaultTopic="Nowhere"
    )
    large = write_batch([(0, bytes(MIB), b"") for _ in range(5)])
    await _batch(session, "batch of more than 4 MiB", "SB9", large, 0)


async def _batch(
    session: Session, name: str, topic: str, body: bytes, count: int, **more: Any
) -> None:
    fields = short(send_fields(topic, batch="true", **more))
    answer = await session.note(name, RequestCode.SEND_BATCH_MESSAGE, fields, body)
    if answer.code == ResponseCode.SUCCESS and count:
        for number, record in enumerate(await session.delivered(topic, count)):
            session.seen.record(f"{name}, delivered {number}", record)


async def _topics(session: Session) -> None:
    """UPDATE_AND_CREATE_TOPIC, which clients send as createTopic."""
    for name, fields in {
        "good": topic_fields("New", 4, 6),
        "that is there": topic_fields("New", 4, 6),
        "with more queues": topic_fields("New", 8, 6),
        "with fewer queues": topic_fields("New", 2, 6),
        "without queues": topic_fields("New0", 0, 6),
        "with bad characters": topic_fields("a b", 4, 6),
        "without a name": topic_fields("", 4, 6),
        "TBW102": topic_fields("TBW102", 4, 6),
        "SCHEDULE_TOPIC_XXXX": topic_fields("SCHEDULE_TOPIC_XXXX", 4, 6),
    }.items():
        await session.note(f"topic {name}", RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


__all__ = ["sends"]
