"""Calls as they begin: what of them is read, and what is said to the ledger."""

from typing import Any

import grpc
import pytest

from duolog_server.node.net.grpc.receive_limit.calls import begin, counted
from duolog_server.node.net.grpc.receive_limit.ledger import CALL_BYTES, Name


class Known:
    """Was told so much."""

    def __init__(self, ended: bool) -> None:
        self.began_with: list[tuple[Name, int]] = []
        self.messages = 0
        self.over_with: list[bool] = []
        self._ended = ended

    def has_ended(self, name: Name) -> bool:
        return self._ended

    def began(self, name: Name, size: int) -> None:
        self.began_with.append((name, size))

    def known(self, name: Name, size: int) -> None:
        self.messages += 1

    def over(self, name: Name, gave_up: bool) -> None:
        assert name == ("10.0.0.1", 5)
        self.over_with.append(gave_up)


class Call:
    """A call, and how often its headers were read."""

    reads = 0

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    def invocation_metadata(self) -> Any:
        self.reads += 1
        return (("x", "y" * 100),)


def test_a_call_is_known_by_its_headers() -> None:
    known = Known(ended=False)
    assert begin(known, Call())
    [(name, size)] = known.began_with
    assert name == ("10.0.0.1", 5)
    assert size >= CALL_BYTES + 101
    # They may be a hundred thousand.
    known, call = Known(ended=True), Call()
    assert begin(known, call) is None
    assert (known.began_with, call.reads) == ([], 0)


async def _served(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("made", "is_streaming"),
    [
        (grpc.unary_unary_rpc_method_handler, False),
        (grpc.unary_stream_rpc_method_handler, False),
        (grpc.stream_stream_rpc_method_handler, True),
    ],
)
def test_a_call_waits_until_its_message_came_or_its_end(made: Any, is_streaming: bool) -> None:
    handler = counted(made(_served))
    for messages in (0, 1, 2 if is_streaming else 1):
        known = Known(ended=False)
        call = begin(known, Call())
        assert call is not None
        for _ in range(messages):
            handler.request_deserializer(b"x")
        gave_up = is_streaming or not messages
        assert known.over_with == ([] if gave_up else [False])
        call.end(None)
        assert (known.messages, known.over_with) == (messages, [gave_up])
