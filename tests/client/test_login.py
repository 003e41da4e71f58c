"""Who the SDK is when it calls: a user and the password, with every call over gRPC."""

import base64
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import duolog
import duolog.sync
import grpc
import grpc.aio
import pytest
from duolog._admin import status_of
from duolog._connection import Connection
from duolog._login import Login, named
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

PASSWORD = "pärola: 7"
WORDS = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
METHODS = [
    method for service in wire.DESCRIPTOR.services_by_name.values() for method in service.methods
]


class Doorkeeper(grpc.GenericRpcHandler):
    """A node that writes down who calls what, and refuses all but one user."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []  # method and who called it
        self.refusal = grpc.StatusCode.UNAUTHENTICATED
        self._methods = {f"/{m.containing_service.full_name}/{m.name}": m for m in METHODS}

    def service(self, called: grpc.HandlerCallDetails) -> Any:
        given = dict(called.invocation_metadata or ())
        self.heard.append((called.method, str(given.get("authorization", ""))))
        return self._handler(self._methods[called.method], given.get("authorization") == WORDS)

    def _handler(self, method: MethodDescriptor, let_in: bool) -> Any:
        reply = message_factory.GetMessageClass(method.output_type)()

        async def check(context: Any) -> None:
            if not let_in:
                await context.abort(self.refusal, "not you")

        async def once(_: object, context: Any) -> Any:
            await check(context)
            return reply

        async def many(given: Any, context: Any) -> AsyncIterator[Any]:
            if method.client_streaming:  # grpc.aio loses the status of a call that ends before
                await anext(given)
            await check(context)
            yield reply

        kind = {
            (False, False): (grpc.unary_unary_rpc_method_handler, once),
            (False, True): (grpc.unary_stream_rpc_method_handler, many),
            (True, False): (grpc.stream_unary_rpc_method_handler, once),
            (True, True): (grpc.stream_stream_rpc_method_handler, many),
        }[method.client_streaming, method.server_streaming]
        request = message_factory.GetMessageClass(method.input_type)
        make, behaviour = kind
        return make(behaviour, request.FromString, type(reply).SerializeToString)


@pytest.fixture
async def doorkeeper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Doorkeeper, str]]:
    """A node that knows one user, and its endpoint."""
    monkeypatch.setenv("DUOLOG_TRANSPORT", "grpc")
    monkeypatch.setattr("duolog._client.AT_ONCE", 4.0)  # for a machine that stands still
    keeper, server = Doorkeeper(), grpc.aio.server()
    server.add_generic_rpc_handlers((keeper,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield keeper, f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_every_method_tells_who_calls_it(
    doorkeeper: tuple[Doorkeeper, str], method: MethodDescriptor
) -> None:
    """Through the stubs that all parts of the SDK share: a new method cannot be forgotten."""
    keeper, endpoint = doorkeeper
    connection = Connection(
        (endpoint,), replace(MACHINE, login=Login("alice", PASSWORD), frames=False)
    )
    stub = getattr(connection, method.containing_service.name.lower())
    call: Callable[..., Any] = getattr(stub, method.name)
    request = message_factory.GetMessageClass(method.input_type)()
    patient = {"timeout": 20, "wait_for_ready": True}  # a machine that stands still connects twice
    if method.client_streaming:
        stream = call(**patient)
        await stream.write(request)
        assert await stream.read() is not grpc.aio.EOF
        stream.cancel()
    elif method.server_streaming:
        stream = call(request, **patient)
        assert await stream.read() is not grpc.aio.EOF
        stream.cancel()
    else:
        await call(request, **patient)
    await connection.close()
    path = f"/{method.containing_service.full_name}/{method.name}"
    assert (path, WORDS) in keeper.heard
    assert {who for _, who in keeper.heard} == {WORDS}  # also of what the SDK asks by itself


async def test_the_append_stream_and_the_question_to_one_node(
    doorkeeper: tuple[Doorkeeper, str],
) -> None:
    keeper, endpoint = doorkeeper
    runtime = replace(MACHINE, login=Login("alice", PASSWORD), frames=False)
    connection = Connection((endpoint,), runtime)
    with pytest.raises((TimeoutError, duolog.Unavailable)):  # it answers with another id
        await connection.append(wire.AppendRequest(id=7), b"x", 0.0)
    await connection.messages.Pull(wire.PullRequest(), timeout=5)
    await connection.close()
    assert await status_of(endpoint, 5, runtime) is not None
    assert {who for _, who in keeper.heard} == {WORDS}
    with pytest.raises(duolog.Unauthenticated, match="without a user"):
        await status_of(endpoint, 5)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, duolog.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, duolog.NoPermission),
    ],
)
async def test_a_refusal_is_final_names_the_user_and_not_the_password(
    doorkeeper: tuple[Doorkeeper, str],
    caplog: pytest.LogCaptureFixture,
    code: grpc.StatusCode,
    kind: type[duolog.DuologError],
) -> None:
    caplog.set_level(logging.DEBUG)
    keeper, endpoint = doorkeeper
    keeper.refusal = code
    never = "127.0.0.1:1"
    async with duolog.Client([endpoint, never], user="bob", password="no secret") as client:
        with pytest.raises(kind, match=r"not you \(called as user 'bob'\)") as caught:
            await client.admin.node_status()
        for asked in (client.status_of(endpoint), client.pull("T", 0, 0)):
            with pytest.raises(kind, match="'bob'"):
                await asked
        assert client._router.seed.endpoint == endpoint  # it did not go on to another node
        with pytest.raises(kind, match="'bob'"):
            await client._router.seed.append(wire.AppendRequest(id=1), b"x", float("inf"))
        shown = [
            repr(client._router.runtime),
            caplog.text,
            *traceback.format_exception(caught.value),
        ]
    assert sum(path.endswith("/NodeStatus") for path, _ in keeper.heard) == 2
    secret = base64.b64encode(b"bob:no secret").decode()
    for text in shown:
        assert "no secret" not in text
        assert secret not in text
    assert "bob" in shown[0]


async def test_a_node_that_refuses_to_tell_its_route_is_asked_less_and_less(
    doorkeeper: tuple[Doorkeeper, str],
) -> None:
    """As one without frames: a wrong password is not sent twice a second for ever."""
    _, endpoint = doorkeeper
    login = Login("alice", "wrong")
    connection = Connection((endpoint, "127.0.0.1:1"), replace(MACHINE, login=login, frames=False))
    assert await connection._learn(connection._over_grpc()) == wire.RouteReply()
    await connection.rotate(connection.moves)
    assert await connection._learn(connection._over_grpc()) is None  # it may answer soon
    await connection.close()


def test_nothing_shows_the_password_and_who_is_named_only_where_that_is_the_question() -> None:
    login = Login("alice", PASSWORD)

    class Dummy:
        unary_unary = unary_stream = stream_stream = staticmethod(lambda *_, **__: print)

    channel: Any = login.over(Dummy())  # type: ignore[arg-type]
    for made in (
        login,
        channel,
        channel.unary_unary("/x"),
        channel.stream_stream("/x"),
        vars(channel),
    ):
        assert PASSWORD not in repr(made)
        assert WORDS[6:] not in repr(made)
    login = Login("alice", PASSWORD)
    busy = duolog.Busy("x")
    assert named(busy, login) is busy
    no_rights = named(duolog.NoPermission("T"), login)
    assert named(no_rights, login) is no_rights  # once
    of_nobody = duolog.NoPermission("topic T allows no writes")
    assert named(of_nobody, None) is of_nobody


@pytest.mark.parametrize("made", [duolog.Client, duolog.sync.Client])
@pytest.mark.parametrize(
    ("user", "password", "why"),
    [
        ("", "secret-7", "without a user"),
        ("alice", "", "without a password"),
        ("a:b", "secret-7", "no colon"),
        ("a\nb", "secret-7", "no control character"),
        ("a\x7fb", "secret-7", "no control character"),
        ("alice", "secret-7\udc80", "valid Unicode"),
    ],
)
def test_a_user_that_cannot_be_is_refused(
    made: type[Any], user: str, password: str, why: str
) -> None:
    with pytest.raises(duolog.BadRequest, match=why) as caught:
        made("127.0.0.1:1", user=user, password=password)
    assert "secret-7" not in "".join(traceback.format_exception(caught.value))


async def test_the_synchronous_client_calls_as_its_user(doorkeeper: tuple[Doorkeeper, str]) -> None:
    import asyncio

    keeper, endpoint = doorkeeper

    def ask() -> None:
        with duolog.sync.Client(endpoint, user="alice", password=PASSWORD) as client:
            client.admin.node_status()

    await asyncio.to_thread(ask)
    assert {who for _, who in keeper.heard} == {WORDS}
