"""How long a receive waits: as asked for, within RocketMQ's limits and the deadline of its call."""

import pytest
from google.protobuf.duration_pb2 import Duration

from duolog_server.compat.grpc import consuming
from duolog_server.compat.grpc.consuming import POLL_SECONDS_MIN, _poll_seconds
from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import service


@pytest.fixture(autouse=True)
def as_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that other tests do without, as it was when this file was loaded."""
    monkeypatch.setattr(consuming, "POLL_SECONDS_MIN", POLL_SECONDS_MIN)


@pytest.mark.parametrize(
    ("asked_ms", "left", "seconds"),
    [
        (None, None, 20),
        (None, 60, 20),
        (None, 10, 9),
        (None, 2, 1),
        (None, 0.5, 0),
        (500, None, 5),
        (500, 30, 5),
        (500, 3, 2),
        (7000, 30, 7),
        (7000, 6, 5),
        (60_000, 90, 20),
    ],
)
def test_a_poll_is_as_long_as_asked_within_limits(
    asked_ms: int | None, left: float | None, seconds: float
) -> None:
    request = service.ReceiveMessageRequest()
    if asked_ms is not None:
        request.long_polling_timeout.FromMilliseconds(asked_ms)
    assert _poll_seconds(request, left) == seconds


def test_a_negative_time_is_refused() -> None:
    request = service.ReceiveMessageRequest(long_polling_timeout=Duration(seconds=-1))
    with pytest.raises(Refused):
        _poll_seconds(request, 30)
