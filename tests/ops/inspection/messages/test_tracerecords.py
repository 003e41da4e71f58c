"""What RocketMQ's clients say of messages, and how a way is shown."""

import pytest
from duolog import GroupTrack, TrackedMessage, TrackState, TrackStep
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection.messages import trace as way
from duolog_server.ops.inspection.messages.trace import TraceRecord, parse

ID = "7F0000010B6818B4AAC21B5D2A3C0000"


def record(*fields: object) -> bytes:
    """As the encoder of RocketMQ's Java client joins them."""
    return "\x01".join(map(str, fields)).encode() + b"\x02"


PUB = record(
    *("Pub", 1700000000000, "DefaultRegion", "producers", "orders", ID, "paid", "order-7"),
    *("10.0.0.1:10911", 11, 3, 0, "0A0000010000", "true"),
)


def test_sends_consuming_decisions_and_recalls_are_read() -> None:
    (found,) = parse(PUB)
    assert found == TraceRecord(
        "Pub", ID, 1700000000000, "producers", "orders", "10.0.0.1:10911", 3, True
    )
    decided = record(
        *("EndTransaction", 7, "r", "producers", "orders", ID, "null", "null", "10.0.0.1:10911"),
        *(2, "tx", "COMMIT_MESSAGE", "true"),
    )
    recalled = record("Recall", 9, "r", "producers", "orders", ID, "true")
    one, two = parse(decided + recalled)
    assert (one.kind, one.detail) == ("EndTransaction", "COMMIT_MESSAGE (after a check)")
    assert (two.kind, two.ok) == ("Recall", True)
    before = record("SubBefore", 5, "r", "billing", "request-1", ID, 2, "order-7")
    after = record("SubAfter", "request-1", ID, 40, "true", "order-7", 0, 45)
    newer = record("SubAfter", "request-1", ID, 40, "false", "order-7", 4, 45, "billing")
    oldest = record("SubAfter", "request-1", ID, 40, "true", "order-7")
    assert parse(before + after + newer + oldest) == [
        TraceRecord("SubBefore", ID, 5, "billing", retries=2, request_id="request-1"),
        TraceRecord(
            "SubAfter", ID, 45, cost_ms=40, ok=True, request_id="request-1", detail="SUCCESS"
        ),
        TraceRecord(
            *("SubAfter", ID, 45, "billing"),
            cost_ms=40,
            ok=False,
            request_id="request-1",
            detail="FAILED",
        ),
        TraceRecord("SubAfter", ID, cost_ms=40, ok=True, request_id="request-1"),
    ]


@pytest.mark.parametrize("behind", [("false",), ("0A00", "false"), ("0A00", "false", "10.0.0.9")])
def test_a_send_of_each_version_says_whether_it_worked(behind: tuple[str, ...]) -> None:
    begin = ("Pub", 1, "r", "p", "T", ID, "null", "", "h", 11, 3, 0)
    (found,) = parse(record(*begin, *behind))
    assert found.ok is False


@given(st.binary(max_size=60), st.integers(0, len(PUB)))
def test_what_cannot_be_read_is_passed_over(noise: bytes, cut: int) -> None:
    parse(noise)
    parse(PUB[:cut])
    assert parse(noise.replace(b"\x01", b"") + b"\x02" + PUB)[-1].message_id == ID


def test_a_way_has_a_line_for_each_step_and_group_and_what_clients_tell() -> None:
    step = TrackStep("DELAYED", "rmq_sys_wheel_timer", 0, 4, 900, 1700000000100, 1700000005000)
    stored = TrackStep("STORED", "orders", 2, 17, 2000, 1700000005010)
    groups = (
        GroupTrack("billing", TrackState.CONSUMED),
        GroupTrack("mail", TrackState.DEAD_LETTER, 16, ("%DLQ%mail", 0, 3), 1700000009000),
    )
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = TrackedMessage(ID, 1700000000000, "10.0.0.5:555", parent, (step, stored), groups)
    shown = list(way.rows(message, parse(PUB)))
    assert [row["step"] for row in shown] == [
        "sent",
        "client sent",
        "delayed",
        "stored",
        "consumed",
        "dead letter",
    ]
    assert shown[0]["detail"] == "trace 0af7651916cd43dd8448eb211c80319c"
    assert shown[3]["place"] == "orders/2@17"
    assert shown[5]["detail"] == "16 failed, copy %DLQ%mail/0@3"
    waiting = TrackedMessage(ID, 1700000000000, "10.0.0.5:555", "", (step,), ())
    assert [row["step"] for row in way.rows(waiting, [])] == ["sent", "delayed", "not due yet"]
    told = way.as_json(message, parse(PUB))
    assert told["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert [one["kind"] for one in told["client_records"]] == ["Pub"]  # type: ignore[attr-defined]
    records = record("SubBefore", 5, "r", "billing", "request-1", ID, 2, "order-7")
    records += record("SubAfter", "request-1", ID, 40, "false", "order-7", 4, 45, "billing")
    stored = TrackStep("STORED", "orders", 2, 17, 2000, 4)
    message = TrackedMessage(ID, 1, "10.0.0.5:555", "", (stored,), ())
    lines = [
        (row["step"], row["place"], row["detail"]) for row in way.rows(message, parse(records))
    ]
    assert lines[2:] == [
        ("client began", "billing", "attempt 3"),
        ("client ended", "billing", "40 ms, failed, FAILED"),
    ]
