"""What stands in the way of a move, and the cluster as its name server describes it."""

import json
from dataclasses import replace

import duolog
import pytest

from duolog_server.compat.migration.late_offsets import late_offsets
from duolog_server.compat.migration.preconditions import Remark, remarks, user_topics
from duolog_server.compat.migration.rocketmqbroker import (
    BadAnswer,
    BrokerFacts,
    Runtime,
    brokers_of,
    facts_of,
    parsed,
)
from duolog_server.store.metadata import Metadata, TopicConfig
from duolog_server.store.metadatafiles import OFFSETS
from tests.compat.migration.master import SEGMENT, HandMaster, serving
from tests.support import SMALL

SETTINGS = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
    "mappedFileSizeCommitLog": str(SEGMENT),
    "messageDelayLevel": SMALL.message_delay_level,
    "maxMessageSize": str(SMALL.max_message_size),
}
FACTS = BrokerFacts("broker-a", "10.0.0.1:10911", "", Runtime(0, 99, "V4_9_7"), SETTINGS)


def _topics(*names: str) -> Metadata:
    return Metadata(topics={name: TopicConfig(name) for name in names})


def _revived() -> Metadata:
    """Of a broker that has stored messages of POP again."""
    topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
    tables = _topics(topic)
    tables.offsets = {(topic, "CID_RMQ_SYS_REVIVE_GROUP"): {0: 0}}
    return tables


def _said(facts: BrokerFacts, group: str = "broker-a") -> list[Remark]:
    return remarks(facts, SMALL, group)


def test_nothing_is_said_of_a_broker_that_can_be_moved_as_it_is() -> None:
    assert _said(replace(FACTS, tables=_topics("T", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"))) == []
    without = {**SETTINGS, "aclEnable": "false", "authenticationEnabled": "false"}
    assert _said(replace(FACTS, settings=without)) == []
    as_by_default = {
        "enableRetryTopicV2": "false",
        "popConsumerKVServiceEnable": "false",
        "defaultMessageRequestMode": "PULL",
        "messageStorePlugIn": "",
        "enableSlaveActingMaster": "false",
        "enableLmq": "false",
        "storeType": "defaultRocksDB",  # queues are built of the log
        "timerMaxDelaySec": "259200",
    }
    assert _said(replace(FACTS, settings={**SETTINGS, **as_by_default})) == []
    lite = {"settings": {**SETTINGS, "enableLmq": "true"}}
    assert _said(replace(FACTS, **lite, attributes={"L": {"message.type": "LITE"}})) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"problem": "connection refused"}, "does not answer: connection refused"),
        ({"settings": {**SETTINGS, "enableDLegerCommitLog": "true"}}, "DLedger"),
        ({"settings": {**SETTINGS, "mappedFileSizeCommitLog": "1"}}, "segments have 1 bytes"),
        ({"attributes": {"B": {"queue.type": "BatchCQ"}}}, "topic B has batch consume queues"),
        ({"attributes": {"C": {"cleanup.policy": "COMPACTION"}}}, "C is compacted"),
        ({"static_topics": ("S",)}, "S is static"),
        ({"tables": _revived()}, "consumed by POP, and some not acknowledged"),
        ({"popping": (("T", "g"),)}, "group g reads topic T by POP"),
        ({"settings": {**SETTINGS, "defaultMessageRequestMode": "POP"}}, "pull here"),
        ({"settings": {**SETTINGS, "enableRetryTopicV2": "true"}}, "%RETRY%<group>+<topic>"),
        ({"settings": {**SETTINGS, "popConsumerKVServiceEnable": "true"}}, "leases of POP"),
        ({"settings": {**SETTINGS, "timerRocksDBEnable": "true"}}, "timed messages"),
        ({"settings": {**SETTINGS, "transRocksDBEnable": "true"}}, "half messages"),
        ({"settings": {**SETTINGS, "enableSlaveActingMaster": "true"}}, "slaves act as master"),
        ({"settings": {**SETTINGS, "enableLmq": "true"}}, "%LMQ%"),
        (
            {"settings": {**SETTINGS, "messageStorePlugIn": "a.b.TieredMessageStore"}},
            "a tiered store",
        ),
    ],
)
def test_what_must_be_changed_first_comes_first(change: dict[str, object], what: str) -> None:
    tables = _topics("x" * 200)
    found = _said(replace(FACTS, **{"tables": tables, **change}))  # type: ignore[arg-type]
    assert found[0].blocks
    assert what in found[0].what
    assert not any(remark.blocks for remark in found[1:])


def test_the_replica_group_has_the_brokers_name() -> None:
    assert _said(FACTS, "other")[0].do == "--set node.group=broker-a"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"settings": {**SETTINGS, "messageDelayLevel": "1s 2s"}}, "messageDelayLevel is '1s 2s'"),
        ({"settings": {**SETTINGS, "aclEnable": "true"}}, "users (ACL)"),
        ({"settings": {**SETTINGS, "authenticationEnabled": "true"}}, "users (ACL)"),
        ({"tables": _topics("t" * 128)}, "more than 127 bytes"),
        ({"settings": {**SETTINGS, "timerMaxDelaySec": "864000"}}, "timerMaxDelaySec is 864000"),
        ({"tables": _topics("rmq_sys_REVIVE_LOG_DefaultCluster")}, "POP"),
        ({"tables": _topics("rmq_sys_wheel_timer")}, "timerWheelEnable"),
    ],
)
def test_what_is_worth_knowing_blocks_nothing(change: dict[str, object], what: str) -> None:
    (found,) = _said(replace(FACTS, **change))  # type: ignore[arg-type]
    assert what in found.what
    assert not found.blocks


def test_the_topics_of_users_are_those_they_made() -> None:
    made = _topics("b", "a", "%RETRY%g", "%DLQ%g", "TBW102", "broker-a", "DefaultCluster")
    assert user_topics(replace(FACTS, tables=made)) == ["a", "b"]


async def test_a_cluster_is_read_from_its_name_server() -> None:
    async with serving(HandMaster(b"x" * 99)) as master:
        assert await brokers_of(master.address) == {"broker-a": master.address}
        found = await facts_of("broker-a", master.address)
        assert (found.problem, found.runtime) == ("", Runtime(0, 99, "V4_9_7"))
        assert found.tables.topics["T"].queues == 4
        assert (found.static_topics, found.popping) == ((), ())
        master.refused.add(201)
        assert "not today" in (await facts_of("broker-a", master.address)).problem


async def test_static_topics_and_groups_that_pop_are_read_from_a_broker_of_rocketmq_5() -> None:
    master = HandMaster(b"x" * 99)
    modes = {"g": {"mode": "POP", "popShareQueueNum": 0}, "h": {"mode": "PULL"}}
    master.tables[402] = json.dumps({"messageRequestModeMap": {"T": modes}}).encode()
    table = json.loads(master.tables[21])
    mapped = {"topicQueueMappingDetailMap": {"S": {"topic": "S", "totalQueues": 8}}}
    master.tables[21] = json.dumps({**table, **mapped}).encode()
    async with serving(master):
        found = await facts_of("broker-a", master.address)
        assert (found.problem, found.static_topics, found.popping) == ("", ("S",), (("T", "g"),))
        master.tables[402] = b"["
        assert "not JSON" in (await facts_of("broker-a", master.address)).problem


async def test_a_table_that_only_one_reader_takes_is_told() -> None:
    master = HandMaster(b"x" * 99)
    master.tables[21] = b'{"topicConfigTable":{},"more":NaN}'
    async with serving(master):
        assert "table of topics" in (await facts_of("broker-a", master.address)).problem


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerAddrTable":1}', b"{"])
async def test_an_odd_answer_is_told(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandMaster, "_body", lambda self, code: body)
    async with serving(HandMaster(b"")) as master:
        with pytest.raises(BadAnswer):
            await brokers_of(master.address)
        assert (await facts_of("broker-a", master.address)).problem


def test_late_offsets_only_go_forward() -> None:
    queues = tuple(
        duolog.GroupQueue("T", "broker-a", number, committed, 0, 100)
        for number, committed in enumerate((5, 9, None))
    )
    here = [duolog.GroupDescription("g", 0, queues)]
    old = Metadata()
    old.offsets = {
        ("T", "g"): {0: 7, 1: 9, 2: 0, 3: 4, 9: 4},
        ("T", "h"): {0: 1},
        ("gone", "g"): {0: 1},
        ("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 3},
    }
    ends = {("T", 0): 7, ("T", 1): 10, ("T", 2): 0, ("T", 3): 4}
    found = late_offsets(old, {**ends, ("RMQ_SYS_TRANS_HALF_TOPIC", 0): 9}, here, "broker-a")
    assert found.moved == {
        "g": {("T", "broker-a", 0): 7, ("T", "broker-a", 3): 4},
        "h": {("T", "broker-a", 0): 1},
    }
    assert found.beyond == 0


def test_offsets_beyond_the_end_of_their_queues_are_those_of_another_log() -> None:
    old = Metadata()
    old.offsets = {("T", "g"): {0: 8, 1: 3}}
    found = late_offsets(old, {("T", 0): 7, ("T", 1): 3}, [], "broker-a")
    assert found.moved == {"g": {("T", "broker-a", 1): 3}}
    assert found.beyond == 1


def test_offsets_that_no_group_commits_are_left_out() -> None:
    """RocketMQ 5 notes where broadcasting members of a group read, under a name of no group."""
    rows = {"T@g": {0: 5}, "T@g@broadcast": {0: 7}}
    old = parsed({OFFSETS: json.dumps({"offsetTable": rows}).encode()})
    assert late_offsets(old, {("T", 0): 9}, [], "broker-a").moved == {
        "g": {("T", "broker-a", 0): 5}
    }
