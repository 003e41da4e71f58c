"""Every method of the native API, called by everybody: who is let through."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog._access import denials_of
from duolog._columns import crc32
from duolog._frameschannel import FramesChannel, connect
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs
from google.protobuf.message import Message

from duolog_server.node.api.access import PLANNED_MAX
from duolog_server.node.api.rules import RULES
from duolog_server.node.identity.access.rules import reads
from duolog_server.node.identity.access.secrets import hash_password
from duolog_server.node.identity.rights.decision import decide
from duolog_server.node.identity.rights.policies import Acl
from duolog_server.node.identity.rights.resources import Kind, Resource
from duolog_server.serve.server import Node
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
APPEND = "Messages/Append"
CHECKS = "Messages/TransactionChecks"
CLUSTER = "Cluster:DefaultCluster"


def batch(topic: str) -> wire.AppendRequest:
    """One message, of one byte."""
    offsets = b"\0\0\0\0\1\0\0\0"
    return wire.AppendRequest(
        id=1, topic=topic, bodies=b"x", body_offsets=offsets, crc32=crc32(b"x", offsets, b"", b"")
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A method: what it is asked for a topic and a group, and the entries that this needs.

    shows: it answers everybody who is a user; with what that user may see.
    """

    ask: Callable[[str, str], Message]
    entries: tuple[str, ...] = ()
    shows: bool = False


def _queue(topic: str) -> dict[str, Any]:
    return {"topic": topic, "queue_id": 0}


T, G = "Topic:{t}", "Group:{g}"
TABLE = {
    APPEND: Row(lambda t, g: batch(t), (f"{T} Pub",)),
    "Messages/Pull": Row(lambda t, g: wire.PullRequest(topic=t), (f"{T} Sub",)),
    "Messages/Subscribe": Row(
        lambda t, g: wire.SubscribeRequest(
            add=[wire.QueueOffset(topic=t)], group=g, credit_bytes=1 << 20
        ),
        (f"{T} Sub", f"{G} Sub"),
    ),
    "Messages/Find": Row(lambda t, g: wire.FindRequest(topic=t, key="k"), (f"{T} Sub",)),
    "Messages/Stage": Row(
        lambda t, g: wire.StageRequest(sink=g, batch=batch(t).SerializeToString()),
        (f"{T} Pub", f"{G} Pub"),
    ),
    "Messages/Publish": Row(lambda t, g: wire.PublishRequest(sink=g, batch=1), (f"{G} Pub",)),
    "Messages/SinkState": Row(lambda t, g: wire.SinkStateRequest(sink=g), (f"{G} Get",)),
    "Messages/EndTransactions": Row(
        lambda t, g: wire.EndTransactionsRequest(group=g, halves=[7]), (f"{G} Pub",)
    ),
    CHECKS: Row(lambda t, g: wire.TransactionChecksRequest(group=g), (f"{G} Pub",)),
    "Groups/Heartbeat": Row(
        lambda t, g: wire.HeartbeatRequest(group=g, member_id="m", topics=[t], session_ms=9000),
        (f"{T} Sub", f"{G} Sub"),
    ),
    "Groups/Leave": Row(lambda t, g: wire.LeaveRequest(group=g, member_id="m"), (f"{G} Sub",)),
    "Groups/Commit": Row(
        lambda t, g: wire.CommitRequest(group=g, offsets=[wire.QueueOffset(topic=t)]),
        (f"{T} Sub", f"{G} Sub"),
    ),
    "Groups/Offsets": Row(
        lambda t, g: wire.OffsetsRequest(group=g, queues=[wire.QueueRef(topic=t)]), (f"{G} Get",)
    ),
    "Groups/OffsetAtTime": Row(
        lambda t, g: wire.OffsetAtTimeRequest(**_queue(t), start=wire.EARLIEST), (f"{T} Get",)
    ),
    "Groups/OffsetAtSize": Row(
        lambda t, g: wire.OffsetAtSizeRequest(**_queue(t), bytes=1), (f"{T} Get",)
    ),
    "Groups/SendBack": Row(
        lambda t, g: wire.SendBackRequest(group=g, **_queue(t)), (f"{T} Sub", f"{G} Sub")
    ),
    "Admin/CreateTopic": Row(lambda t, g: wire.TopicRequest(topic=t, queues=1), (f"{T} Create",)),
    "Admin/AlterTopic": Row(lambda t, g: wire.TopicRequest(topic=t), (f"{T} Update",)),
    "Admin/DeleteTopic": Row(lambda t, g: wire.DeleteTopicRequest(topic=t), (f"{T} Delete",)),
    "Admin/ListTopics": Row(lambda t, g: wire.ListTopicsRequest(topics=[t]), (f"{T} List",)),
    "Admin/ListGroups": Row(lambda t, g: wire.ListGroupsRequest(), shows=True),
    "Admin/DescribeGroup": Row(lambda t, g: wire.DescribeGroupRequest(group=g), (f"{G} Get",)),
    "Admin/ResetGroup": Row(
        lambda t, g: wire.ResetGroupRequest(group=g, topic=t, start=wire.EARLIEST),
        (f"{T} Get", f"{G} Create,Update"),
    ),
    "Admin/PutGroup": Row(lambda t, g: wire.PutGroupRequest(group=g), (f"{G} Create,Update",)),
    "Admin/DeleteGroup": Row(lambda t, g: wire.DeleteGroupRequest(group=g), (f"{G} Delete",)),
    "Admin/Track": Row(lambda t, g: wire.TrackRequest(**_queue(t)), (f"{T} Get",)),
    "Admin/NodeStatus": Row(lambda t, g: wire.NodeStatusRequest(), (f"{CLUSTER} Get",)),
    "Admin/ClusterStatus": Row(lambda t, g: wire.ClusterStatusRequest(), (f"{CLUSTER} Get",)),
    "Admin/Route": Row(lambda t, g: wire.RouteRequest(), shows=True),
    "Admin/Failover": Row(lambda t, g: wire.FailoverRequest(), (f"{CLUSTER} Update",)),
    "Admin/Drain": Row(lambda t, g: wire.DrainRequest(node="x"), (f"{CLUSTER} Update",)),
    "Admin/Forget": Row(lambda t, g: wire.ForgetRequest(node="x"), (f"{CLUSTER} Update",)),
    "Admin/Freeze": Row(lambda t, g: wire.FreezeRequest(), (f"{CLUSTER} Update",)),
    "Admin/SetGuarantee": Row(
        lambda t, g: wire.SetGuaranteeRequest(setting="x"), (f"{CLUSTER} Update",)
    ),
    "Admin/ElectUnclean": Row(lambda t, g: wire.ElectUncleanRequest(), (f"{CLUSTER} Update",)),
    "Admin/PutQuota": Row(lambda t, g: wire.PutQuotaRequest(subject=f"Topic:{t}", bytes_in=1)),
    "Admin/DeleteQuota": Row(lambda t, g: wire.DeleteQuotaRequest(subject=f"Topic:{t}")),
    "Admin/ListQuotas": Row(lambda t, g: wire.ListQuotasRequest(), (f"{CLUSTER} Get",)),
    "Admin/ListDelayed": Row(lambda t, g: wire.ListDelayedRequest(topic=t), (f"{T} List",)),
    "Admin/RecallDelayed": Row(
        lambda t, g: wire.RecallDelayedRequest(topic=t, unique_key="k"), (f"{T} Pub",)
    ),
    "Admin/ListHalves": Row(lambda t, g: wire.ListHalvesRequest(topic=t), (f"{T} List",)),
    "Admin/DecideHalf": Row(lambda t, g: wire.DecideHalfRequest(group=g, half=7), (f"{G} Pub",)),
    "Admin/MoveQueue": Row(
        lambda t, g: wire.MoveQueueRequest(**_queue(t), group="x"), (f"{CLUSTER} Update",)
    ),
    "Admin/AbortMove": Row(lambda t, g: wire.AbortMoveRequest(**_queue(t)), (f"{CLUSTER} Update",)),
    "Admin/RetireGroup": Row(
        lambda t, g: wire.RetireGroupRequest(replica_group="x"), (f"{CLUSTER} Update",)
    ),
    "Admin/ForgetGroup": Row(
        lambda t, g: wire.ForgetGroupRequest(replica_group="x"), (f"{CLUSTER} Update",)
    ),
    "Admin/TrimTopic": Row(lambda t, g: wire.TrimTopicRequest(topic=t, time=1), (f"{T} Delete",)),
    "Admin/ListMoves": Row(lambda t, g: wire.ListMovesRequest(topic=t), (f"{T} List",)),
    "Access/WhoAmI": Row(lambda t, g: wire.WhoAmIRequest(), shows=True),
    "Access/PutUser": Row(lambda t, g: wire.PutUserRequest(user="u", password="p")),
    "Access/DeleteUser": Row(lambda t, g: wire.DeleteUserRequest(user="u")),
    "Access/ListUsers": Row(lambda t, g: wire.ListUsersRequest()),
    "Access/PutRights": Row(lambda t, g: wire.PutRightsRequest(user="normal")),
    "Access/GetRights": Row(lambda t, g: wire.GetRightsRequest(user="normal")),
    "Access/TestAccess": Row(
        lambda t, g: wire.TestAccessRequest(user="root", action="Pub", resource=f"Topic:{t}")
    ),
    "Access/IssueToken": Row(lambda t, g: wire.IssueTokenRequest(user="root", seconds=9)),
}
ALL_ENTRIES = sorted({entry for row in TABLE.values() for entry in row.entries})


def rights_of(entries: list[str], topic: str = "T", group: str = "G") -> str:
    """Entries as rights, in RocketMQ's JSON."""
    rows = []
    for entry in entries:
        resource, actions = entry.format(t=topic, g=group).split(" ")
        rows.append({"resource": resource, "actions": actions.split(","), "decision": "Allow"})
    return json.dumps({"policies": [{"policyType": "Custom", "entries": rows}]})


@pytest.fixture
def access(tmp_path: Path) -> dict[str, str]:
    """Configuration of a node that has users."""
    return access_files(tmp_path, PASSWORD)


@pytest.fixture
async def node(start_node: StartNode, access: dict[str, str]) -> Node:
    """With a topic T, a group G, and users: one that may do nothing, one that may do everything by
    entries, one that may do so in another namespace, a disabled one.
    """
    made = await start_node(access=access)
    async with client_of(made, "root") as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        for name in ("nothing", "normal", "elsewhere", "disabled"):
            await client.access.create_user(name, PASSWORD)
        await client.access.set_rights("normal", rights_of(ALL_ENTRIES))
        await client.access.set_rights("disabled", rights_of(ALL_ENTRIES))
        others = [entry for entry in ALL_ENTRIES if CLUSTER not in entry]
        await client.access.set_rights("elsewhere", rights_of(others, "other%T", "other%G"))
        await client.access.alter_user("disabled", disabled=True)
        await client.admin.create_topic("T", 1)
        await client.admin.put_group("G")
    return made


def client_of(node: Node, user: str, password: str = PASSWORD) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=30, user=user, password=password)


def words(user: str, password: str = PASSWORD) -> tuple[tuple[str, str], ...]:
    """The metadata of a user's calls."""
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return (("authorization", f"Basic {text}"),)


async def outcome(channel: Any, name: str, who: Any = None, patience: float = 30.0) -> str:
    """How a call of a method ends: the name of a status code; a batch that is refused counts as
    denied. who: metadata, over gRPC. patience: seconds, after which a stream that is silent was let
    through.
    """
    how: dict[str, Any] = {"timeout": 30} if who is None else {"metadata": who, "timeout": 30}
    service, method = name.split("/")
    stub = getattr(stubs, f"{service}Stub")(channel)
    call, request = getattr(stub, method), TABLE[name].ask("T", "G")
    descriptor = wire.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    try:
        if descriptor.client_streaming:
            stream = call(**how)
            await stream.write(request)
            reply = await _first(stream, patience)
        elif descriptor.server_streaming:
            reply = await _first(call(request, **how), patience)
        else:
            reply = await call(request, **how)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    if isinstance(reply, wire.AppendReply) and reply.status == wire.NO_PERMISSION:
        return "PERMISSION_DENIED"
    return "OK"


async def let_through(channel: Any, name: str, user: str) -> str:
    """As `outcome`, for a user who may. Once a batch was appended, all streams have something to
    answer but that of checks.
    """
    return await outcome(channel, name, words(user), 1.0 if name == CHECKS else 30.0)


async def _first(stream: Any, patience: float) -> Any:
    """The first reply, or None where none comes: the call was let through, and waits."""
    try:
        async with asyncio.timeout(patience):
            found = await stream.read()
            if found is grpc.aio.EOF:
                code = await stream.code()
                raise grpc.aio.AioRpcError(code, None, None, await stream.details())
            return found
    except TimeoutError:
        return None
    finally:
        stream.cancel()


async def frames_of(node: Node, channel: grpc.aio.Channel, user: str) -> FramesChannel:
    """A frames connection of a user."""
    route = await stubs.AdminStub(channel).Route(wire.RouteRequest(), metadata=words(user))
    return await connect(("127.0.0.1", route.frames_port), route.frames_key, 30)


async def append_over(frames: FramesChannel) -> str:
    """As `outcome`, of an append, which has a frame of its own."""
    request, deadline = batch("T"), asyncio.get_running_loop().time() + 5
    bodies = request.bodies
    request.ClearField("bodies")
    reply = await frames.append(request, bodies, deadline)
    return "PERMISSION_DENIED" if reply.status == wire.NO_PERMISSION else "OK"


@pytest.fixture
async def channel(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as made:
        yield made


def test_every_method_has_a_rule_and_a_row() -> None:
    services = wire.DESCRIPTOR.services_by_name.values()
    methods = {f"{s.name}/{m.name}" for s in services for m in s.methods}
    assert TABLE.keys() == methods
    assert RULES.keys() == {f"/duolog.v1.{method}" for method in methods}


@pytest.mark.parametrize(
    "who",
    [
        (),
        words("nobody"),
        words("normal", "a wrong password"),
        words("disabled"),
        (("authorization", "Basic !!!"),),
        (("authorization", "Bearer x"),),
    ],
    ids=["no one", "unknown", "wrong password", "disabled", "no base64", "other scheme"],
)
async def test_who_is_no_user_gets_nothing(channel: grpc.aio.Channel, who: Any) -> None:
    found = {name: await outcome(channel, name, who) for name in TABLE}
    assert found == dict.fromkeys(TABLE, "UNAUTHENTICATED")


# Of whom these two are asked about, they decide by themselves.
BY_THEMSELVES = {"Access/TestAccess", "Access/IssueToken"}


async def test_what_would_be_denied_is_said_before_it_is_called(node: Node) -> None:
    calls = [
        wire.PlannedCall(method=name, request=row.ask("T", "G").SerializeToString())
        for name, row in TABLE.items()
    ]
    denied = {}
    for user in ("nothing", "normal", "root"):
        async with client_of(node, user) as client:
            found = zip(TABLE, await denials_of(client.access, calls), strict=True)
            denied[user] = {name for name, why in found if why}
    assert denied["nothing"] == {name for name, row in TABLE.items() if not row.shows}.difference(
        BY_THEMSELVES
    )
    assert denied["normal"] == {
        name for name, row in TABLE.items() if not row.entries and not row.shows
    }.difference(BY_THEMSELVES)
    assert denied["root"] == set()


async def test_an_empty_name_stands_for_any(node: Node) -> None:
    topic = wire.TopicRequest().SerializeToString()
    group = wire.DescribeGroupRequest().SerializeToString()
    calls = [
        wire.PlannedCall(method="Admin/CreateTopic", request=topic),
        wire.PlannedCall(method="Admin/DescribeGroup", request=group),
    ]
    for entries, create, describe in (
        ([], False, False),
        (["Topic:or* Create"], True, False),
        (["Topic:or* Pub", "Group:* Get"], False, True),
        (["* All"], True, True),
        (["Namespace:eu All"], True, True),
        (["Cluster:* All"], False, False),
    ):
        async with client_of(node, "root") as root, client_of(node, "nothing") as client:
            await root.access.set_rights("nothing", rights_of(entries) if entries else "")
            found = await denials_of(client.access, calls)
        assert [not why for why in found] == [create, describe], entries
    assert "no entry allows Create on any Topic" in found[0]


async def test_calls_that_are_asked_about_are_few_and_known(node: Node) -> None:
    one = wire.PlannedCall(method="Admin/Route")
    async with client_of(node, "nothing") as client:
        for calls in (
            [one] * (PLANNED_MAX + 1),
            [wire.PlannedCall(method="Admin/Nothing")],
            [wire.PlannedCall(method="Admin/AlterTopic", request=b"\xff")],
        ):
            with pytest.raises(duolog.BadRequest):
                await denials_of(client.access, calls)
        assert await denials_of(client.access, [one] * PLANNED_MAX) == [""] * PLANNED_MAX


@pytest.mark.parametrize("over", ["gRPC", "frames"])
@pytest.mark.parametrize("user", ["nothing", "elsewhere"])
async def test_who_has_no_right_to_it_is_denied(
    node: Node, channel: grpc.aio.Channel, user: str, over: str
) -> None:
    if over == "gRPC":
        found = {name: await outcome(channel, name, words(user)) for name in TABLE}
    else:
        frames = await frames_of(node, channel, user)
        found = {name: await outcome(frames, name) for name in TABLE if name != APPEND}
        found[APPEND] = await append_over(frames)
        await frames.close()
    assert found == {
        name: "OK" if row.shows else "PERMISSION_DENIED" for name, row in TABLE.items()
    }


async def test_who_has_the_rights_is_let_through(channel: grpc.aio.Channel) -> None:
    """What is for super users only stays so."""
    names = sorted(TABLE, key=lambda name: "Delete" in name)
    found = {name: await let_through(channel, name, "normal") for name in names}
    denied = {name for name, code in found.items() if code in {code.name for code in DENIED}}
    assert denied == {name for name, row in TABLE.items() if not row.entries and not row.shows}


async def test_a_super_user_may_do_everything(channel: grpc.aio.Channel) -> None:
    names = sorted(TABLE, key=lambda name: "Delete" in name)
    found = {name: await let_through(channel, name, "root") for name in names}
    assert not {name for name, code in found.items() if code in {code.name for code in DENIED}}


LONG = "g" * 200


class Facts:
    cluster = "DefaultCluster"
    groups = (LONG,)

    def has_group(self, name: str) -> bool:
        return True

    def has_topic(self, name: str) -> bool:
        return True

    def check_knows(self) -> None:
        pass


def test_a_topic_with_a_digest_of_a_long_group_is_that_groups() -> None:
    for topic in (dead_letter_topic(LONG), group_retry_topic(LONG)):
        assert len(topic) < len(LONG)
        (found,) = reads(topic, Facts())
        assert found.resource == Resource(Kind.GROUP, LONG)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Heartbeat", wire.HeartbeatRequest(group="G", topics=["T", "U"])),
        ("Commit", wire.CommitRequest(group="G", offsets=[wire.QueueOffset(topic="T")])),
        (
            "Offsets",
            wire.OffsetsRequest(group="G", begin="EARLIEST", queues=[wire.QueueRef(topic="T")]),
        ),
    ],
)
def test_topics_of_a_call_are_looked_at_one_by_one(name: str, request_: Any) -> None:
    """Groups are looked through for some: all of a call at once would stop the node."""

    class Nothing(Facts):
        @property
        def groups(self) -> Any:  # type: ignore[override]
            raise AssertionError("a topic was looked at already")

    needs = iter(RULES[f"/duolog.v1.Groups/{name}"].needs(request_, Nothing()))
    assert next(needs).resource == Resource(Kind.GROUP, "G")
    with pytest.raises(AssertionError, match="already"):
        next(needs)


@pytest.mark.parametrize(
    ("name", "entry"),
    [(name, entry) for name, row in TABLE.items() for entry in row.entries],
)
def test_each_entry_of_a_row_is_needed(name: str, entry: str) -> None:
    """A row that named too much would hide a rule that asks for too little."""
    row = TABLE[name]
    needs = list(RULES[f"/duolog.v1.{name}"].needs(row.ask("T", "G"), Facts()))
    rest = [one for one in row.entries if one != entry]

    def passes(entries: list[str]) -> bool:
        acl = Acl.from_json({"subject": "User:u", **json.loads(rights_of(entries))})
        return all(decide(acl, need, "127.0.0.1").allowed for need in needs)

    assert passes(list(row.entries))
    assert not passes(rest)


def test_a_group_begins_for_those_alone_who_may_commit_for_it() -> None:
    begins = wire.OffsetsRequest(group="G", queues=[wire.QueueRef(topic="T")], begin=wire.LATEST)
    commits = TABLE["Groups/Commit"].ask("T", "G")
    needs, enough = (
        list(RULES[f"/duolog.v1.Groups/{name}"].needs(request, Facts()))
        for name, request in (("Offsets", begins), ("Commit", commits))
    )
    assert needs == enough


async def test_a_change_counts_at_once_on_open_streams(node: Node) -> None:
    """Over frames, and over gRPC: a reader that lost its right gets nothing more."""
    async with client_of(node, "root") as root, client_of(node, "normal") as normal:
        async with normal.producer() as producer, root.producer() as others:
            await producer.send("T", b"1")
            async with normal.consumer("G", ["T"]) as consumer:
                message = await consumer.get(5)
                assert message is not None
                await root.access.set_rights("normal", "")
                await others.send("T", b"2")
                with pytest.raises(duolog.NoPermission, match="normal"):
                    while await consumer.get(5) is None:
                        pass
            with pytest.raises(duolog.NoPermission, match="normal"):
                await producer.send("T", b"3")
        await root.access.alter_user("normal", password="another password")
        with pytest.raises(duolog.Unauthenticated, match="normal"):
            await normal.admin.topics()


async def test_a_poll_that_waited_is_looked_at_again(node: Node, channel: grpc.aio.Channel) -> None:
    pull = stubs.MessagesStub(channel).Pull
    request = wire.PullRequest(topic="T", wait_ms=5000)
    async with client_of(node, "root") as root, root.producer() as producer:
        waiting = asyncio.ensure_future(pull(request, metadata=words("normal"), timeout=10))
        await until(lambda: broker_of(node).waiting_calls.count > 0)
        await root.access.set_rights("normal", "")
        await producer.send("T", b"not for normal")
        with pytest.raises(grpc.aio.AioRpcError, match="normal") as refused:
            await waiting
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_group_that_lost_its_right_gets_no_more_transaction_checks(node: Node) -> None:
    """Also where its user may still send to the topic of the half message."""
    half = batch("T")
    half.transaction_group, half.immunity_seconds = "G", 1

    async def batches() -> AsyncIterator[wire.AppendRequest]:
        yield half

    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        messages = stubs.MessagesStub(channel)
        request = wire.TransactionChecksRequest(group="G")
        checks = messages.TransactionChecks(request, metadata=words("normal"), timeout=30)
        await messages.Append(batches(), metadata=words("normal"), timeout=30).read()
        first = await checks.read()
        assert isinstance(first, wire.TransactionCheck)
        assert first.body == b"x"
        async with client_of(node, "root") as root:
            await root.access.set_rights("normal", rights_of(["Topic:T Pub"]))
        await messages.Append(batches(), metadata=words("root"), timeout=30).read()
        with pytest.raises(grpc.aio.AioRpcError, match="Group:G") as refused:
            await checks.read()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_transaction_checks_are_for_those_who_may_send_to_the_topic(
    node: Node, channel: grpc.aio.Channel
) -> None:
    """They have the message in them."""
    half = batch("T")
    half.transaction_group, half.immunity_seconds = "G", 1

    async def batches() -> AsyncIterator[wire.AppendRequest]:
        yield half

    async with client_of(node, "root") as root:
        await root.access.set_rights("nothing", rights_of(["Group:G Pub"]))
    messages = stubs.MessagesStub(channel)
    request = wire.TransactionChecksRequest(group="G")
    checks = messages.TransactionChecks(request, metadata=words("nothing"), timeout=30)
    await messages.Append(batches(), metadata=words("root"), timeout=30).read()
    with pytest.raises(grpc.aio.AioRpcError, match="Topic:T") as refused:
        await checks.read()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_node_that_may_lack_changes_does_not_say_no(
    node: Node, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends its callers to the master, whether they are unknown or have no right."""

    def lacking() -> None:
        raise duolog.NotMaster("ask another node", "127.0.0.1:1", 7)

    frames = await frames_of(node, channel, "nothing")
    monkeypatch.setattr(broker_of(node).admission, "check_knows", lacking)
    for who in (words("nothing"), words("unknown")):
        assert await outcome(channel, "Messages/Pull", who) == "FAILED_PRECONDITION"
    assert await outcome(frames, "Messages/Pull") == "FAILED_PRECONDITION"
    refused = batch("T")

    async def batches() -> AsyncIterator[wire.AppendRequest]:
        yield refused

    reply = await stubs.MessagesStub(channel).Append(batches(), metadata=words("nothing")).read()
    assert isinstance(reply, wire.AppendReply)
    assert (reply.status, reply.master) == (wire.NOT_MASTER, "127.0.0.1:1")
    await frames.close()


async def test_what_a_request_names_besides_is_looked_at(node: Node) -> None:
    """The topic that a group is bound to; topics that a list shall create to send to them."""
    async with client_of(node, "root") as root, client_of(node, "nothing") as nothing:
        await root.admin.create_topic("Lite", 1, message_type="LITE")
        await root.access.set_rights("nothing", rights_of(["Group:H Create,Update", "Topic:S Get"]))
        with pytest.raises(duolog.NoPermission, match="Topic:Lite"):
            await nothing.admin.put_group("H", lite_topic="Lite")
        await nothing.admin.put_group("H")
        asked = wire.ListTopicsRequest(topics=["S"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            topics = stubs.AdminStub(channel).ListTopics
            await topics(asked, metadata=words("nothing"), timeout=30)
            asked.create = True
            with pytest.raises(grpc.aio.AioRpcError, match="no entry matches Pub on Topic:S"):
                await topics(asked, metadata=words("nothing"), timeout=30)


async def test_a_list_shows_what_its_reader_may_see(node: Node) -> None:
    async with client_of(node, "root") as root, client_of(node, "nothing") as nothing:
        await root.admin.create_topic("S", 1)
        await root.admin.put_group("H")
        assert [row.topic for row in await nothing.admin.topics()] == []
        assert await nothing.admin.groups() == []
        await root.access.set_rights("nothing", rights_of(["Topic:S List", "Group:H Get"]))
        assert [row.topic for row in await nothing.admin.topics()] == ["S"]
        assert [row.group for row in await nothing.admin.groups()] == ["H"]


async def test_the_first_user_counts_until_there_is_another(
    start_node: StartNode, access: dict[str, str]
) -> None:
    node = await start_node(access=access)
    async with client_of(node, "root") as first:
        with pytest.raises(duolog.BadRequest, match="super user"):
            await first.access.create_user("alice", PASSWORD)
        assert (await first.access.who_am_i()).is_super
        await first.access.create_user("boss", "another password", is_super=True)
        with pytest.raises(duolog.Unauthenticated):
            await first.access.who_am_i()
    async with client_of(node, "boss", "another password") as boss:
        with pytest.raises(duolog.BadRequest, match="super user"):
            await boss.access.delete_user("boss")
        with pytest.raises(duolog.BadRequest, match="super user"):
            await boss.access.alter_user("boss", disabled=True)
        assert [user.name for user in await boss.access.users()] == ["boss"]


async def test_changes_at_the_same_time_count_one_after_the_other(
    start_node: StartNode, access: dict[str, str]
) -> None:
    """A change becomes known only once it is on disk; until then, others wait for it."""
    node = await start_node(access=access, flush_disk_type="SYNC_FLUSH")
    async with client_of(node, "root") as first:
        await first.access.create_user("root", PASSWORD, is_super=True)
    async with client_of(node, "root") as root, client_of(node, "boss") as boss:
        for turn in range(6):
            created = await asyncio.gather(
                *(
                    root.access.create_user("boss", PASSWORD, is_super=True, signs=signs)
                    for signs in (True, False)
                ),
                return_exceptions=True,
            )
            assert sum(isinstance(one, duolog.User) for one in created) == 1
            await boss.access.who_am_i()
            changes = [
                root.access.alter_user("boss", is_super=False),
                boss.access.delete_user("root"),
            ]
            await asyncio.gather(*changes[:: 1 if turn % 2 else -1], return_exceptions=True)
            rows = broker_of(node).metadata.tables.access.users.values()
            supers = [row["username"] for row in rows if row["userType"] == "Super"]
            assert len(supers) == 1, "whoever comes second is no super user any more"
            if supers == ["boss"]:
                async with client_of(node, "boss") as left:
                    await left.access.create_user("root", PASSWORD, is_super=True)
            async with client_of(node, "root") as left:
                await left.access.delete_user("boss")


async def test_a_change_is_begun_once_the_one_before_has_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, begun, most = broker_of(node).metadata, 0, 0
    applied = metadata.all_applied

    async def noted() -> None:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        await applied()
        await asyncio.sleep(0.01)
        begun -= 1

    monkeypatch.setattr(metadata, "all_applied", noted)
    async with client_of(node, "root") as root:
        await asyncio.gather(*(root.access.create_user(f"u{k}", PASSWORD) for k in range(5)))
    assert most == 1


async def test_who_is_no_super_user_any_more_ends_no_change_that_was_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = threading.Event(), threading.Event()

    def slow(password: str, salt: bytes | None = None) -> str:
        began.set()
        assert go.wait(60)
        return hash_password(password, salt)

    async with client_of(node, "root") as root, client_of(node, "boss") as boss:
        await root.access.create_user("boss", PASSWORD, is_super=True)
        monkeypatch.setattr("duolog_server.node.identity.access.secrets.hash_password", slow)
        creating = asyncio.create_task(boss.access.create_user("late", PASSWORD))
        await until(began.is_set)
        await root.access.alter_user("boss", is_super=False)
        go.set()
        with pytest.raises(duolog.NoPermission, match="boss"):
            await creating
        assert "late" not in broker_of(node).metadata.tables.access.users


async def test_users_outlive_a_restart(start_node: StartNode, access: dict[str, str]) -> None:
    node = await start_node(access=access)
    async with client_of(node, "root") as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.access.create_user("alice", PASSWORD, signs=True)
        await client.access.set_rights("alice", rights_of(["Topic:T Pub"]))
    await node.stop()
    again = await start_node(access=access)
    async with client_of(again, "alice") as alice:
        assert (await alice.access.test("Pub", "Topic:T")).allowed
        assert not (await alice.access.test("Sub", "Topic:T")).allowed


async def test_a_node_that_has_users_and_no_key_says_that_nobody_is_asked(
    start_node: StartNode, access: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    node = await start_node(access=access)
    async with client_of(node, "root") as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
    await node.stop()
    assert "access control is off" not in "".join(capsys.readouterr())
    await start_node()
    assert "access control is off" in "".join(capsys.readouterr())


async def test_the_metadata_are_for_super_users(node: Node) -> None:
    """They hold hashes of passwords; no right to all topics is one to them."""
    async with client_of(node, "root") as root, client_of(node, "normal") as normal:
        await root.access.set_rights("normal", rights_of(["* All"]))
        for topic in ("DUOLOG_SYS_METADATA", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
            with pytest.raises(duolog.NoPermission, match="super"):
                await normal.pull(topic, 0, 0)
            told = await normal.access.test("Sub", f"Topic:{topic}")
            assert (told.allowed, "super" in told.reason) == (False, True)


async def test_who_may_not_change_a_group_is_not_told_whether_there_is_one(
    node: Node, channel: grpc.aio.Channel
) -> None:
    async with client_of(node, "root") as root:
        await root.admin.put_group("there")
        await root.access.set_rights("nothing", rights_of(["Topic:T Pub"]))
    admin, told = stubs.AdminStub(channel), set[str | None]()
    for group in ("there", "where"):
        reset = wire.ResetGroupRequest(group=group, topic="T", start=wire.EARLIEST)
        for call in (
            admin.PutGroup(wire.PutGroupRequest(group=group), metadata=words("nothing")),
            admin.ResetGroup(reset, metadata=words("nothing")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            told.add((refused.value.details() or "").replace(group, "GROUP"))
    assert len(told) == 1, told


async def test_a_retry_topic_is_that_of_each_group_it_may_be_of(node: Node) -> None:
    """%RETRY%a_b is that of a_b, or the one of a for topic b: a reader of a_b may not read a's."""
    async with client_of(node, "root") as root, client_of(node, "nothing") as reader:
        await root.admin.put_group("a")
        await root.admin.put_group("a_T")
        await root.access.set_rights("nothing", rights_of(["Group:a_T Sub"]))
        with pytest.raises(duolog.NoPermission, match="Group:a"):
            await reader.pull("%RETRY%a_T", 0, 0)
        both = rights_of(["Group:a_T Sub", "Group:a Sub"])
        await root.access.set_rights("nothing", both)
        with pytest.raises(duolog.UnknownTopic):
            await reader.pull("%RETRY%a_T", 0, 0)


async def test_a_retry_topic_is_written_and_deleted_by_those_of_each_group(
    node: Node, channel: grpc.aio.Channel
) -> None:
    """Otherwise who may do everything to a_T gives messages to the group a, or takes some."""
    async with client_of(node, "root") as root, client_of(node, "nothing") as writer:
        await root.admin.put_group("a")
        await root.admin.create_topic("%RETRY%a_T", 1)
        everything = "Pub,Sub,Create,Update,Delete,Get,List"
        await root.access.set_rights("nothing", rights_of([f"Group:a_T {everything}"]))

        async def appended() -> wire.AppendReply:
            async def batches() -> AsyncIterator[wire.AppendRequest]:
                yield batch("%RETRY%a_T")

            call = stubs.MessagesStub(channel).Append(batches(), metadata=words("nothing"))
            reply = await call.read()
            assert isinstance(reply, wire.AppendReply)
            return reply

        assert (await appended()).status == wire.NO_PERMISSION
        assert await writer.admin.topics() == []
        for change in (
            writer.admin.delete_topic("%RETRY%a_T"),
            writer.admin.alter_topic("%RETRY%a_T", queues=2),
            writer.admin.offset_at_time("%RETRY%a_T", 0, 1),
        ):
            with pytest.raises(duolog.NoPermission, match="Group:a"):
                await change
        both = [f"Group:a_T {everything}", f"Group:a {everything}"]
        await root.access.set_rights("nothing", rights_of(both))
        assert (await appended()).status == wire.PUT_OK
        await writer.admin.delete_topic("%RETRY%a_T")


async def test_a_frames_key_is_good_for_one_connection(
    node: Node, channel: grpc.aio.Channel
) -> None:
    route = await stubs.AdminStub(channel).Route(
        wire.RouteRequest(), metadata=words("normal"), timeout=5
    )
    opened = await connect(("127.0.0.1", route.frames_port), route.frames_key, 30)
    for key in (route.frames_key, b"\0" * 16):
        with pytest.raises(duolog.Unavailable):
            await connect(("127.0.0.1", route.frames_port), key, 30)
    await opened.close()


async def test_no_secret_is_in_the_log_or_in_an_answer(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "never to be seen"
    async with client_of(node, "root") as root:
        await root.access.create_user("bob", secret, signs=True)
        await root.access.alter_user("bob", password=secret + "2")
        said = str(await root.access.users()) + str(await root.access.who_am_i())
    async with client_of(node, "bob", secret) as bob:
        with pytest.raises(duolog.Unauthenticated) as refused:
            await bob.access.who_am_i()
    row = broker_of(node).metadata.tables.access.users["bob"]
    captured = capsys.readouterr()
    for text in (said, str(refused.value), captured.out, captured.err, repr(bob), str(row)):
        assert secret not in text
        assert base64.b64encode(f"bob:{secret}".encode()).decode() not in text


async def test_a_token_is_a_password_that_makes_no_others(node: Node) -> None:
    async with client_of(node, "normal") as normal, client_of(node, "root") as root:
        own = await normal.access.issue_token(60)
        of_other = await root.access.issue_token(60, user="normal")
        with pytest.raises(duolog.NoPermission, match="super"):
            await normal.access.issue_token(60, user="root")
        for seconds in (0, 400 * 24 * 3600):
            with pytest.raises(duolog.BadRequest, match="token"):
                await normal.access.issue_token(seconds)
        with pytest.raises(duolog.BadRequest, match="nobody"):
            await root.access.issue_token(60, user="nobody")
    for token in (own, of_other):
        async with client_of(node, "normal", token) as client, client.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"
            with pytest.raises(duolog.NoPermission, match="token"):
                await client.access.issue_token(60)
    async with client_of(node, "root") as root:
        with pytest.raises(duolog.BadRequest, match="token"):
            await root.access.create_user("sly", own)


async def test_the_same_password_again_ends_nothing(node: Node) -> None:
    """As where a user shall sign from now on, or is imported once more."""
    async with client_of(node, "root") as root, client_of(node, "normal") as normal:
        async with normal.producer() as producer, normal.consumer("G", ["T"]) as consumer:
            for number, signs in enumerate((True, False, True)):
                assert (await producer.send("T", b"%d" % number)).status == "PUT_OK"
                message = await consumer.get(10)
                assert message is not None
                await root.access.alter_user("normal", password=PASSWORD, signs=signs)
        token = await normal.access.issue_token(60)
        await root.access.alter_user("normal", password=PASSWORD)
    async with client_of(node, "normal", token) as client:
        assert (await client.access.who_am_i()).name == "normal"


async def test_rights_that_were_changed_meanwhile_are_not_replaced(node: Node) -> None:
    async with client_of(node, "root") as root:
        before = await root.access.rights("normal")
        await root.access.set_rights("normal", rights_of(["Topic:T Pub"]), expected=before)
        with pytest.raises(duolog.BadRequest, match="meanwhile"):
            await root.access.set_rights("normal", "", expected=before)
        assert "Topic:T" in await root.access.rights("normal")


async def test_a_token_changes_no_users(node: Node) -> None:
    async with client_of(node, "root") as root:
        token = await root.access.issue_token(60)
    async with client_of(node, "root", token) as client:
        assert len(await client.access.users()) > 1
        with pytest.raises(duolog.NoPermission, match="password"):
            await client.access.create_user("later", PASSWORD, is_super=True)
        with pytest.raises(duolog.NoPermission, match="password"):
            await client.access.set_rights("normal", "")


async def test_a_user_that_is_created_again_as_it_is_stays_as_it_is(node: Node) -> None:
    """A client whose answer was lost in a failover sends it again, and who repeats a change that
    one replica group lacked sends it to all of them.
    """
    async with duolog.Client(f"127.0.0.1:{node.port}", user="root", password=PASSWORD) as root:
        made = await root.access.create_user("twice", "of the two", signs=True)
        tables = broker_of(node).metadata.access
        changes = tables.changes
        assert await root.access.create_user("twice", "of the two", signs=True) == made
        assert tables.changes == changes
        for password, others in (
            ("another", {"signs": True}),
            ("of the two", {}),
            ("of the two", {"signs": True, "is_super": True}),
            ("of the two", {"signs": True, "disabled": True}),
        ):
            with pytest.raises(duolog.BadRequest, match="exists already, with another"):
                await root.access.create_user("twice", password, **others)
        assert tables.changes == changes


async def test_no_token_is_good_again_with_a_password_that_its_user_has_once_more(
    node: Node,
) -> None:
    async with client_of(node, "root") as root:
        for signs in (False, True):
            await root.access.create_user("again", "first", signs=signs)
            async with client_of(node, "again", "first") as client:
                tokens = [await client.access.issue_token(60)]
            secret = broker_of(node).metadata.access.users["again"]["secret"]
            await root.access.alter_user("again", password="second", signs=signs)
            await root.access.alter_user("again", password="first", signs=signs)
            async with client_of(node, "again", "first") as client:
                tokens.append(await client.access.issue_token(60))
            assert not signs or broker_of(node).metadata.access.users["again"]["secret"] != secret
            await root.access.delete_user("again")
            await root.access.create_user("again", "first", signs=signs)
            for token in tokens:
                async with client_of(node, "again", token) as client:
                    with pytest.raises(duolog.Unauthenticated):
                        await client.access.who_am_i()
            async with client_of(node, "again", "first") as client:
                assert (await client.access.who_am_i()).generation
            await root.access.delete_user("again")


async def test_a_copy_asks_for_the_right_to_read_its_original(node: Node) -> None:
    copy = batch("T")
    copy.copied_from.topic = "S"

    async def batches() -> AsyncIterator[wire.AppendRequest]:
        yield copy

    async with client_of(node, "root") as root:
        await root.admin.create_topic("S", 1)
        async with root.producer() as producer:
            await producer.send("S", b"x")
        await until(lambda: broker_of(node).store.queue_range("S", 0) == (0, 1))
        for entries, status in (
            (["Topic:T Pub"], "NO_PERMISSION"),
            (["Topic:* Pub,Sub"], "PUT_OK"),
        ):
            await root.access.set_rights("nothing", rights_of(entries))
            async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
                append = stubs.MessagesStub(channel).Append
                reply = await append(batches(), metadata=words("nothing"), timeout=30).read()
                assert isinstance(reply, wire.AppendReply)
                assert wire.PutStatus.Name(reply.status) == status, reply.reason


async def test_no_token_is_good_again_where_its_user_was_disabled_and_is_enabled_again(
    node: Node,
) -> None:
    async with client_of(node, "root") as root:
        await root.access.create_user("away", "secret")
        async with client_of(node, "away", "secret") as client:
            token, before = await client.access.issue_token(60), await client.access.who_am_i()
            await root.access.alter_user("away", disabled=True)
            await root.access.alter_user("away", disabled=False)
            after = await client.access.who_am_i()
            assert after.generation != before.generation, "sessions of the console end by this"
            another = await client.access.issue_token(60)
        tables = broker_of(node).metadata.access
        changes = tables.changes
        made = await root.access.create_user("away", "secret")
        assert made.generation == after.generation
        assert tables.changes == changes, "as it is"
        async with client_of(node, "away", token) as client:
            with pytest.raises(duolog.Unauthenticated):
                await client.access.who_am_i()
        async with client_of(node, "away", another) as client:
            assert (await client.access.who_am_i()).name == "away"
