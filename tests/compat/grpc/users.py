"""Users of nodes under test, and clients that sign as one of them."""

import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Never, cast

from duolog.wire import duolog_pb2 as wire
from google.protobuf.duration_pb2 import Duration

from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.node.api.access import AccessService
from duolog_server.node.identity.access.access import access_of
from duolog_server.serve.server import Node
from tests.compat.grpc.api import CALL_SECONDS, SHORT_POLL_MS, Api, message, resource
from tests.keyfiles import key_file
from tests.node.replicas import broker_of

PASSWORD = "the password of {}"


def with_users(root: Path) -> dict[str, Path]:
    """The `access` of nodes with users."""
    return {"key_file": key_file(root)}


class _NoCall:
    async def abort(self, *why: Any) -> Never:
        raise AssertionError(why)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class Users:
    """Changes users of a node, on its master."""

    def __init__(self, node: Node) -> None:
        broker = broker_of(node)
        tables, wall_ms = lambda: broker.metadata.access, broker.times.wall_ms
        access = access_of(node.config.access, tables, lambda: True, wall_ms)
        assert access is not None
        self._service = AccessService(broker.core, broker.log, access)

    async def put(self, name: str, **how: Any) -> None:
        """Create a user whose password is PASSWORD, or alter one."""
        request = wire.PutUserRequest(user=name, **how)
        await self._service.PutUser(request, cast(Any, _NoCall()))

    async def new(self, name: str, *entries: str, **how: Any) -> None:
        """Create a user with entries as `Pub,Sub Topic:T`."""
        await self.put(name, password=PASSWORD.format(name), signs=True, **how)
        if entries:
            await self.may(name, *entries)

    async def may(self, name: str, *entries: str) -> None:
        """Replace the rights of a user."""
        rows = []
        for entry in entries:
            actions, resource_, *source = entry.split()
            row: dict[str, Any] = {
                "resource": resource_, "actions": actions.split(","), "decision": "Allow"
            }  # fmt: skip
            if source:
                row["sourceIps"] = source
            rows.append(row)
        rights = {"policies": [{"policyType": "Custom", "entries": rows}]} if rows else {}
        request = wire.PutRightsRequest(user=name, rights=json.dumps(rights) if rows else "")
        await self._service.PutRights(request, cast(Any, _NoCall()))


def headers(name: str, secret: str = "", date: str = "") -> dict[str, str]:
    """The headers of a signed call."""
    date = date or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    key = secret or PASSWORD.format(name)
    signature = hmac.new(key.encode(), date.encode(), hashlib.sha1).hexdigest()
    authorization = (
        f"MQv2-HMAC-SHA1 Credential={name}/region/x, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}"
    )
    return {"x_mq_date_time": date, "authorization": authorization}


def as_user(node: Node, name: str, *, client_id: str = "test@1", secret: str = "") -> Api:
    """A client that signs as a user, within the next minutes."""
    return Api(node, client_id, **headers(name, secret))


def old(seconds: float) -> str:
    """A date so long ago, in UTC."""
    return f"{datetime.now(UTC) - timedelta(seconds=seconds):%Y%m%dT%H%M%SZ}"


def requests(topic: str = "T", group: str = "g", namespace: str = "") -> dict[str, Any]:
    """One request of each method, by its name."""
    t, g = resource(topic, namespace), resource(group, namespace)
    queue = definition.MessageQueue(topic=t, id=0)
    publishing = definition.Publishing(topics=[t])
    return {
        "QueryRoute": service.QueryRouteRequest(topic=t),
        "Heartbeat": service.HeartbeatRequest(group=g),
        "SendMessage": service.SendMessageRequest(
            messages=[message(topic=topic, namespace=namespace)]
        ),
        "QueryAssignment": service.QueryAssignmentRequest(topic=t, group=g),
        "ReceiveMessage": service.ReceiveMessageRequest(
            group=g,
            message_queue=queue,
            batch_size=1,
            auto_renew=True,
            long_polling_timeout=Duration(nanos=SHORT_POLL_MS * 1_000_000),
        ),
        "AckMessage": service.AckMessageRequest(
            group=g, topic=t, entries=[service.AckMessageEntry(receipt_handle="x")]
        ),
        "ForwardMessageToDeadLetterQueue": service.ForwardMessageToDeadLetterQueueRequest(
            group=g, topic=t, receipt_handle="x"
        ),
        "PullMessage": service.PullMessageRequest(
            group=g, message_queue=queue, offset=0, batch_size=1
        ),
        "UpdateOffset": service.UpdateOffsetRequest(group=g, message_queue=queue, offset=0),
        "GetOffset": service.GetOffsetRequest(group=g, message_queue=queue),
        "QueryOffset": service.QueryOffsetRequest(message_queue=queue),
        "EndTransaction": service.EndTransactionRequest(topic=t, transaction_id="x"),
        "Telemetry": service.TelemetryCommand(settings=definition.Settings(publishing=publishing)),
        "NotifyClientTermination": service.NotifyClientTerminationRequest(group=g),
        "ChangeInvisibleDuration": service.ChangeInvisibleDurationRequest(
            group=g, topic=t, receipt_handle="x"
        ),
        "RecallMessage": service.RecallMessageRequest(topic=t, recall_handle="x"),
        "SyncLiteSubscription": service.SyncLiteSubscriptionRequest(
            topic=t, group=g, lite_topic_set=["x"]
        ),
    }


async def first_code(api: Api, name: str, request: Any) -> int:
    """The code of the first reply of a method."""
    found = await first_reply(api, name, request)
    return int(found.status.code)


async def first_reply(api: Api, name: str, request: Any) -> Any:
    """The first reply of a method."""
    if name not in ("ReceiveMessage", "PullMessage", "Telemetry"):
        return await api.call(name, request)
    asked = iter((request,)) if name == "Telemetry" else request
    call = getattr(api.stub, name)(asked, metadata=api.metadata, timeout=CALL_SECONDS)
    reply = await call.read()
    call.cancel()
    return reply


async def codes(api: Api, asked: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """The code of the first reply to each request, by method."""
    return {name: await first_code(api, name, request) for name, request in asked}
