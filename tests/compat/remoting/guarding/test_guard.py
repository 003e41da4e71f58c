"""The guard before the requests of the remoting protocol, alone."""

import gc
import json
from contextvars import copy_context
from typing import Any

import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.guarding.guard import RequestGuard
from duolog_server.node.service.guard import NEEDS_AT_ONCE, Guard
from tests.node.service.test_guard import ALICE, Tables


class Alone(Tables):
    """Callers are all one user; there are no groups, and no quotas."""

    name = "10.0.0.7:1"
    groups = ()

    def recognise(self, peer: Any, request: Command) -> Any:
        return ALICE

    def joined(self, who: Any, peer: str) -> None:
        """See Throttle."""


@pytest.mark.parametrize("count", [2, NEEDS_AT_ONCE + 1])
def test_a_request_that_never_begins_leaves_nothing_to_await(count: int) -> None:
    tables: Any = Alone()
    tables.allowed = {f"T{k}" for k in range(count)}
    guard = RequestGuard(tables, Guard(tables, tables), tables)
    served: list[Command] = []

    async def handler(peer: Any, request: Command) -> Command:
        served.append(request)
        return request

    rows = [{"topicName": name} for name in sorted(tables.allowed)]
    body = json.dumps({"topicConfigList": rows}).encode()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    serve, request = guard.wrap(code, handler), Command(code, body=body)
    begun: Any = copy_context().run(serve, tables, request)  # it sets the caller of its task
    begun.close()
    del begun
    gc.collect()  # a coroutine that nobody awaited warns here
    assert not served
