"""What the audit log says of a request: its resource, and the fields that are no secrets.

A field that is named neither here nor in HIDDEN is not written, and a test finds it.
"""

from collections.abc import Mapping
from typing import Any

from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import Message

# Methods that change something by order of an operator, and what is written of their requests.
CHANGES: Mapping[str, tuple[str, ...]] = {
    "Admin/ResetGroup": ("group", "topic", "offset", "time", "start"),
    "Admin/Failover": ("node", "epoch"),
    "Admin/Drain": ("node", "undo"),
    "Admin/Forget": ("node",),
    "Admin/Freeze": ("seconds",),
    "Admin/SetGuarantee": ("setting", "value"),
    "Admin/ElectUnclean": ("epoch",),
    "Admin/PutQuota": (
        *("subject", "bytes_in", "messages_in", "bytes_out", "messages_out", "connections"),
        *("topics", "burst_ms"),
    ),
    "Admin/DeleteQuota": ("subject",),
    "Groups/Commit": ("group", "offsets"),
    "Admin/RecallDelayed": ("topic", "queue_offset", "unique_key"),
    "Admin/DecideHalf": ("group", "half", "commit"),
    "Admin/MoveQueue": ("topic", "queue_id", "group", "plan"),
    "Admin/AbortMove": ("topic", "queue_id"),
    "Admin/RetireGroup": ("replica_group", "undo"),
    "Admin/ForgetGroup": ("replica_group",),
    "Access/PutUser": ("user", "super", "disabled", "signs", "create"),
    "Access/DeleteUser": ("user",),
    "Access/PutRights": ("user", "rights"),
    "Access/IssueToken": ("user", "seconds"),
    "Recovery/Recover": ("user",),
}
# Methods whose service notes them, by whichever protocol they are called.
OPERATOR_CHANGES = (
    *("Admin/CreateTopic", "Admin/AlterTopic", "Admin/DeleteTopic", "Admin/TrimTopic"),
    *("Admin/PutGroup", "Admin/DeleteGroup", "Admin/ResetGroup"),
)
HIDDEN = {
    "Access/PutUser": ("password", "generation", "generation_counts"),
    "Access/PutRights": ("expected",),
    "Groups/Commit": ("member_id", "generation", "forward"),
    "Recovery/Recover": ("challenge", "password_hash", "mark"),
}
_OF_GROUPS: tuple[str, ...] = ("Admin/DeleteGroup", "Admin/PutGroup", "Admin/ResetGroup", "Groups")
_OF_GROUPS += ("UpdateOffset", "GetOffset")  # RocketMQ's
_RESOURCES = (("topic", "Topic"), ("group", "Group"), ("user", "User"), ("sink", "Group"))


def resource_of(method: str, request: Any) -> str:
    """What a request is about, as Topic:orders; empty where it names nothing."""
    subject: Any = getattr(request, "subject", "")
    if subject:  # of a quota
        return str(subject)
    for place in getattr(request, "add", ()):  # to a subscription
        return f"Topic:{place.topic}"
    for message in getattr(request, "messages", ()):  # of RocketMQ's, all of one topic
        request = message
        break
    of_group = method.startswith(_OF_GROUPS)
    if not of_group:
        request = getattr(request, "message_queue", request)
    order = (_RESOURCES[1], *_RESOURCES) if of_group else _RESOURCES
    for field, kind in order:
        name: Any = getattr(request, field, "")
        if isinstance(name, str) and name:
            return f"{kind}:{name}"
        if not isinstance(name, str) and hasattr(name, "name") and name.name:  # RocketMQ's
            space = f"{name.resource_namespace}%" if name.resource_namespace else ""
            return f"{kind}:{space}{name.name}"
    return "Cluster:" if method in CHANGES and method.startswith("Admin/") else ""


def is_change(method: str, request: Any) -> bool:
    """Whether a call is written at the level `changes`; of commits, those that no program makes
    as it consumes: without a member, and possibly back. To plan a move changes nothing.
    """
    if method == "Groups/Commit":
        return not request.member_id and not request.forward
    if method == "Admin/MoveQueue":
        return not request.plan
    return method in CHANGES


def shown_of(method: str, request: Message) -> dict[str, object]:
    """The fields of a change that are set, and are no secrets."""
    allowed = CHANGES.get(method, ())
    return {
        field.name: value if isinstance(value, str | int) else [_text(one) for one in value]
        for field, value in request.ListFields()
        if field.name in allowed
    }


def _text(value: Any) -> Any:
    """One of several values of a field, as JSON has it."""
    if isinstance(value, wire.QueueOffset):
        return f"{value.topic}/{value.queue_id}@{value.offset}"
    return value
