"""The throttle: who may connect, and what it counts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog import _errors as sdk

from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.core.throttle import (
    CONNECTION_AGAIN_MS,
    HELD_MAX,
    HELD_MS,
    HELD_TOPICS_MAX,
    REFUSING_MAX,
    Throttle,
)
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.identity.quotas.quota import Kind, Limit
from duolog_server.node.identity.quotas.quotas import Who

ALICE, ANYBODY = Who("alice", "10.0.0.7"), Who("", "10.0.0.7")


def throttle(**connections: int) -> Throttle:
    """With quotas of connections: User_alice=1."""
    subjects = {name.replace("_", ":"): most for name, most in connections.items()}
    rows = {name: {"subject": name, "connections": most} for name, most in subjects.items()}
    return throttle_of(rows, [0])


def throttle_of(rows: dict[str, dict[str, Any]], now: list[int]) -> Throttle:
    metadata: Any = SimpleNamespace(
        quotas_changed=[], topic_refused=None, has_group=lambda name: name.startswith("g")
    )
    times = SimpleNamespace(mono_ms=lambda: now[0])
    made = Throttle(cast(MetadataLog, metadata), cast(StoreTimes, times))
    (tell,) = metadata.quotas_changed
    tell(rows)
    return made


def test_a_group_whose_reads_a_quota_delays_is_held_for_a_while() -> None:
    now = [1_000_000]
    row = {"subject": "User:alice", "messages_out": 1}
    made = throttle_of({"User:alice": row}, now)
    made.quotas.outgoing.add(ALICE, "T", (100, 1_000_000), now[0])
    for topic in map(str, range(HELD_TOPICS_MAX + 1)):
        assert made.read(ALICE, topic, "g") is not None
        made.read(ALICE, topic, "unknown")
    held = [topic for topic, _ in made.holds("g")]
    assert len(held) == HELD_TOPICS_MAX
    assert "0" not in held, "the newest are kept"
    assert made.holds("unknown") == []
    for number in range(HELD_MAX):
        made.read(ALICE, "T", f"g{number}")
    assert made.holds("g") == []
    assert len(made.holds(f"g{HELD_MAX - 1}")) == 1
    now[0] += HELD_MS + 1
    assert made.holds(f"g{HELD_MAX - 1}") == []


def test_quotas_that_refuse_sends_are_told_for_a_while() -> None:
    now = [1_000_000]
    made = throttle_of({"User:alice": {"subject": "User:alice", "messages_in": 1}}, now)
    assert made.put(ANYBODY, "T", 100, 1_000_000) is None
    assert made.put(ALICE, "T", 100, 1_000_000) is None
    assert made.refusing() == []
    assert made.put(ALICE, "T", 100, 1) is not None
    assert made.refusing() == ["over the quota of User:alice: messages in, 1 a second"]
    now[0] += HELD_MS
    assert made.refusing() == []
    rows = {
        name: {"subject": name, "messages_in": 1}
        for name in (f"Topic:{number}" for number in range(REFUSING_MAX + 1))
    }
    made = throttle_of(rows, now)
    for number in range(REFUSING_MAX + 1):
        while made.put(ANYBODY, str(number), 100, 1_000_000) is None:
            pass
    told = made.refusing()
    assert len(told) == REFUSING_MAX
    assert not [text for text in told if "Topic:0:" in text], "the newest are kept"


def test_a_user_has_no_more_connections_than_its_quota() -> None:
    made = throttle(User_alice=2)
    made.joined(ALICE, "10.0.0.7:1")
    made.joined(Who("alice", "10.0.0.8"), "10.0.0.8:1")
    with pytest.raises(sdk.Throttled, match="quota of User:alice: connections, 2") as caught:
        made.joined(ALICE, "10.0.0.7:2")
    assert caught.value.retry_after_ms == CONNECTION_AGAIN_MS
    assert made.refused == {(Kind.USER, Limit.CONNECTIONS): 1}
    made.joined(Who("bob", "10.0.0.7"), "10.0.0.7:3")
    made.left(ALICE, "10.0.0.7:1")
    made.joined(ALICE, "10.0.0.7:2")
    made = throttle(**{"Client_*": 1, "User_*": 5})
    with made.joining(ALICE, "1"), pytest.raises(sdk.Throttled, match=r"Client:10\.0\.0\.7"):
        made.joined(Who("bob", "10.0.0.7"), "2")
    with pytest.raises(ZeroDivisionError), made.joining(ALICE, "3"):
        raise ZeroDivisionError
    assert made.connections.of_address("10.0.0.7") == 0
    assert made.connections.validate() == ""
    made = throttle(**{"User_alice": 1, "Client_*": 1})
    for _ in range(3):
        made.joined(ALICE, "1")
    for _ in range(3):
        with pytest.raises(sdk.Throttled):
            made.joined(ALICE, "2")
        made.left(ALICE, "1")
    made.joined(ALICE, "2")
    made = throttle(**{"User_*": 1})
    for port in "123":
        made.joined(ANYBODY, port)
