"""The guard that all protocols ask: when a denial is final, and how it is noted."""

from types import SimpleNamespace
from typing import Any

import pytest
from duolog import _errors as sdk

from duolog_server.compat.grpc.guarded import Api, Wrapping
from duolog_server.compat.grpc.protocol.stubs import METHODS, Code, service
from duolog_server.node.identity.access.gate import Principal
from duolog_server.node.identity.access.rules import Rule
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Action, Need, topic
from duolog_server.node.service.guard import NEEDS_AT_ONCE, Guard

ALICE = Principal("alice", "", "10.0.0.7")


class Tables:
    """A gate whose users may use some topics, the facts of a node, and its audit log."""

    def __init__(self) -> None:
        self.allowed = {"T"}
        self.knows = True
        self.noted: list[tuple[Who, str, str]] = []
        self.steps: list[int] = []

    def check(self, principal: Principal, needs: Any) -> None:
        self.steps.append(len(needs))
        if any(need.resource.name not in self.allowed for need in needs):
            raise sdk.NoPermission("no entry")

    def check_knows(self) -> None:
        if not self.knows:
            raise sdk.NotMaster("ask the master", "master:1", 7)

    def denied(self, who: Who, method: str, resource: str, error: Exception) -> None:
        self.noted.append((who, method, resource))


def needs(*names: str) -> tuple[Need, ...]:
    return tuple(Need(topic(name), frozenset({Action.PUB})) for name in names)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def guard(tables: Tables) -> Guard:
    given: Any = tables
    return Guard(given, given, given)


def test_a_denial_is_noted_once_it_is_final(guard: Guard, tables: Tables) -> None:
    guard.check(ALICE, needs("T"), "Send")
    tables.knows = False
    with pytest.raises(sdk.NotMaster):
        guard.check(ALICE, needs("U"), "Send")
    with pytest.raises(sdk.NotMaster), guard.final():
        raise sdk.Unauthenticated("nobody")
    with pytest.raises(sdk.NoPermission):
        guard.check_known(ALICE, needs("U"))
    assert not tables.noted
    tables.knows = True
    with pytest.raises(sdk.NoPermission):
        guard.check(ALICE, needs("U"), "Send")
    assert tables.noted == [(Who("alice", "10.0.0.7"), "Send", "Topic:U")]


async def test_very_many_needs_are_checked_in_steps(guard: Guard, tables: Tables) -> None:
    await guard.check_all(ALICE, needs(*["T"] * (2 * NEEDS_AT_ONCE + 1)))
    assert tables.steps == [NEEDS_AT_ONCE, NEEDS_AT_ONCE, 1]
    with pytest.raises(sdk.NoPermission):
        await guard.check_all(ALICE, needs(*["T"] * NEEDS_AT_ONCE, "U"))


async def test_a_stream_of_rocketmq_is_not_denied_by_a_node_that_may_not_know(
    guard: Guard, tables: Tables
) -> None:
    """Its right is gone by what this node knows, while it waits for messages."""
    written = []

    async def serve(request: Any, context: Any) -> None:
        tables.allowed.clear()
        tables.knows = False
        await context.write(service.ReceiveMessageResponse())

    async def write(reply: Any) -> None:
        written.append(reply)

    handler: Any = SimpleNamespace(
        request_streaming=False,
        response_streaming=True,
        unary_stream=serve,
        request_deserializer=None,
        response_serializer=None,
    )
    recognising: Any = SimpleNamespace(
        core=guard, check=guard.check, facts=tables, recognise=lambda *_: (ALICE, {})
    )
    nobody: Any = None
    api = Api("S", "S", METHODS, {"ReceiveMessage": Rule(lambda *_: needs("T"))})
    wrapped = Wrapping(api, recognising, nobody).wrap("/S/ReceiveMessage", handler)
    call: Any = wrapped.unary_stream
    await call(
        service.ReceiveMessageRequest(),
        SimpleNamespace(write=write, peer=lambda: "ipv4:10.0.0.7:1"),
    )
    (reply,) = written
    assert reply.status.code not in (Code.FORBIDDEN, Code.UNAUTHORIZED)
    assert not tables.noted
