"""What a tool does: it asks, and reads what it is told."""

from typing import Any

from duolog_server.compat.remoting.codec.fastjson import MessageQueue, loads
from tests.compat.remoting.client import Remoting


async def told(remoting: Remoting, code: int, body: bytes = b"", **fields: Any) -> Any:
    """The body of an answer."""
    answer = await remoting.ask(code, fields, body)
    assert answer.code == 0, answer.remark
    return loads(answer.body) if answer.body else None


async def refused(
    remoting: Remoting, code: int, body: bytes = b"", **fields: Any
) -> tuple[int, str]:
    """Code and remark of an answer."""
    answer = await remoting.ask(code, fields, body)
    return answer.code, answer.remark


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue("broker-a", number, topic)
