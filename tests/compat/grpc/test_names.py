"""Names that a client may not mean well, in every field of every request of RocketMQ's API."""

from pathlib import Path
from typing import Any

import grpc.aio

from duolog_server.compat.grpc.protocol.stubs import Code
from tests.compat.grpc.api import Api, message
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, as_user, first_code, requests, with_users
from tests.hostile import NAMES, check_files, with_each
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

_FAULTS = {
    Code.INTERNAL_ERROR,
    Code.INTERNAL_SERVER_ERROR,
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    "INTERNAL",
    "UNKNOWN",
    "RESOURCE_EXHAUSTED",
}


_POLLS = (
    "ReceiveMessage",
    "PullMessage",
    "Telemetry",
)  # take their time where they are let through


async def _code(api: Api, method: str, request: Any) -> int | str:
    """The code of the first reply, or the status of a stream that ends without one."""
    try:
        return await first_code(api, method, request)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)


async def test_no_name_leaves_the_store_or_ends_in_an_internal_error(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=with_users(tmp_path))
    await make_topics(node, "T")
    await Users(node).new("root", super=True)
    api = as_user(node, "root")
    await api.send(message(b"kept"))
    found = {}
    for method, valid in requests("T", "g").items():
        for name in NAMES[::6] if method in _POLLS else NAMES:
            for request in with_each(valid, name):
                if method == "Telemetry" and not request.HasField("settings"):
                    continue  # nothing else has an answer
                found[method, name[:20], str(request)[:80]] = await _code(api, method, request)
    for name in NAMES:
        if name.isascii() and name.isprintable() and len(name) < 1000:  # others are no headers
            client = as_user(node, "root", client_id=name)
            for method in ("Heartbeat", "SyncLiteSubscription", "ReceiveMessage"):
                found[method, name, "id"] = await _code(client, method, requests()[method])
            await client.close()
    assert {key: code for key, code in found.items() if code in _FAULTS} == {}
    assert not broker_of(node).failed.is_set()
    check_files(tmp_path)
