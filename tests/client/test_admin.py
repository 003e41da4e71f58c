"""Administration of several replica groups: which of them a call asks, and what they say."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, cast

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _admin
from duolog import _fromwire as fromwire
from duolog._access import Access
from duolog._admin import Admin, joined, merged, patience_with
from duolog._connection import Connection, Others
from duolog._errors import ERROR_KEY, error_of
from duolog._router import Router
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire


def failure(kind: str) -> grpc.aio.AioRpcError:
    """As a node refuses."""
    trailing = grpc.aio.Metadata((ERROR_KEY, kind))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), trailing, kind)


class Group:
    """A connection with a replica group, which answers each method with what was set for it.

    tries: of each call; the last one's answer counts.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.how: list[dict[str, Any]] = []
        self.tries = 1
        self.messages = self.groups = self.admin = self

    async def call(
        self, make: Callable[[float], Awaitable[Any]], timeout: float, **how: Any
    ) -> Any:
        self.how.append(how)
        for left in range(self.tries, 0, -1):
            try:
                return await make(timeout)
            except grpc.aio.AioRpcError as error:
                if left == 1:
                    raise error_of(error) from None
        raise AssertionError("no try")

    def __getattr__(self, method: str) -> Any:
        if not method[0].isupper():
            raise AttributeError(method)

        async def answer(request: Any, timeout: float) -> Any:
            assert timeout == 1.0
            self.asked.append((method, request))
            found = self.answers[method]
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def admin_of(**groups: Group) -> Admin:
    router = Router(("127.0.0.1:1",))
    router._routes = {name: wire.GroupRoute(group=name) for name in groups}
    router._connections = {name: cast(Connection, one) for name, one in groups.items()}
    router._seed = next(iter(router._connections.values()))
    router._fresh_until = inf
    return Admin(router, 1.0)


def rows(*times: int) -> wire.FindReply:
    return wire.FindReply(messages=[wire.FoundMessage(topic="T", store_time=t) for t in times])


async def test_messages_of_all_groups_are_found_in_the_order_of_their_times() -> None:
    admin = admin_of(a=Group(Find=rows(5, 1)), b=Group(Find=rows(4, 2, 9)))
    found = await admin.find("T", key="k", count=4)
    assert [one.store_time_ms for one in found] == [1, 2, 4, 5]
    assert [one.group for one in found] == ["a", "b", "b", "a"]
    alone = admin_of(a=Group(Find=rows(5, 1, 3)))
    assert [one.store_time_ms for one in await alone.find("T", key="k", count=2)] == [5, 1, 3], (
        "a node's own order and bound"
    )


@pytest.mark.parametrize(
    ("how", "excused", "raised"),
    [
        ({"key": "k"}, "UnknownTopic", "NoSuchMessage"),
        ({"unique_key": "u"}, "NoSuchMessage", "UnknownTopic"),
        ({"message_id": "00" * 16}, "NoSuchMessage", "UnknownTopic"),
    ],
)
async def test_a_message_needs_to_be_found_in_one_group_only(
    how: dict[str, Any], excused: str, raised: str
) -> None:
    there = Group(Find=rows(1))
    assert len(await admin_of(a=Group(Find=failure(excused)), b=there).find("T", **how)) == 1
    for groups in (
        {"a": Group(Find=failure(excused)), "b": Group(Find=failure(excused))},
        {"a": Group(Find=failure(excused))},
    ):
        with pytest.raises(getattr(duolog, excused)):
            await admin_of(**groups).find("T", **how)
    with pytest.raises(getattr(duolog, raised)):
        await admin_of(a=Group(Find=failure(raised)), b=there).find("T", **how)


def listed(*names: str, left_out: int = 0) -> wire.ListGroupsReply:
    groups = [wire.GroupDescription(group=name, members=len(name)) for name in names]
    return wire.ListGroupsReply(groups=groups, left_out=left_out)


async def test_a_group_with_a_problem_is_asked_for_where_it_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its name, of nodes that leave groups out: older ones answered with all of them."""
    monkeypatch.setattr("duolog._admin.NAMES_AT_ONCE", 2)
    some = Group(ListGroups=[listed("x", "y", left_out=9), listed("v", "w"), listed()])
    alike, older = Group(ListGroups=listed(*"vwxyz", left_out=1)), Group(ListGroups=listed("z"))
    found = await admin_of(a=some, b=alike, c=older).groups(problems_only=True, old_ms=7)
    assert sorted(group.group for group in found) == list("vwxyz")
    (_, first), *rest = some.asked
    assert (first.problems_only, first.old_ms, list(first.groups)) == (True, 7, [])
    assert [list(request.groups) for _, request in rest] == [["v", "w"], ["z"]]
    assert not any(request.problems_only for _, request in rest)
    assert (len(alike.asked), len(older.asked)) == (1, 1)


async def test_an_older_node_answers_with_all_groups_and_is_not_believed() -> None:
    admin = admin_of(a=Group(ListGroups=listed("x", "y")))
    assert [group.group for group in await admin.groups(["y", "z"])] == ["y"]
    assert await admin.groups("xy") == []  # one name
    with pytest.raises(duolog.BadRequest):
        await admin.groups([cast(Any, 7)])


DELETIONS = [
    (lambda admin: admin.delete_topic("T"), "DeleteTopic", wire.DeleteTopicReply(), "UnknownTopic"),
    (lambda admin: admin.delete_group("g"), "DeleteGroup", wire.DeleteGroupReply(), "UnknownGroup"),
    (
        lambda admin: admin.delete_quota("User:a"),
        "DeleteQuota",
        wire.DeleteQuotaReply(),
        "BadRequest",
    ),
]


@pytest.mark.parametrize(("delete", "method", "done", "gone"), DELETIONS)
async def test_a_deletion_is_done_where_its_first_answer_was_lost(
    delete: Any, method: str, done: Any, gone: str
) -> None:
    lost, refused = failure("Unavailable"), failure(gone)
    again = Group(**{method: [lost, refused]})
    again.tries = 2
    await delete(admin_of(a=again))
    assert len(again.asked) == 2
    await delete(admin_of(a=Group(**{method: done}), b=Group(**{method: refused})))
    elsewhere = Group(**{method: [failure("NotMaster"), refused]})  # it surely did not run
    elsewhere.tries = 2
    for groups in {"a": elsewhere}, {"a": Group(**{method: refused})}:
        with pytest.raises(getattr(duolog, gone)):
            await delete(admin_of(**groups))
    later = Group(**{method: [lost, failure("NotMaster"), refused]})  # the first may have run
    later.tries = 3
    await delete(admin_of(a=later))
    with pytest.raises(duolog.NoPermission):
        await delete(admin_of(a=Group(**{method: failure("NoPermission")})))


async def test_offsets_are_committed_in_the_groups_of_their_queues() -> None:
    groups = {name: Group(Commit=wire.CommitReply()) for name in "abc"}
    offsets = {("T", "b", 1): 5, ("T", "a", 0): 7, ("U", "b", 0): 6}
    await admin_of(**groups).commit("g", offsets, forward=True)
    told = {
        name: [
            (row.topic, row.queue_id, row.offset) for _, sent in one.asked for row in sent.offsets
        ]
        for name, one in groups.items()
    }
    assert told == {"a": [("T", 0, 7)], "b": [("T", 1, 5), ("U", 0, 6)], "c": []}
    assert all(sent.forward and sent.group == "g" for _, sent in groups["b"].asked)
    await admin_of(**groups).commit("g", {("T", "c", 0): 1})
    assert not groups["c"].asked[0][1].forward


async def test_a_queue_is_looked_up_in_its_group_or_in_the_first() -> None:
    a = Group(OffsetAtTime=wire.OffsetAtTimeReply(queue_offset=3))
    b = Group(
        OffsetAtTime=wire.OffsetAtTimeReply(queue_offset=4),
        OffsetAtSize=wire.OffsetAtTimeReply(queue_offset=9),
    )
    admin = admin_of(a=a, b=b)
    assert await admin.offset_at_time("T", 2, duolog.Start.LATEST) == 3
    assert await admin.offset_at_time("T", 2, 1234, group="b") == 4
    assert (a.asked[0][1].start, b.asked[0][1].time) == (wire.LATEST, 1234)
    assert await admin.offset_at_size("T", 2, 5, 1000, group="b") == 9
    assert (b.asked[1][1].queue_offset, b.asked[1][1].bytes) == (5, 1000)


async def test_a_group_is_reset_to_a_position_or_to_an_offset() -> None:
    place = wire.QueueOffset(topic="T", queue_id=0, offset=7)
    unmoved = wire.ListMovesReply()
    a = Group(ResetGroup=wire.OffsetsReply(offsets=[place]), ListMoves=unmoved)
    admin = admin_of(a=a, b=Group(ResetGroup=failure("UnknownTopic"), ListMoves=unmoved))
    assert [one.offset for one in await admin.reset_group("g", "T", offset=7)] == [7]
    await admin.reset_group("g", "T", duolog.Start.LATEST)
    by_offset, by_start = (sent for name, sent in a.asked if name == "ResetGroup")
    assert (by_offset.offset, by_offset.start) == (7, wire.START_UNSPECIFIED)
    assert (by_start.HasField("offset"), by_start.start) == (False, wire.LATEST)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"bytes": 1}, "bytes is not one of"),
        ({"topics": -1}, "topics is -1; it must be at least 0"),
        ({"bytes_in": 1 << 63}, "bytes_in is 9223372036854775808"),
    ],
)
async def test_a_limit_that_there_is_not_is_refused(limits: dict[str, Any], text: str) -> None:
    a = Group(PutQuota=wire.QuotaReply(subject="User:a"))
    with pytest.raises(duolog.BadRequest, match=text):
        await cast(Any, Admin.put_quota)(admin_of(a=a), "User:a", **limits)
    assert not a.asked
    await admin_of(a=a).put_quota("User:a", bytes_in=0, topics=(1 << 63) - 1)
    assert a.asked[0][1].topics == (1 << 63) - 1


async def test_half_messages_are_decided_where_they_lie() -> None:
    half = wire.HalfMessage(topic="T", half=7)
    a = Group(DecideHalf=wire.DecideHalfReply(), ListHalves=wire.ListHalvesReply(messages=[half]))
    b = Group(ListHalves=wire.ListHalvesReply())
    admin = admin_of(a=a, b=b)
    await admin.decide_half("p", 7, commit=True, group="a")
    assert (a.asked[0][1].group, a.asked[0][1].half, a.asked[0][1].commit) == ("p", 7, True)
    assert (await admin.half(7, group="a")).half == 7
    with pytest.raises(duolog.NoSuchMessage, match="no half message 7"):
        await admin.half(7, group="b")


async def test_lists_of_what_waits_go_on_where_a_group_has_more() -> None:
    a = Group(ListDelayed=wire.ListDelayedReply(group="a", next="5/6"))
    b = Group(ListDelayed=wire.ListDelayedReply(group="b"))
    c = Group(ListDelayed=failure("UnknownTopic"))
    page = await admin_of(a=a, b=b, c=c).delayed_page("T", limit=3)
    await admin_of(a=a, b=b).delayed_page("T", after=page.next)
    assert [sent.after for _, sent in a.asked] == ["", "5/6"]
    assert (len(b.asked), a.asked[0][1].limit) == (1, 3), "it had no more"
    await admin_of(a=a, b=b).delayed_page("T", group="b")
    assert (len(a.asked), len(b.asked)) == (2, 2)
    with pytest.raises(duolog.UnknownTopic):
        await admin_of(c=c).delayed_page("T")
    with pytest.raises(duolog.NoPermission):
        await admin_of(a=a, b=Group(ListDelayed=failure("NoPermission"))).delayed_page("T")


async def test_only_the_nodes_that_were_named_tell_their_own_status() -> None:
    a = Group(NodeStatus=wire.NodeStatusReply(name="n1"), ElectUnclean=wire.ElectUncleanReply())
    admin = admin_of(a=a)
    assert (await admin.node_status()).name == "n1"
    await admin.elect_unclean(5)
    assert [one["others"] for one in a.how] == [Others.GIVEN, Others.NONE]
    assert (a.how[1]["attempt"], a.asked[1][1].epoch) == (1.0, 5)


async def test_groups_are_not_waited_for_where_a_masters_role_is_fixed() -> None:
    told = wire.GroupDescription(group="g")
    a = Group(ListGroups=wire.ListGroupsReply(groups=[told]), DescribeGroup=told)
    admin = admin_of(
        a=a, b=Group(ListGroups=wire.ListGroupsReply(), DescribeGroup=failure("UnknownGroup"))
    )
    assert [one.group for one in await admin.groups()] == ["g"]
    assert (await admin.group("g")).group == "g"
    assert [one["patient"] for one in a.how] == [False, False]
    await admin_of(a=Group(ListTopics=wire.ListTopicsReply())).topics()


def described(group: str = "g", **told: Any) -> Any:
    return fromwire.group_of(wire.GroupDescription(group=group, **told))


def test_what_groups_say_of_a_consumer_group_becomes_one_row() -> None:
    """A consumer is a member in each of them: it is counted once, its queues all."""
    rows = [
        {"topic": "T", "expression": "*", "members": 2, "sharing": 1},
        {"topic": "T", "expression": "*", "members": 1, "sharing": 3},
        {"topic": "T", "expression": "*", "members": 1, "is_sql": True},
    ]
    one = described(
        members=2,
        queues=[wire.GroupQueue(topic="T", queue_id=0)],
        clients=1,
        client_topics=["U", "T"],
        sharing_clients=3,
        subscriptions=[wire.GroupSubscription(**cast(Any, row)) for row in rows[1:]],
        holds=[wire.GroupHold(topic="T", quota="q")],
    )
    two = described(
        members=1,
        queues=[wire.GroupQueue(topic="T", queue_id=1)],
        clients=4,
        client_topics=["V", "T"],
        sharing_clients=1,
        subscriptions=[wire.GroupSubscription(**cast(Any, rows[0]))],
        holds=[wire.GroupHold(topic="T", quota=quota) for quota in ("q", "r")],
    )
    for pair in (one, two), (two, one):
        both, other = merged([pair[0], described("h"), pair[1]])
        assert (both.group, other.group) == ("g", "h")
        assert (both.members, both.clients, both.sharing_clients) == (2, 4, 3)
        assert {row.queue_id for row in both.queues} == {0, 1}
        assert both.client_topics == ("T", "U", "V")
        assert sorted(hold.quota for hold in both.holds) == ["q", "r"]
        told = {(row.is_sql, row.members, row.sharing) for row in both.subscriptions}
        assert told == {(False, 2, 1), (True, 1, 0)}


def status(name: str, version: str, group: str = "a", **how: Any) -> wire.NodeStatusReply:
    place = wire.ReplicationStatus(group=group)
    return wire.NodeStatusReply(name=name, version=version, replication=place, **how)


def cluster(*nodes: wire.NodeStatusReply) -> Any:
    return fromwire.cluster_of(wire.ClusterStatusReply(cluster="c", nodes=nodes))


def test_a_nodes_own_words_count_most_and_those_of_who_does_not_know_least() -> None:
    stale = cluster(status("x", "own x"), status("y", "stale", stale=True), status("z", "of x"))
    own = cluster(status("y", "own y"), status("x", "of y"), status("z", "of y"))
    for replies in (stale, own), (own, stale):
        both = joined(replies)
        assert both.cluster == "c"
        told = {node.name: node.version for node in both.nodes}
        first = "of x" if replies[0] is stale else "of y"
        assert told == {"x": "own x", "y": "own y", "z": first}
    only = cluster(status("w", ""), status("y", "stale", stale=True))
    views = joined([only, cluster(status("v", ""), status("u", ""), status("y", "told"))])
    assert [node.version for node in views.nodes if node.name == "y"] == ["told"]
    same = joined([cluster(status("x", "1")), cluster(status("x", "2", "b"))])
    assert len(same.nodes) == 2, "names are unique within a replica group"


def test_a_node_that_is_down_is_not_waited_for_long() -> None:
    alive, down = (fromwire.node_of(wire.NodeStatusReply(role=role)) for role in ("SLAVE", "DOWN"))
    assert patience_with(alive, 2.0) == 2.0
    assert patience_with(down, 2.0) == 0.5
    assert patience_with(down, 0.1) == 0.1


class Unasked(Router):
    """A client's router before its first call: it knows no group until it has asked for them."""

    def __init__(self, connections: dict[str, Connection]) -> None:
        super().__init__(("127.0.0.1:1",))
        self._known = connections

    async def groups(self, timeout: float) -> list[str]:
        self._connections = self._known
        return sorted(self._known)


FIRST_CALLS: list[tuple[Callable[[Admin], Awaitable[Any]], str, Any]] = [
    (lambda a: a.create_topic("T", groups=["a"]), "CreateTopic", wire.TopicReply(topic="T")),
    (
        lambda a: a.recall_delayed("T", 5, "u", group="a"),
        "RecallDelayed",
        wire.RecallDelayedReply(),
    ),
    (
        lambda a: a.decide_half("p", 7, commit=False, group="a"),
        "DecideHalf",
        wire.DecideHalfReply(),
    ),
    (
        lambda a: a.half(7, group="a"),
        "ListHalves",
        wire.ListHalvesReply(messages=[wire.HalfMessage(half=7)]),
    ),
    (lambda a: a.commit("g", {("T", "a", 0): 1}), "Commit", wire.CommitReply()),
]


@pytest.mark.parametrize(("call", "method", "answer"), FIRST_CALLS)
async def test_a_clients_first_call_may_name_a_group(call: Any, method: str, answer: Any) -> None:
    one, other = Group(**{method: answer}), Group()
    known = {"a": cast(Connection, one), "b": cast(Connection, other)}
    await call(Admin(Unasked(known), 1.0))
    assert ([name for name, _ in one.asked], other.asked) == ([method], [])


async def test_moves_are_those_of_the_groups_whose_nodes_know_them() -> None:
    here, there = (wire.QueuePlace(group=group, queue_id=q) for group, q in (("a", 0), ("b", 4)))
    move = wire.QueueMove(
        topic="T", move="a-1-1", state="DONE", name=here, source=here, target="b", to=there, end=9
    )
    first = wire.QueueSpan(topic="T", name=here, place=here, end=9, following=there)
    last = wire.QueueSpan(topic="T", name=here, place=there, first=9, end=-1, came_from=here)
    a = Group(ListMoves=wire.ListMovesReply(moves=[move], spans=[first]))
    b = Group(ListMoves=wire.ListMovesReply(spans=[last]))
    found = await admin_of(b=b, a=a).moves("T")
    assert [(str(one.place), one.first, one.end) for one in found.spans] == [
        ("a/0", 0, 9),
        ("b/4", 9, None),
    ]
    assert (found.spans[0].following, found.spans[1].following) == (("b", 4), None)
    assert [(one.to, one.end, one.has_moved) for one in found.moves] == [(("b", 4), 9, True)]
    older = Group(ListMoves=failure("BadRequest"))
    assert (await admin_of(a=a, b=older).moves()).moves == found.moves
    assert await admin_of(b=older).moves() == duolog.QueueMoves()


async def test_a_delayed_message_is_taken_back_where_it_lies() -> None:
    a = Group(RecallDelayed=failure("NoSuchMessage"))
    b = Group(RecallDelayed=wire.RecallDelayedReply())
    await admin_of(a=a, b=b).recall_delayed("T", 5, "u")
    told = b.asked[0][1]
    assert (told.topic, told.queue_offset, told.unique_key) == ("T", 5, "u")
    with pytest.raises(duolog.NoSuchMessage):
        await admin_of(a=a).recall_delayed("T", 5, "u")


async def test_a_topic_is_made_as_it_was_asked_for() -> None:
    a = Group(
        CreateTopic=wire.TopicReply(topic="T"),
        AlterTopic=wire.TopicReply(topic="T"),
        ListTopics=wire.ListTopicsReply(),
    )
    admin = admin_of(a=a)
    await admin.create_topic("T")
    await admin.create_topic("T", 1, 0, message_type="LITE", lite_ttl_minutes=0)
    await admin.alter_topic("T")
    await admin.alter_topic("T", 8, 4, lite_ttl_minutes=0)
    asked = [one for name, one in a.asked if name != "ListTopics"]
    told = [(one.queues, one.perm, one.message_type) for one in asked]
    assert told == [(4, 6, ""), (1, 0, "LITE"), (0, 0, ""), (8, 4, "")]
    assert [one.lite_ttl_minutes for one in asked] == [0, 0, 0, 0]
    assert [one.HasField("lite_ttl_minutes") for one in asked[2:]] == [False, True]
    for wrong in ({"topic": ""}, {"queues": 0}, {"perm": -1}, {"lite_ttl_minutes": -1}):
        with pytest.raises(duolog.BadRequest, match=next(iter(wrong))):
            await admin.create_topic(**cast(Any, {"topic": "T", **wrong}))
    assert len([name for name, _ in a.asked if name != "ListTopics"]) == 4


async def test_orders_to_a_cluster_reach_a_node_of_it() -> None:
    a = Group(
        Drain=wire.DrainReply(),
        Forget=wire.ForgetReply(),
        Freeze=wire.FreezeReply(frozen=True, max_offset=9),
        SetGuarantee=wire.SetGuaranteeReply(guarantee={"ack": "durable"}),
    )
    admin = admin_of(a=a)
    await admin.drain("n1")
    await admin.drain("n1", undo=True)
    await admin.forget("n2")
    assert (await admin.freeze()).max_offset == 9
    assert await admin.set_guarantee("ack", "durable") == {"ack": "durable"}
    drain, undo, forget, freeze, guarantee = (one for _, one in a.asked)
    assert [(one.node, one.undo) for one in (drain, undo)] == [("n1", False), ("n1", True)]
    assert (forget.node, freeze.HasField("seconds")) == ("n2", False)
    assert (guarantee.setting, guarantee.value) == ("ack", "durable")


async def test_a_master_that_does_not_answer_tells_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = [wire.ClusterStatusReply(cluster="c"), None]

    async def ask(*_: object) -> wire.ClusterStatusReply | None:
        return replies.pop(0)

    monkeypatch.setattr(_admin, "ask_one", ask)
    told = await _admin._cluster_as_told_by("127.0.0.1:1", MACHINE)
    assert told is not None
    assert told.cluster == "c"
    assert await _admin._cluster_as_told_by("127.0.0.1:1", MACHINE) is None


class Told(Access):
    """Users in replica groups, which answer with these generations of a password."""

    def __init__(self, *rounds: Callable[[bytes], list[bytes]]) -> None:
        super().__init__(cast(Any, None), 1.0)
        self.rounds = list(rounds)
        self.asked: list[wire.PutUserRequest] = []

    async def _put_everywhere(self, request: wire.PutUserRequest) -> list[wire.UserReply]:
        self.asked.append(request)
        told = self.rounds.pop(0)(request.generation)
        return [wire.UserReply(user="u", generation=one) for one in told]


@pytest.mark.parametrize("told", [lambda drawn: [drawn] * 2, lambda drawn: [b"", drawn]])
async def test_a_password_that_is_new_everywhere_is_put_once(
    told: Callable[[bytes], list[bytes]],
) -> None:
    access = Told(told)
    await access.alter_user("u", password="a password of the test")
    assert len(access.asked) == 1


async def test_a_password_that_some_groups_had_already_is_of_their_generation_everywhere() -> None:
    """Who signed in with it stays so: it is the password that it was."""
    for old in (bytes(16), b"\xff" * 16):
        access = Told(lambda drawn, old=old: [drawn, old], lambda drawn: [drawn] * 2)  # type: ignore[misc]
        user = await access.alter_user("u", password="a password of the test", signs=True)
        again = access.asked[1]
        assert (again.user, again.password, again.signs) == ("u", "a password of the test", True)
        assert (again.generation, again.generation_counts) == (old, True)
        assert user.generation == old
