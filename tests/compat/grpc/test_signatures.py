"""Signatures of RocketMQ's clients: whose they are, and when they were made."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from duolog import _errors as sdk

from duolog_server.compat.grpc.auth import Dates, Signed
from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.relay.calls import CLIENT_ID, FORWARDED, METHOD, PEER, USER
from duolog_server.compat.grpc.relay.nodes import MARK, TIME, Marks
from duolog_server.node.identity.access.vouching import Vouching

NOW = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's zone is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def is_now(text: str, *zones: str, now: datetime = NOW) -> bool:
    dates = Dates(300, [ZoneInfo(name) for name in zones], lambda: int(now.timestamp() * 1000))
    try:
        dates.check(text)
    except sdk.Unauthenticated:
        return False
    return True


@pytest.mark.parametrize(("seconds", "good"), [(0, True), (300, True), (301, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_date_is_good_for_a_while_on_both_sides(seconds: int, good: bool, sign: int) -> None:
    date = NOW + sign * timedelta(seconds=seconds)
    assert is_now(f"{date:%Y%m%dT%H%M%SZ}") == good
    assert is_now(date.isoformat()) == good


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "Z", "20260701T120000", "2026-07-01T12:00:00", "20260701T250000Z", "0" * 100,
        "00010101T000000Z", "99991231T235959Z", "20260701T120000Z" + "0" * 30, "-1", "1783000000",
    ],
)  # fmt: skip
def test_what_is_no_date_of_now_is_refused(text: str) -> None:
    assert not is_now(text, "Asia/Shanghai")


@pytest.mark.parametrize(
    ("text", "zones", "good"),
    [
        ("20260701T200000Z", (), False),  # local time, as most clients write it
        ("20260701T200000Z", ("Asia/Shanghai",), True),
        ("20260701T200600Z", ("Asia/Shanghai",), False),
        ("20260701T140000Z", ("Asia/Shanghai", "Europe/Berlin"), True),  # in summer
        ("20260701T130000Z", ("Asia/Shanghai", "Europe/Berlin"), False),
        ("20260701T120000Z", ("Asia/Shanghai",), True),  # UTC is always good
        ("2026-07-01T20:00:00.123456789+08:00", (), True),  # Rust
        ("2026-07-01T20:00:00Z", ("Asia/Shanghai",), False),  # says that it is UTC
    ],
)
def test_a_date_without_an_offset_may_be_of_any_zone_that_clients_have(
    text: str, zones: tuple[str, ...], good: bool
) -> None:
    assert is_now(text, *zones) == good


def test_an_hour_that_comes_twice_is_known_both_times() -> None:
    for hour in (0, 1):  # Berlin's clocks were set back at 01:00 UTC
        now = datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
        assert is_now("20261025T023000Z", "Europe/Berlin", now=now)


def test_the_machines_own_zone_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    assert is_now("20260701T200000Z")


@pytest.mark.parametrize(
    ("authorization", "name", "signature"),
    [
        ("MQv2-HMAC-SHA1 Credential=a/r/s, SignedHeaders=x-mq-date-time, Signature=AB", "a", "ab"),
        ("MQv2-HMAC-SHA1 Credential=a,Signature=AB", "a", "ab"),
        ("MQv2-HMAC-SHA1 Credential=a//Rocketmq, Signature=AB", "a", "ab"),  # Go, C++
        ("MQv2-HMAC-SHA1 Signature=ü", "", "ü"),
        ("MQv2-HMAC-SHA1", "", ""),
        ("", "", ""),
    ],
)
def test_a_signature_is_read(authorization: str, name: str, signature: str) -> None:
    given = Signed.of({"authorization": authorization})
    assert (given.name, given.signature) == (name, signature)
    assert not given.is_by(b"secret")


def test_a_mark_covers_everything_that_a_node_says() -> None:
    now = NOW_MS
    marks, others = (Marks(Vouching(key, b"a test"), lambda: now) for key in (b"a" * 32, b"b" * 32))
    said = [(CLIENT_ID, "alice/c"), (FORWARDED, "tls"), (PEER, "ipv4:10.0.0.1:1"), (USER, "alice")]
    said.append((METHOD, "SendMessage"))
    headers = dict(marks.added([*said, ("x-mq-request-id", "1")]))
    with pytest.raises(Refused, match="another method"):
        marks.check(headers, "EndTransaction")
    marks.check({**headers, "x-mq-request-id": "2"}, "SendMessage")
    for name, value in [*said, (TIME, str(now)), (MARK, headers[MARK])]:
        with pytest.raises(Refused, match="only nodes"):
            marks.check({**headers, name: f"{value!s}0"}, "SendMessage")
    for wrong in ({}, {"x-duolog-copy": "1"}):
        with pytest.raises(Refused, match="only nodes"):
            others.check({**headers, **wrong}, "SendMessage")
    with pytest.raises(Refused, match="only nodes"):
        marks.check({**headers, "x-duolog-copy": "1"}, "SendMessage")
    now += 300_000
    marks.check(headers, "SendMessage")
    now += 1
    with pytest.raises(Refused, match="300 s ago"):
        marks.check(headers, "SendMessage")
