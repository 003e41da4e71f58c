"""Quotas: what passes, what waits and for how long; without a clock."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.quotas.connections import Connections
from duolog_server.node.identity.quotas.meter import Meter
from duolog_server.node.identity.quotas.quota import BadQuota, Kind, Limit, Quota, Subject
from duolog_server.node.identity.quotas.quotas import ACCOUNTS_MAX, WAIT_MS_MAX, Quotas, Wait, Who

ALICE = Who("alice", "10.0.0.7")
GAPS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 5000)), min_size=1, max_size=60)


def quota(subject: str, **limits: int) -> Quota:
    return Quota(Subject.parse(subject)).altered(limits)


def quotas(*made: Quota) -> Quotas:
    found = Quotas()
    found.replace(made)
    return found


# -- a meter ---------------------------------------------------------------------------------------


@given(rate=st.integers(1, 10_000), burst_ms=st.integers(1, 5000), tries=GAPS)
def test_in_any_time_no_more_passes_than_the_rate_a_burst_and_a_batch(
    rate: int, burst_ms: int, tries: list[tuple[int, int]]
) -> None:
    meter, passed = Meter(rate, burst_ms), []
    times = accumulate(gap for gap, _ in tries)
    for now, (_, amount) in zip(times, tries, strict=True):
        if not meter.wait_ms(now):
            meter.add(amount, now)
            passed.append((now, amount))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            (begin, _), (end, amount) = passed[first], passed[last]
            before = sum(size for _, size in passed[first:last])
            assert before <= rate * (end - begin + burst_ms) / 1000 + 1e-6


@given(
    rate=st.integers(1, 10_000),
    burst_ms=st.integers(1, 5000),
    amounts=st.lists(st.integers(1, 50_000), min_size=1, max_size=20),
)
def test_after_the_time_that_was_told_something_passes_and_not_long_before(
    rate: int, burst_ms: int, amounts: list[int]
) -> None:
    meter, now = Meter(rate, burst_ms), 0
    for amount in amounts:
        wait = meter.wait_ms(now)
        if wait > 1:
            assert meter.wait_ms(now + wait - 2) > 0
        now += wait
        assert meter.wait_ms(now) == 0
        meter.add(amount, now)


def test_after_a_pause_one_burst_passes_at_once_and_no_more() -> None:
    meter = Meter(100, 1000)
    for _ in range(100):
        assert meter.wait_ms(0) == 0
        meter.add(1, 0)
    assert meter.wait_ms(0) == 1
    meter.add(0, 1_000_000)  # however long the pause
    for _ in range(100):
        assert meter.wait_ms(1_000_000) == 0
        meter.add(1, 1_000_000)
    assert meter.wait_ms(1_000_000) == 1


def test_a_batch_larger_than_the_burst_passes_and_the_next_one_waits_the_longer() -> None:
    meter = Meter(100, 1000)
    meter.add(1000, 0)
    assert meter.wait_ms(0) == 9001
    assert not meter.is_idle(9999)
    assert meter.is_idle(10_000)


# -- what is limited -------------------------------------------------------------------------------


def test_what_is_refused_uses_nothing_of_any_quota() -> None:
    found = quotas(quota("User:alice", messages_in=1), quota("Topic:T", messages_in=5)).incoming
    assert found.take(ALICE, "T", (1, 1), 0) is None
    for _ in range(100):
        refused = found.take(ALICE, "T", (1, 1), 0)
        assert refused is not None
        assert refused.subject.text == "User:alice"
    for _ in range(4):
        assert found.take(Who("bob", ""), "T", (1, 1), 0) is None
    refused = found.take(Who("bob", ""), "T", (1, 1), 0)
    assert refused is not None
    assert refused.subject.text == "Topic:T"


def test_the_longest_wait_is_told_with_its_reason() -> None:
    found = quotas(quota("User:*", bytes_in=10, messages_in=1), quota("Client:*", bytes_in=1))
    assert found.incoming.take(ALICE, "T", (100, 1), 0) is None
    refused = found.incoming.take(ALICE, "T", (1, 1), 0)
    assert refused is not None
    assert refused.ms == 99_001
    assert refused.subject == Subject(Kind.CLIENT, "10.0.0.7")
    assert refused.text == "over the quota of Client:10.0.0.7: bytes in, 1 a second"


def test_an_ipv4_address_within_ipv6_is_the_same_client() -> None:
    assert Who.at("", "::ffff:10.0.0.7") == Who("", "10.0.0.7")
    assert Who.at("", "2001:db8::ffff:1") == Who("", "2001:db8::ffff:1")
    assert Who.at("alice", "10.0.0.7") == ALICE


def test_in_and_out_are_counted_apart() -> None:
    found = quotas(quota("Topic:T", messages_in=1, messages_out=1))
    found.outgoing.add(ALICE, "T", (1, 10), 0)
    assert found.incoming.wait(ALICE, "T", 0) is None
    assert found.outgoing.wait(ALICE, "T", 0) is not None
    assert found.outgoing.wait(ALICE, "another", 0) is None


def test_each_user_without_a_quota_of_its_own_has_that_of_every_one_by_itself() -> None:
    found = quotas(quota("User:*", messages_in=1), quota("User:alice", connections=1)).incoming
    for name in ("bob", "carol"):
        assert found.take(Who(name, ""), "T", (0, 1), 0) is None
        assert found.take(Who(name, ""), "T", (0, 1), 0) is not None
    for _ in range(9):  # her own has no rate, and stands in the place of the other
        assert found.take(ALICE, "T", (0, 1), 0) is None
    for _ in range(9):  # where there are no users
        assert found.take(Who("", "10.0.0.7"), "T", (0, 1), 0) is None


def test_what_was_used_counts_on_after_a_change_of_another_quota() -> None:
    mine = quota("User:alice", messages_in=1)
    found = quotas(mine)
    assert found.incoming.take(ALICE, "T", (0, 5), 0) is None
    found.replace([mine, quota("Topic:T", bytes_in=1000)])
    assert found.incoming.wait(ALICE, "T", 0) is not None
    found.replace([quota("User:alice", messages_in=2)])
    assert found.incoming.wait(ALICE, "T", 0) is None
    found.replace([])
    assert not found.on
    assert found.incoming.take(ALICE, "T", (0, 5), 0) is None


def test_one_read_gets_no_more_than_a_burst() -> None:
    found = quotas(
        quota("User:alice", bytes_out=1000, burst_ms=500), quota("Topic:T", messages_out=10)
    )
    assert found.outgoing.at_once(ALICE, "T", (1 << 20, 100), 0) == (500, 10)
    assert found.outgoing.at_once(ALICE, "T", (100, 5), 0) == (100, 5)
    tiny = quotas(quota("User:alice", messages_out=1, burst_ms=1))
    assert tiny.outgoing.at_once(ALICE, "T", (100, 5), 0) == (100, 1)


def test_a_wait_is_told_in_numbers_that_a_reply_can_hold() -> None:
    found = quotas(quota("Topic:T", bytes_in=1)).incoming
    found.add(ALICE, "T", (1 << 40, 1), 0)
    refused = found.wait(ALICE, "T", 0)
    assert refused is not None
    assert refused.ms == WAIT_MS_MAX < 1 << 31


def test_accounts_of_addresses_are_bounded_and_debts_are_kept_longest() -> None:
    found = quotas(quota("Client:*", messages_in=1)).incoming
    assert found.take(ALICE, "T", (0, 5000), 0) is None
    for number in range(2 * ACCOUNTS_MAX):
        found.take(Who("", str(number)), "T", (0, 1), number)
    assert all(len(accounts.open) <= ACCOUNTS_MAX for _, accounts in found._rated)
    assert found.wait(ALICE, "T", 2 * ACCOUNTS_MAX) is not None


def test_topics_of_a_namespace_are_counted_and_no_others() -> None:
    found = quotas(quota("Namespace:eu", topics=2))

    def over(name: str, topics: list[str], by: Quotas = found) -> Wait | None:
        return by.over_topics(name, "", dict.fromkeys(topics, ""))

    assert over("eu%c", ["eu%a", "a", "eux%b", "%RETRY%eu%g"]) is None
    refused = over("eu%c", ["eu%a", "eu%b"])
    assert refused is not None
    assert (refused.limit, refused.ms) == (Limit.TOPICS, 0)
    assert refused.text == "over the quota of Namespace:eu: topics, 2"
    assert over("plain", ["eu%a", "eu%b"]) is None
    assert over("us%c", ["eu%a", "eu%b"]) is None
    every = quotas(quota("Namespace:*", topics=1))
    assert over("us%c", ["eu%a"], every) is None
    assert over("eu%c", ["eu%a"], every) is not None


def test_topics_of_a_user_are_those_that_it_created() -> None:
    found = quotas(quota("User:alice", topics=2), quota("Namespace:eu", topics=1))
    owners = {"a": "alice", "b": "bob", "c": "", "eu%d": "bob"}
    assert found.over_topics("x", "alice", owners) is None
    refused = found.over_topics("x", "alice", {**owners, "e": "alice"})
    assert refused is not None
    assert refused.text == "over the quota of User:alice: topics, 2"
    assert found.over_topics("x", "bob", owners) is None
    assert found.over_topics("x", "", owners) is None
    refused = found.over_topics("eu%x", "alice", owners)
    assert refused is not None
    assert refused.subject.text == "Namespace:eu"


# -- connections -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.sampled_from("pqr"))))
def test_a_connection_counts_once_however_many_streams_hold_it(
    opened: list[tuple[str, str, str]],
) -> None:
    connections, held = Connections(), []
    for user, address, peer in opened:
        who = Who(user, address)
        connections.enter(who, peer)
        held.append((who, peer))
        assert connections.has(who, peer)
        assert connections.of_user(user) == len({one for one in held if one[0].user == user})
        of_address = {one for one in held if one[0].address == address}
        assert connections.of_address(address) == len(of_address)
        assert connections.validate() == ""
    while held:
        connections.leave(*held.pop())
        assert connections.validate() == ""
    assert not any(map(connections.of_user, "ab"))


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("User:alice", "User:alice"),
        ("user:a:b", "User:a:b"),
        ("TOPIC:eu%orders", "Topic:eu%orders"),
        ("Client:*", "Client:*"),
        ("client:::ffff:10.0.0.7", "Client:10.0.0.7"),
        ("Client:2001:DB8:0::7", "Client:2001:db8::7"),
        ("Namespace:eu", "Namespace:eu"),
    ],
)
def test_a_subject_has_one_spelling(text: str, found: str) -> None:
    assert Subject.parse(text).text == found
    assert Subject.parse(found).text == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "alice", "User:", "Group:g", "Topic:a*", "Client:host", "Client:10.0.0.0/8"),
        *("User:a\nb", "User:" + 256 * "a"),
    ],
)
def test_what_is_no_subject_is_refused(text: str) -> None:
    with pytest.raises(BadQuota):
        Subject.parse(text)


@pytest.mark.parametrize(
    ("subject", "limits", "reason"),
    [
        ("Topic:T", {"connections": 1}, "Topic has no limit connections"),
        ("Client:*", {"topics": 1}, "Client has no limit topics"),
        ("Namespace:eu", {"bytes_in": 1}, "Namespace has no limit bytes_in"),
        ("User:alice", {"bytes_in": -1}, "bytes_in is -1"),
        ("User:alice", {"bytes_in": 1 << 60}, "it must be 1 to"),
        ("User:alice", {"bytes_in": 1, "burst_ms": 0}, "burst_ms is 0"),
        ("User:alice", {"bytes_in": 1, "burst_ms": 1 << 40}, "burst_ms is"),
    ],
)
def test_limits_that_cannot_be_are_refused(
    subject: str, limits: dict[str, int], reason: str
) -> None:
    with pytest.raises(BadQuota, match=reason):
        quota(subject, **limits)


def test_limits_that_are_not_named_stay_and_0_is_none() -> None:
    made = quota("User:alice", bytes_in=5, messages_in=6, burst_ms=70)
    altered = made.altered({"bytes_in": 0, "messages_out": 7})
    assert altered.limits == {"messages_in": 6, "messages_out": 7}
    assert altered.burst_ms == 70
    assert Quota.from_row(altered.to_row()) == altered


def test_a_row_of_a_newer_version_gives_what_is_known_of_it() -> None:
    row = {"subject": "User:alice", "bytes_in": 5, "colours": 3}
    assert Quota.from_row(row).limits == {"bytes_in": 5}
    for bad in ({}, {"subject": "Planet:x"}, {"subject": "User:a", "bytes_in": "many"}):
        with pytest.raises(BadQuota):
            Quota.from_row(bad)
