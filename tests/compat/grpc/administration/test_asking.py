"""Questions of operators to clients, on their telemetry streams."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duolog_server.compat.grpc.administration import asking
from duolog_server.compat.grpc.protocol.stubs import Code, admin, definition, service
from duolog_server.compat.grpc.relay.clients import Questions
from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi, as_admin, requests, subscribed
from tests.compat.grpc.api import Api, message, resource
from tests.compat.grpc.test_cluster import start_group
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, headers, with_users
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode


def trace_of(client_id: str = "test@1") -> Any:
    return admin.PrintThreadStackTraceRequest(group=resource("g"), client_id=client_id)


async def tell(stream: Any, nonce: str, text: str = "main: runs") -> None:
    answer = definition_of(nonce, text)
    await stream.write(service.TelemetryCommand(thread_stack_trace=answer))


def definition_of(nonce: str, text: str) -> Any:
    return service.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)


async def asked(stream: Any) -> Any:
    """The next command to a client."""
    async with asyncio.timeout(60):
        return await stream.read()


async def test_a_client_says_where_its_threads_are(admin_api: AdminApi, api: Api) -> None:
    stream = await subscribed(api)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(admin_api.call("PrintThreadStackTrace", trace_of()))
        command = await asked(stream)
        assert command.WhichOneof("command") == "print_thread_stack_trace_command"
        assert command.status.code == Code.OK
        await tell(stream, command.print_thread_stack_trace_command.nonce)
    reply = call.result()
    assert (reply.status.code, reply.thread_stack_trace) == (Code.OK, "main: runs")
    stream.cancel()


async def test_only_the_client_that_was_asked_answers(
    node: Node, admin_api: AdminApi, api: Api
) -> None:
    other = Api(node, "other")
    stream, others = await subscribed(api), await subscribed(other)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(admin_api.call("PrintThreadStackTrace", trace_of()))
        nonce = (await asked(stream)).print_thread_stack_trace_command.nonce
        await tell(others, nonce, "a lie")
        publishing = definition.Publishing(topics=[resource("T")])
        settings = service.TelemetryCommand(settings=definition.Settings(publishing=publishing))
        await others.write(settings)  # whose answer comes after the lie was read
        await asked(others)
        await tell(stream, "of nothing", "a mistake")
        await tell(stream, nonce)
    assert call.result().thread_stack_trace == "main: runs"
    for one in (stream, others):
        one.cancel()
    await other.close()


async def test_a_client_that_does_not_answer_is_told_of(
    admin_api: AdminApi, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASK_SECONDS", 0.5)
    stream = await subscribed(api)
    reply = await admin_api.call("PrintThreadStackTrace", trace_of())
    assert reply.status.code == Code.REQUEST_TIMEOUT
    assert "test@1" in reply.status.message
    for client_id in ("nobody", ""):
        code = await admin_api.code("PrintThreadStackTrace", trace_of(client_id))
        assert code == Code.NOT_FOUND
    stream.cancel()
    mute = Api(admin_api.node, "mute")
    await mute.call("Heartbeat", service.HeartbeatRequest(group=resource("g")))
    reply = await admin_api.call("PrintThreadStackTrace", trace_of("mute"))
    assert (reply.status.code, "no telemetry stream" in reply.status.message) == (
        Code.NOT_FOUND,
        True,
    )
    await mute.close()


@pytest.mark.parametrize(("left", "seconds"), [(None, 10), (60, 10), (5, 4.7), (0.1, 0)])
def test_a_client_answers_before_the_call_ends(left: float | None, seconds: float) -> None:
    caller: Any = SimpleNamespace(time_remaining=lambda: left)
    assert asking._seconds(caller) == pytest.approx(seconds)


async def test_questions_are_bounded(
    admin_api: AdminApi, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.grpc.relay.clients.QUESTIONS_MAX", 0)
    stream = await subscribed(api)
    code = await admin_api.code("PrintThreadStackTrace", trace_of())
    assert code == Code.TOO_MANY_REQUESTS
    stream.cancel()


@pytest.mark.parametrize("code", [Code.OK, Code.FAILED_TO_CONSUME_MESSAGE])
async def test_a_client_processes_a_message(admin_api: AdminApi, api: Api, code: Code) -> None:
    entry = (await api.send(message(b"to verify"))).entries[0]
    stream = await subscribed(api)
    request = requests()["VerifyMessage"]
    request.client_id = "test@1"
    assert await admin_api.code("VerifyMessage", request) == Code.MESSAGE_NOT_FOUND
    request.message_id = entry.message_id
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(admin_api.call("VerifyMessage", request))
        command = (await asked(stream)).verify_message_command
        assert command.message.body == b"to verify"
        assert command.message.topic == resource("T")
        result = service.VerifyMessageResult(nonce=command.nonce)
        status = definition.Status(code=code, message="as it ended")
        await stream.write(service.TelemetryCommand(status=status, verify_message_result=result))
    assert call.result().status == status
    stream.cancel()


async def test_a_client_of_a_slave_is_asked_through_it(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    api, admin_api = Api(slave), AdminApi(master)
    stream = await subscribed(api)
    async with asyncio.timeout(30):
        found = broker_of(master).connected
        while not any(found.consumers(["g"])):
            await asyncio.sleep(0.05)
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(admin_api.call("PrintThreadStackTrace", trace_of()))
            nonce = (await asked(stream)).print_thread_stack_trace_command.nonce
            await tell(stream, "of nothing", "x" * 1000)
            await tell(stream, nonce)
    assert call.result().thread_stack_trace == "main: runs"
    stream.cancel()
    await api.close()
    await admin_api.close()


async def test_a_message_is_verified_by_those_who_may_read_it(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=with_users(tmp_path))
    await make_topics(node, "T", "U")
    users = Users(node)
    await users.new("root", super=True)
    await users.new("reader", "Sub,Pub Topic:T", "Sub Group:g")
    reader, root = Api(node, **headers("reader")), as_admin(node, "root")
    stream = await subscribed(reader)
    (row,) = (
        await root.call("ListConsumerConnection", requests()["ListConsumerConnection"])
    ).client_info
    assert row.client_id == "reader/test@1"
    secret = (await root.call("AdminSendMessage", requests("U")["AdminSendMessage"])).message_id
    request = requests("U")["VerifyMessage"]
    request.client_id, request.message_id = row.client_id, secret
    assert await root.code("VerifyMessage", request) == Code.FORBIDDEN
    stream.cancel()
    await reader.close()
    await root.close()


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    command = service.TelemetryCommand(thread_stack_trace=definition_of("x", "y"))
    Questions().answered(None, command)  # type: ignore[arg-type]
