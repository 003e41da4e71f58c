"""Where a node answers otherwise than RocketMQ, on purpose: docs/remoting.md says why.

A difference that is not here fails the test, and so does one here that is not found any more. For
each row of the table there: what was asked for and noted, what RocketMQ says, what a node says; `*`
stands for any text, `-` for nothing.
"""

from collections.abc import Mapping

from tests.conformance.differential.comparing import Known

Rows = Mapping[str, tuple[str, ...]]

OF_BOTH: Rows = {
    "the properties `CLUSTER`": (
        "*: property CLUSTER | DefaultCluster | -",
        "send with CLUSTER, delivered: property CLUSTER | DefaultCluster | other",
        "send with RETRY_TOPIC, delivered: property RETRY_TOPIC | Other | -",
        "send with DLQ_ORIGIN, delivered: property DLQ_ORIGIN_* | * | -",
    ),
    "the property `__CRC32#`": ("*: property __CRC32# | - | *",),
    "properties of messages that waited": (
        "*: property DELAY | * | -",
        "*: property REAL_* | * | -",
        "*: property WAIT | * | -",
        "*: property PGROUP | * | -",
        "*: property TRANSACTION_CHECK_TIMES | * | -",
        "attempt *: delay level | * | 0",
        "dead letter of j-orderly: delay level | * | 0",
        "delivered late: delay level | 3 | 0",
        "a*: wait | false | true",
        "dead letter of j-failing: wait | false | true",
    ),
    "the properties `DLQ_ORIGIN_TOPIC`": (
        "*: property DLQ_ORIGIN_TOPIC | - | *",
        "*: property DLQ_ORIGIN_MESSAGE_ID | - | *",
        "the dead letter of level -1: property RETRY_TOPIC | R | -",
    ),
    "the flag of a half message": (
        "committed asked: flag, sysFlag | 0, 8 | 7, 8",
        "message committed after a check: flag | 0 | 5",
    ),
    "topics, queues and groups that do not exist": (
        "* of a negative queue: code | 0 | 1",
        "* of a queue beyond the last: code | 0 | 1",
        "* of a topic that is not there: code | 0 | 17",
        "commit to a queue beyond the last: code | 0 | 1",
        "committed, to a queue beyond the last: code | 0 | 1",
        "query of a topic that is not there: code | 22 | 17",
        "lock of a*: queues | * | []",
        "lock of an unknown group: code | 0 | 1",
        "send back of an*group: code | 0 | 1",
        "* of queue 99 | 0 | MQClientException -1 for 1",
        "earliest time of queue 99 | false | MQClientException -1 for 1",
    ),
    "fields that are missing or wrong": (
        "commit negative: code | 0 | 1",
        "heartbeat of a group with bad characters: code | 0 | 13",
        "heartbeat without a client: code | 0 | 1",
        "leave without a client: code | 0 | 1",
        "query without a*: code | 22 | 1",
        "route without a topic, *: code | 17 | 1",
        "send born before 1970: code | 0 | 13",
        "send tried a negative number of times, delivered: reconsumeTimes | -5 | 0",
        "send with properties that are none: code | 0 | 13",
        "send without its group: code | 0 | 1",
        "send said to be committed, delivered: sysFlag | 8 | 0",
        "pull with a kind in small letters: bodies | * | b'89'",
        "topic with fewer queues: code | 0 | 1",
        "topic without queues: code | 0 | 1",
    ),
    "batches": (
        "batch with a delayed message: code | 0 | 13",
    ),
    "a transaction's decision": (
        "decision of another id: code | 0 | 1",
        "decision without its id: code | 0 | 1",
        "decision of another place: code | 1 | 0",
        "decision of another queue offset: code | 1 | 22",
        "decision of no such message: code | 1 | 22",
    ),
    "topics of the system": (
        "pull of RMQ_SYS_TRANS_HALF_TOPIC: code | 0 | 17",
        "pull of SCHEDULE_TOPIC_XXXX: code | 19 | 17",
        "send to TBW102: code | 0 | 16",
    ),
    "a topic whose `perm` has no 2": (
        "send to a topic that may not be written: code | 0 | 16",
        "send to a queue of a closed topic | SEND_OK | MQBrokerException 16",
    ),
    "pulls with SQL92 that cannot be parsed": (
        "pull with SQL that is none: code | 0 | 23",
        "pull by SQL that is none | FOUND * | MQBrokerException 23",
    ),
    "where a pull with tags goes on": ("pull of a tag | FOUND 8 * | FOUND 9 *",),
    "a lookup by `_UNIQUE_KEY_QUERY`": ("query unique, unknown: code | 0 | 22",),
    "fields of responses": (
        "query *: indexLastUpdate* | * | -",
        "route *topicSynFlag | - | 0",
        "*: MSG_REGION | DefaultRegion | -",
        "*: TRACE_ON | true | -",
    ),
    "SQL92: values of properties": (
        "SQL92 \"a > 1 AND (s = 'x' OR b IS NOT NULL)\": selects | C | CH",
        "SQL92 \"a > 1 * s = 'x' * b *\": selects | CG | CGH",
        "SQL92 \"a > 2 OR s = 'y'\": selects | BC | BCHI",
        "SQL92 '(a > 1)': selects | BC | BCDHI",
        "SQL92 '1 < a': selects | BC | BCDHI",
        "SQL92 'a > 1': selects | BC | BCDHI",
        "SQL92 'a > 1L': selects | BC | BCDHI",
        "SQL92 'a < 2': selects | AEJ | ADEJ",
        "SQL92 'a <> 1': selects | BCE | BCDEHI",
        "SQL92 'a = 100': selects | 20 | I",
        "SQL92 'a > -1': selects | ABCJ | ABCDHIJ",
        "SQL92 'a >= 1': selects | ABCJ | ABCDHIJ",
        "SQL92 'a * 1 * 3': selects | ABCJ | ABCDJ",
        "SQL92 'a NOT BETWEEN 1 AND 3': selects | E | EHI",
        "SQL92 'a = a': selects | * | ABCDEFHIJK",
        "SQL92 'a = s': selects | L | 20",
        "SQL92 'NOT b': selects | GH | 20",
    ),
    "SQL92: what is accepted": (
        *(
            f"SQL92 {expression!r}: code | 23 | 0"
            for expression in (
                "'x'", "1", "a > '1'", "s > 'x'", "a BETWEEN 'x' AND 'y'", "s BETWEEN 'x' AND 'y'",
                "a BETWEEN 3 AND 1", "NOT a > 1", "a != 1", "a = NULL", "a > TRUE", "a.b = 1",
                "a > 9223372036854775808",
            )
        ),
        *(
            f"SQL92 {expression!r}: code | 0 | 23"
            for expression in (
                "s LIKE 'x%'", "a + 1 > 2", "a > 1)", "a > 0x10", "a > 1 -- comment",
                "a > 1 /* comment */",
            )
        ),
    ),
}  # fmt: skip

OF_FOUR: Rows = {
    "topics, queues and groups that do not exist": (
        "commit of an unknown group: code | 0 | 1",
        "commit to a topic that is not there: code | 0 | 17",
        "committed, of an unknown group: offset | 1 | 0",
        "committed, to a topic that is not there: code | 0 | 17",
    ),
    "names of other characters": ("send with a*topic*: code | 1 | 13",),
    "the property `MSG_REGION`": ("*: property MSG_REGION | - | DefaultRegion",),
    "batches": (
        "batch of more than 4 MiB: code | 13 | 0",
        "batch to a retry topic: code | 0 | 13",
    ),
    "`transactionId` of what was sent": (
        "half message *: transactionId | - | *",
        "half * | SEND_OK null | SEND_OK <id of *",
    ),
    "an offset by time": (
        "offset by time, in an hour: offset | 9 | 10",
        "offset by time, just after the fifth: offset | 4 | 5",
        "offset by time, just after the last: offset | 9 | 10",
        "offset by a later time of queue 0 | 9 | 10",
    ),
    "what came with RocketMQ 5": (
        "lite pull: code | 3 | 0",
        "committed, nothing, not zero: code | 0 | 22",
        "SQL92 \"s CONTAINS 'y'\": selects | 20 | BK",
        "SQL92 \"s ENDSWITH 'z'\": selects | 20 | K",
        "SQL92 \"s STARTSWITH 'x'\": selects | 20 | ACK",
        "SQL92 \"s NOT CONTAINS 'y'\": code | 23 | 0",
    ),
}

OF_FIVE: Rows = {
    "topics, queues and groups that do not exist": (
        "commit of an unknown group: code | 26 | 1",
        "committed, to a topic that is not there: code | 22 | 17",
    ),
    "batches": (
        "batch of more than 4 MiB: code | 1 | 0",
        "delivered batch*: id | <an id> | <id * of sent in a batch>",
        "delivered batch*: property UNIQ_KEY | <an id> | <id * of sent in a batch>",
    ),
    "`transactionId` of what was sent": (
        "*: transactionId | * | -",
        "sent*: transactionId | * | null",
    ),
    "what RocketMQ 5 does otherwise than 4.9": (
        "*: property TRACE_ON | true | -",
        "*: property UNIQ_KEY | <an id> | -",
        "*: property __transactionId__ | * | -",
        "*: topicSysFlag | 0 | -",
        "*: groupSysFlag | 0 | -",
        "*: forbiddenType | * | -",
        "*enableActingMaster | False | -",
        "heartbeat*: IS_SU* | true | -",
        "check: bname | broker-a | -",
        "check: topic | * | -",
        "* to a queue beyond the last: code | 29 | 1",
        "pull of a*queue*: code | 29 | 1",
        "* that is not there | MQBrokerException 29 | MQBrokerException 1",
        "send with a*topic*: code | 29 | 13",
        "topic *: code | 29 | 1",
        "commit without its offset: code | 29 | 1",
        "committed, n*: code | 22 | 0",
        "pull of a group with bad characters: code | 26 | 0",
        "pull of a negative number: code | 0 | 1",
        "send without a body: code | 1 | 0",
        "sent to a retry topic, attempt 2 delivered: * | * | -",
        "sent to a retry topic, attempt 3 delivered: * | * | -",
        "sent to a retry topic, attempt 2 given up: * | - | *",
        "sent to a retry topic, attempt 3 given up: * | - | *",
        "delivered without a wait: wait | false | true",
    ),
}


def _known(rows: Rows, version: str = "") -> list[Known]:
    parted = ((row, line.rsplit(" | ", 2)) for row, lines in rows.items() for line in lines)
    return [Known(row, names, theirs, ours, version) for row, (names, theirs, ours) in parted]


KNOWN = (*_known(OF_BOTH), *_known(OF_FOUR, "4"), *_known(OF_FIVE, "5"))

__all__ = ["KNOWN"]
