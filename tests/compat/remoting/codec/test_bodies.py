"""Bodies: properties, heartbeats, and routes in both dialects."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec.bodies import (
    ConsumerData,
    Subscription,
    member_list,
    read_check,
    read_heartbeat,
)
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.messages import (
    properties_text,
    property_of,
    without,
    without_empty,
)
from duolog_server.compat.remoting.codec.nameserver import (
    BrokerAddresses,
    TopicQueues,
    cluster_info,
    topic_route,
)


def test_properties_are_found_and_left_out_by_their_whole_names() -> None:
    text = properties_text("XDELAY\x01no\x02DELAY\x013\x02WAIT\x01true\x02")
    assert text == b"XDELAY\x01no\x02DELAY\x013\x02WAIT\x01true"
    assert property_of(text, b"DELAY") == "3"
    assert property_of(text, b"LAY") is None
    assert property_of(text, b"WAI") is None
    assert without(text, b"WAIT") == b"XDELAY\x01no\x02DELAY\x013"
    assert without(text, b"DELAY", b"WAIT") == b"XDELAY\x01no"


def test_properties_without_a_value_are_left_out_as_rocketmq_does() -> None:
    assert properties_text("KEYS\x01\x02TAGS\x01A\x02") == b"TAGS\x01A"
    assert properties_text("TAGS\x01A\x02KEYS\x01") == b"TAGS\x01A"
    assert properties_text("KEYS\x01") == b""
    assert properties_text("A\x011\x02B\x01\x02C\x013") == b"A\x011\x02C\x013"
    assert without_empty(b"no pair\x02A\x011") == b"no pair\x02A\x011"


# As RocketMQ 4.9.8's Java client writes it.
HEARTBEAT: dict[str, Any] = {
    "clientID": "10.0.0.1@4711#1",
    "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": "g",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "codeSet": [2598919],
                    "expressionType": "TAG",
                    "subString": "red || blue",
                    "subVersion": 1700000000000,
                    "tagsSet": ["red", "blue"],
                    "topic": "T",
                }
            ],
            "unitMode": False,
        }
    ],
}


def test_a_heartbeat_of_java_is_read() -> None:
    found = read_heartbeat(json.dumps(HEARTBEAT).encode())
    assert found.client_id == "10.0.0.1@4711#1"
    assert found.producers == ("CLIENT_INNER_PRODUCER",)
    wanted = Subscription("T", "red || blue", "TAG", 1700000000000)
    assert found.consumers == (ConsumerData("g", False, True, (wanted,)),)


@pytest.mark.parametrize(
    ("model", "kind"), [(1, 1), ("Clustering", "consume_passively"), (None, None), (9, "x")]
)
def test_a_heartbeat_of_another_language_is_read(model: object, kind: object) -> None:
    row = {"groupName": "g", "messageModel": model, "consumeType": kind}
    (found,) = read_heartbeat(
        json.dumps({"clientID": "c", "consumerDataSet": [row]}).encode()
    ).consumers
    assert not found.broadcasting
    assert found.pushes


def test_a_broadcasting_reader_that_pulls_is_told_apart() -> None:
    row = {"groupName": "g", "messageModel": 0, "consumeType": 0}
    (found,) = read_heartbeat(
        json.dumps({"clientID": "c", "consumerDataSet": [row]}).encode()
    ).consumers
    assert found.broadcasting
    assert not found.pushes


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(HEARTBEAT)), VALUES)
def test_any_value_in_a_heartbeat_is_read_or_refused(name: str, value: Any) -> None:
    try:
        read_heartbeat(json.dumps({**HEARTBEAT, name: value}).encode())
    except BadRequest:
        pass


@given(
    st.sampled_from(sorted(HEARTBEAT["consumerDataSet"][0])),
    st.sampled_from(sorted(HEARTBEAT["consumerDataSet"][0]["subscriptionDataSet"][0])),
    VALUES,
)
def test_any_value_in_a_group_is_read_or_refused(group: str, entry: str, value: Any) -> None:
    row = HEARTBEAT["consumerDataSet"][0]
    subscription = {**row["subscriptionDataSet"][0], entry: value}
    for changed in ({**row, group: value}, {**row, "subscriptionDataSet": [subscription]}):
        try:
            read_heartbeat(json.dumps({**HEARTBEAT, "consumerDataSet": [changed]}).encode())
        except BadRequest:
            pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"clientID":""}',
        b'{"clientID":"a\\u0000"}',
        b'{"clientID":"\\ud800"}',
        b'{"clientID":"' + b"x" * 256 + b'"}',
        b'{"clientID":"c"}' + b" " * (1 << 20),
        json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g"}] * 1025}).encode(),
    ],
)
def test_a_heartbeat_that_cannot_be_used_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_heartbeat(body)


def test_a_check_of_a_subscription_is_read() -> None:
    body = {
        "clientId": "c",
        "group": "g",
        "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"},
    }
    assert read_check(json.dumps(body).encode()) == Subscription("T", "a > 1", "SQL92", 0)
    with pytest.raises(BadRequest, match="subscriptionData"):
        read_check(b"{}")


def test_members_are_listed() -> None:
    assert member_list(["a", "b"]) == b'{"consumerIdList":["a","b"]}'


BROKER = BrokerAddresses("Default", "broker-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"})


def test_a_route_has_plain_numbers_as_keys_for_older_clients() -> None:
    text = topic_route(TopicQueues("broker-a", 4, 6), BROKER, standard=False)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in text
    with pytest.raises(ValueError, match="property name"):
        json.loads(text)


def test_a_route_is_json_for_others() -> None:
    found = json.loads(topic_route(TopicQueues("broker-a", 4, 6), BROKER, standard=True))
    assert found["brokerDatas"] == [
        {
            "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
            "brokerName": "broker-a",
            "cluster": "Default",
        }
    ]
    (queues,) = found["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)
    assert found["filterServerTable"] == {}


def test_both_dialects_say_the_same() -> None:
    plain = topic_route(TopicQueues("broker-a", 1, 4), BROKER, standard=False)
    standard = topic_route(TopicQueues("broker-a", 1, 4), BROKER, standard=True)
    assert plain.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":') == standard


def test_the_cluster_is_told_with_numbers_as_keys() -> None:
    text = cluster_info(BROKER)
    assert b"{0:" in text
    found = json.loads(text.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":'))
    assert found["clusterAddrTable"] == {"Default": ["broker-a"]}
    assert found["brokerAddrTable"]["broker-a"]["brokerAddrs"]["0"] == "10.0.0.1:10911"
