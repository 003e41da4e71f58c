"""Names that a client may not mean well, in every field of every request of the native API."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from duolog._errors import ERROR_KEY
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from tests.hostile import NAMES, check_files, with_each
from tests.keyfiles import access_files
from tests.node.api.test_rights import APPEND, PASSWORD, TABLE, client_of, frames_of, words
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

SECONDS, SILENT_SECONDS = 20.0, 0.05
PUT_STATUSES = ("PUT_OK", "MESSAGE_ILLEGAL", "NO_PERMISSION", "TOPIC_NOT_EXIST")
ANSWERS = frozenset(
    (
        "OK",
        *PUT_STATUSES,
        "BadRequest",
        "UnknownTopic",
        "UnknownGroup",
        "NoSuchMessage",
        "StaleMember",
    )
)


async def ends(channel: Any, name: str, request: Any, how: dict[str, Any]) -> str:
    """How a call ends: OK, the kind of its error, or the status of one that has none."""
    service, method = name.split("/")
    call = getattr(getattr(stubs, f"{service}Stub")(channel), method)
    kind = wire.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    try:
        if kind.client_streaming or kind.server_streaming:
            stream = call(**how) if kind.client_streaming else call(request, **how)
            if kind.client_streaming:
                await stream.write(request)
            return await _first(stream)
        await call(request, **how)
    except grpc.aio.AioRpcError as error:
        trailing = {key: str(value) for key, value in error.trailing_metadata() or ()}
        return trailing.get(ERROR_KEY, f"{error.code().name}: {error.details()}")
    return "OK"


async def _first(stream: Any) -> str:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            reply = await stream.read()
    except TimeoutError:
        return "OK"  # it was let through, and waits
    finally:
        stream.cancel()
    if isinstance(reply, wire.AppendReply):
        return wire.PutStatus.Name(reply.status)
    if reply is grpc.aio.EOF and await stream.code() is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            await stream.code(), None, await stream.trailing_metadata(), await stream.details()
        )
    return "OK"


@pytest.mark.parametrize("over", ["gRPC", "frames"])
async def test_no_name_leaves_the_store_or_ends_without_a_typed_error(
    start_node: StartNode, tmp_path: Path, over: str
) -> None:
    access = access_files(tmp_path, PASSWORD)
    node = await start_node(access=access)
    async with client_of(node, "root") as client, client.producer() as producer:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.access.create_user("normal", PASSWORD)
        await client.admin.create_topic("T", 1)
        await client.admin.put_group("G")
        await producer.send("T", b"kept")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as dialled:
        channel: Any = dialled
        how: dict[str, Any] = {"timeout": SECONDS, "metadata": words("root")}
        if over == "frames":
            channel, how = await frames_of(node, dialled, "root"), {"timeout": SECONDS}
        found = {}
        for method in TABLE:
            if over == "frames" and method == APPEND:
                continue  # it has a frame of its own there
            for name in NAMES if over == "gRPC" else NAMES[::4]:
                for request in with_each(TABLE[method].ask("T", "G"), name):
                    found[method, name[:20], str(request)[:80]] = await ends(
                        channel, method, request, how
                    )
        if over == "frames":
            await channel.close()
    assert {key: end for key, end in found.items() if end not in ANSWERS} == {}
    check_files(tmp_path)
    assert not broker_of(node).failed.is_set()
    async with client_of(node, "root") as client:
        topics = {topic.topic for topic in await client.admin.topics()}
        assert [one.body for one in await client.pull("T", 0, 0)][:1] == [b"kept"]
    await node.stop()
    again = await start_node(access=access)
    async with client_of(again, "root") as client:
        assert {topic.topic for topic in await client.admin.topics()} == topics
        assert [one.body for one in await client.pull("T", 0, 0)][:1] == [b"kept"]
    check_files(tmp_path)
