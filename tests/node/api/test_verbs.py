"""The native API's methods, as RocketMQ's protocols call them."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog import _errors as sdk
from duolog._errors import status_of, trailing_of
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.verbs import Peer, Verbs
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.net.methods import Handler
from duolog_server.node.wirecodec import peer_host
from duolog_server.store.record import Host


@dataclass(frozen=True, slots=True)
class Client:
    host: Host


def verbs(method: Any) -> Verbs:
    handler = cast(Handler, SimpleNamespace(unary_unary=method))
    none: Any = None
    return Verbs({"/duolog.v1.Admin/DescribeGroup": handler}, none)


@pytest.mark.parametrize("host", [Host("10.0.0.7", 5555), Host("fe80::1", 5)])
async def test_a_method_sees_who_calls_it(host: Host) -> None:
    alice, seen = Principal("alice", "hash"), []

    async def method(request: wire.DescribeGroupRequest, context: Any) -> None:
        seen.append((request.group, peer_host(context.peer()), context.principal))

    token = PRINCIPAL.set(alice)
    try:
        await verbs(method).group(cast(Peer, Client(host)), "T")
    finally:
        PRINCIPAL.reset(token)
    assert seen == [("T", host, alice)]


@pytest.mark.parametrize(
    "error",
    [
        sdk.UnknownTopic("no topic"),
        sdk.NoPermission("not for you"),
        sdk.NotMaster("elsewhere", "10.0.0.1:8081", 7),
    ],
)
async def test_the_error_that_ends_a_call_is_raised(error: sdk.DuologError) -> None:
    async def method(request: Any, context: Any) -> None:
        await context.abort(status_of(error)[0], str(error), tuple(trailing_of(error)))

    with pytest.raises(type(error), match=str(error)) as found:
        await verbs(method).group(cast(Peer, Client(Host("10.0.0.7", 5555))), "T")
    if isinstance(error, sdk.NotMaster):
        assert isinstance(found.value, sdk.NotMaster)
        assert (found.value.endpoint, found.value.epoch) == ("10.0.0.1:8081", 7)
