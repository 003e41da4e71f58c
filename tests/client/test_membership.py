"""The queues that a member of a group claims in its heartbeats, and offsets that it keeps."""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog._connection import Connection, Others
from duolog._membership import (
    LEAVE_SECONDS,
    SESSION_SECONDS_MAX,
    BroadcastMember,
    Clustering,
    Consumption,
    OffsetFile,
    Queue,
    Share,
    SharingMember,
)
from duolog.wire import duolog_pb2 as wire

SESSION = 5.0
OURS: list[Queue] = [("T", 0), ("T", 2)]


class Node:
    """Takes heartbeats, on a clock of the test's own. slow: seconds of each attempt that fails."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slow: list[float] = []
        self.heard: list[list[Queue]] = []
        self.known = True  # the member, to this master
        self.gives: list[Queue] = []  # besides what is claimed
        self.foreign: set[Queue] = set()
        self.epoch = 3
        self.epochs_told: list[int] = []
        self.polled = False
        self.not_polled_told: list[bool] = []
        self.committed: list[dict[Queue, int]] = []
        self.groups = SimpleNamespace(Heartbeat=self._heartbeat, Commit=self._commit)
        self.runtime = SimpleNamespace(process_id=lambda: 7, chance=random.Random(1))

    async def call(self, make: Callable[[float], Awaitable[Any]], _timeout: float) -> Any:
        reply = await make(1.0)
        while self.slow:  # it was not heard in time: once more
            self.now += self.slow.pop()
            reply = await make(1.0)
        return reply

    async def _heartbeat(
        self, request: wire.HeartbeatRequest, timeout: float
    ) -> wire.HeartbeatReply:
        assert timeout > 0
        self.heard.append([(ref.topic, ref.queue_id) for ref in request.owned])
        self.epochs_told.append(request.epoch)
        self.not_polled_told.append(request.not_polled)
        self.known = True
        given = [wire.QueueRef(topic=topic, queue_id=queue_id) for topic, queue_id in self.gives]
        foreign = [ref for ref in request.owned if (ref.topic, ref.queue_id) in self.foreign]
        own = [ref for ref in request.owned if ref not in foreign]
        return wire.HeartbeatReply(
            generation=1, queues=[*own, *given], foreign=foreign, epoch=self.epoch
        )

    async def _commit(self, request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        assert timeout > 0
        if not self.known:
            raise duolog.StaleMember("not heard of yet")
        self.committed.append({(row.topic, row.queue_id): row.offset for row in request.offsets})
        return wire.CommitReply()


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now)
    return made


def member(node: Node) -> SharingMember:
    consumption = Consumption(group="g", session=SESSION)
    return SharingMember(
        cast(Connection, node), ["T"], consumption, Clustering(), lambda: node.polled
    )


async def reader(node: Node) -> SharingMember:
    """A member that was given OURS."""
    one = member(node)
    node.gives = OURS
    assert (await one.share([])).queues == set(OURS)
    node.gives = []
    return one


async def test_a_member_that_is_heard_in_time_claims_what_it_reads(node: Node) -> None:
    one = await reader(node)
    for _ in range(3):
        node.now += SESSION - 0.1
        assert (await one.share(OURS)).queues == set(OURS)
    assert node.heard == [[], OURS, OURS, OURS]


async def test_a_member_that_was_silent_for_a_session_claims_nothing(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(), set(OURS))
    assert node.heard == [[], []]


async def test_a_member_whose_heartbeat_took_a_session_claims_nothing(node: Node) -> None:
    one = await reader(node)
    node.now += 1.0
    node.slow = [SESSION - 1.0]
    await one.share(OURS)
    assert node.heard == [[], OURS, []]


async def test_what_a_silent_member_read_is_never_claimed_again(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    await one.share(OURS)
    node.now += 1.0
    share = await one.share(OURS)  # the next master would believe it
    assert (share.queues, share.forfeited) == (set(), set(OURS))
    assert node.heard == [[], [], []]


async def test_what_a_silent_member_is_given_again_is_its_own(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    node.gives = OURS[:1]
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(OURS[:1]), set(OURS[1:]))
    node.now += 1.0
    node.gives = []
    assert not (await one.share(OURS[:1])).forfeited
    assert node.heard == [[], [], OURS[:1]]


async def test_what_the_node_says_is_anothers_is_never_claimed_again(node: Node) -> None:
    one = await reader(node)
    node.foreign = set(OURS[:1])
    node.known = False
    await one.commit({("T", 2): 7}, forward=True)  # it claims what it reads
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(OURS[1:]), set(OURS[:1]))
    assert node.heard == [[], OURS, OURS[1:]]
    node.foreign = set(OURS[1:])
    assert (await one.share(OURS[1:])).forfeited == set(OURS[1:])


async def test_a_member_tells_which_master_it_counts_on(node: Node) -> None:
    one = await reader(node)
    await one.share(OURS)
    node.epoch, node.known = 5, False
    await one.commit({("T", 2): 7}, forward=True)  # heard by the next master only now
    await one.share(OURS)
    assert node.epochs_told == [0, 3, 3, 5]
    node.epoch = 0  # a node of an earlier version, which does not say
    await one.share(OURS)
    await one.share(OURS)
    assert node.epochs_told[4:] == [5, 0], "the next master must not judge by one before it"


async def test_a_member_tells_whether_its_program_has_polled(node: Node) -> None:
    one = await reader(node)
    node.polled = True
    await one.share(OURS)
    assert node.not_polled_told == [True, False]


async def test_a_session_counts_from_when_the_heartbeat_was_sent(node: Node) -> None:
    one = member(node)
    heartbeat = node.groups.Heartbeat

    async def slowly(request: wire.HeartbeatRequest, timeout: float) -> wire.HeartbeatReply:
        answer = await heartbeat(request, timeout)
        node.now += 2.0
        return cast(wire.HeartbeatReply, answer)

    node.groups.Heartbeat = slowly
    await one.share([])
    node.now += SESSION - 2.0
    await one.share(OURS)
    assert node.heard == [[], []]


async def test_a_commit_to_a_new_master_is_retried_after_a_heartbeat(
    node: Node,
) -> None:
    one = await reader(node)
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[-1] == OURS, "it claims all that it reads"
    assert node.committed == [{("T", 0): 7}]


async def test_a_member_that_was_silent_for_a_session_commits_nothing_to_a_new_master(
    node: Node,
) -> None:
    one = await reader(node)
    node.known = False
    node.now += SESSION
    with pytest.raises(duolog.StaleMember):
        await one.commit({("T", 0): 7}, forward=True)
    assert (len(node.heard), node.committed) == (1, [])


async def test_a_commit_for_another_members_queue_is_refused_after_a_heartbeat_too(
    node: Node,
) -> None:
    one = await reader(node)
    asked = 0

    async def refuse(request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        nonlocal asked
        asked += 1
        raise duolog.StaleMember("another member's")

    node.groups.Commit = refuse
    with pytest.raises(duolog.StaleMember):
        await one.commit({("T", 0): 7}, forward=True)
    assert (asked, len(node.heard)) == (2, 2)


async def test_a_queue_that_could_not_be_claimed_is_never_claimed_for_a_commit(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    await one.share(OURS)  # silent for too long: others may have it
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[1:] == [[], []]


async def test_what_was_not_claimed_for_a_commit_is_not_claimed_later(node: Node) -> None:
    one = await reader(node)
    node.known = False
    commit = node.groups.Commit

    async def slowly(request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        node.slow = [] if node.known else [SESSION]
        return cast(wire.CommitReply, await commit(request, timeout))

    node.groups.Commit = slowly
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard == [[], OURS, []], "the first heartbeat was not heard in time"
    assert (await one.share(OURS)).forfeited == set(OURS)
    assert node.heard[3:] == [[]]


async def test_a_queue_that_was_let_go_of_is_never_claimed_for_a_commit(node: Node) -> None:
    one = await reader(node)
    await one.share(OURS[:1])  # before anything is answered
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[1:] == [OURS[:1], OURS[:1]]


# -- what a node is told, and what it answers ------------------------------------------------------


class Asked:
    """A connection that notes what it is asked, and answers it. errors: raised instead."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.timeouts: list[float] = []
        self.others: list[object] = []
        self.groups = self.admin = self
        self.runtime = SimpleNamespace(process_id=lambda: 7, chance=random.Random(1))

    async def call(
        self, make: Callable[[float], Awaitable[Any]], timeout: float, **how: object
    ) -> Any:
        self.others.append(how.get("others", Others.ALL))
        self.timeouts.append(timeout)
        return await make(timeout)

    async def _answer(self, request: Any, timeout: float) -> Any:
        assert timeout == self.timeouts[-1]
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    Heartbeat = Offsets = Commit = Leave = ListTopics = _answer


def sharing(asked: Asked, how: Clustering | None = None, **settings: Any) -> SharingMember:
    consumption = Consumption(group="g", **settings)
    return SharingMember(
        cast(Connection, asked), ["T", "U"], consumption, how or Clustering(), lambda: True
    )


async def test_a_heartbeat_says_how_the_member_reads() -> None:
    asked = Asked(wire.HeartbeatReply(pending=True), wire.HeartbeatReply())
    how = Clustering("MACHINE_ROOM_NEARBY", ("r1", "r2"), (("T", 3),))
    one = sharing(asked, how, tags=("b", "a", "b"), session=2.5, timeout=1.5)
    assert (await one.share([])).pending
    assert not (await one.share([])).pending
    told = asked.requests[0]
    assert (told.group, list(told.topics), told.session_ms) == ("g", ["T", "U"], 2500)
    assert (told.strategy, list(told.rooms)) == ("MACHINE_ROOM_NEARBY", ["r1", "r2"])
    assert [(ref.topic, ref.queue_id) for ref in told.wanted] == [("T", 3)]
    assert (told.tags, told.sql) == ("a || b", "")
    assert told.member_id == one.member_id
    assert asked.timeouts == [1.5, 1.5]
    ids = {sharing(asked).member_id for _ in range(10)}
    assert len(ids) == 10
    assert all(found.startswith("7-") for found in ids)


@pytest.mark.parametrize(
    ("settings", "tags", "sql"), [({}, "*", ""), ({"sql": "a > 1"}, None, "a > 1")]
)
async def test_a_member_without_tags_wants_all_or_says_it_by_sql(
    settings: dict[str, Any], tags: str | None, sql: str
) -> None:
    asked = Asked(wire.HeartbeatReply())
    await sharing(asked, **settings).share([])
    told = asked.requests[0]
    assert (told.tags if told.HasField("tags") else None, told.sql) == (tags, sql)


async def test_offsets_of_a_group_are_asked_for_with_its_start_or_without() -> None:
    rows = [wire.QueueOffset(topic="T", queue_id=2, offset=9)]
    asked = Asked(*[wire.OffsetsReply(offsets=rows)] * 2)
    one = sharing(asked)
    assert await one.offsets(OURS, duolog.Start.LATEST) == {("T", 2): 9}
    assert await one.offsets(OURS, None) == {("T", 2): 9}
    begins, plain = asked.requests
    assert (begins.begin, plain.begin) == (wire.LATEST, wire.START_UNSPECIFIED)
    assert [(ref.topic, ref.queue_id) for ref in plain.queues] == OURS


@pytest.mark.parametrize("forward", [True, False])
async def test_a_commit_names_the_member_and_what_it_knows(forward: bool) -> None:
    asked = Asked(wire.HeartbeatReply(generation=4), wire.CommitReply())
    one = sharing(asked)
    await one.share([])
    await one.commit({("T", 0): 7, ("T", 2): 8}, forward)
    told = asked.requests[1]
    assert (told.group, told.member_id, told.generation) == ("g", one.member_id, 4)
    assert told.forward == forward
    rows = [(row.topic, row.queue_id, row.offset) for row in told.offsets]
    assert rows == [("T", 0, 7), ("T", 2, 8)]


async def test_a_commit_before_the_first_heartbeat_is_of_no_generation() -> None:
    asked = Asked(wire.CommitReply())
    await sharing(asked).commit({("T", 0): 7}, forward=True)
    assert asked.requests[0].generation == 0, "a group's first one is not ours yet"


@pytest.mark.parametrize(("timeout", "seconds"), [(10.0, LEAVE_SECONDS), (0.5, 0.5)])
async def test_a_member_leaves_within_a_moment_whatever_happens(
    timeout: float, seconds: float
) -> None:
    asked = Asked(duolog.Unavailable("no master"), wire.LeaveReply())
    one = sharing(asked, timeout=timeout)
    await one.leave()
    await one.leave()
    assert (asked.timeouts, asked.others) == ([seconds] * 2, [Others.NONE] * 2)
    assert (asked.requests[0].group, asked.requests[0].member_id) == ("g", one.member_id)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"session": 0}, "session is 0 s"),
        ({"session": SESSION_SECONDS_MAX + 1}, "session"),
        ({"commit_interval": -0.1}, "commit_interval"),
        ({"tags": ["a"], "sql": "b = 1"}, "tags or by SQL"),
        ({"start": "EARLIEST"}, r"Start\.EARLIEST"),
        ({"group": ""}, "group"),
        ({"sql": 7}, "sql"),
    ],
)
def test_settings_of_a_consumer_that_make_no_sense_are_refused(
    wrong: dict[str, Any], text: str
) -> None:
    with pytest.raises(duolog.BadRequest, match=text):
        Consumption(**{"group": "g", **wrong})
    Consumption(group="g", session=SESSION_SECONDS_MAX, commit_interval=0)


# -- broadcasting ----------------------------------------------------------------------------------


def test_an_offsets_file_keeps_what_was_put_and_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "quite" / "new" / "offsets.json"
    synced: list[str] = []

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").read_text())
        assert path.exists() == (len(synced) > 1), "the file before is whole until then"

    monkeypatch.setattr(os, "fsync", fsync)
    file = OffsetFile(path)
    assert file.of("a", ("T", 0)) == -1
    file.put("a", {("T", 0): 7, ("T", 11): 8})
    file.put("b", {("T", 0): 9})
    file.put("a", {("T", 0): 10, ("U", 0): 1})
    assert synced[-1] == path.read_text(), "whole before it takes the place of the other"
    assert os.listdir(path.parent) == ["offsets.json"]
    for one in file, OffsetFile(path):
        assert [one.of("a", ("T", n)) for n in (0, 11, 1)] == [10, 8, -1]
        assert (one.of("b", ("T", 0)), one.of("a", ("U", 0)), one.of("c", ("T", 0))) == (9, 1, -1)
    assert list(json.loads(path.read_text())) == ["offsets"]


def test_offsets_may_be_kept_in_memory_only() -> None:
    file = OffsetFile(None)
    file.put("a", {("T", 0): 7})
    assert (file.of("a", ("T", 0)), OffsetFile(None).of("a", ("T", 0))) == (7, -1)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"offsets": 7}', '{"offsets": {"a": []}}', '{"offsets": {"a": {"T": 7}}}']
    + [f'{{"offsets": {{"a": {{"T": {{"0": {value}}}}}}}}}' for value in ("1.5", "true", '"1"')],
)
def test_a_file_that_is_none_of_offsets_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    with pytest.raises(duolog.BadRequest, match=r"offsets\.json is not an offsets file"):
        OffsetFile(path)
    assert path.read_text() == text


def broadcasting(asked: Asked, file: OffsetFile) -> BroadcastMember:
    return BroadcastMember(cast(Connection, asked), "a", ["T", "U"], file, 1.5)


async def test_a_member_that_broadcasts_reads_all_queues_of_its_topics() -> None:
    both = [wire.TopicReply(topic="U", queues=1), wire.TopicReply(topic="T", queues=2)]
    asked = Asked(wire.ListTopicsReply(topics=both), wire.ListTopicsReply(topics=both[:1]))
    one = broadcasting(asked, OffsetFile(None))
    share = await one.share([("X", 0)])
    assert share == Share({("T", 0), ("T", 1), ("U", 0)})
    assert (list(asked.requests[0].topics), asked.timeouts) == (["T", "U"], [1.5])
    with pytest.raises(duolog.UnknownTopic, match="'T' does not exist"):
        await one.share([])
    await one.leave()
    assert len(asked.requests) == 2


async def test_a_member_that_broadcasts_keeps_its_offsets_itself(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path / "offsets.json")
    one = broadcasting(Asked(), file)
    await one.commit({("T", 0): 7}, forward=True)
    assert await one.offsets([("T", 0), ("T", 1)], duolog.Start.LATEST) == {
        ("T", 0): 7,
        ("T", 1): -1,
    }
    assert OffsetFile(tmp_path / "offsets.json").of("a", ("T", 0)) == 7
    (tmp_path / "offsets.json").unlink()
    (tmp_path / "offsets.json").mkdir()
    with pytest.raises(duolog.DuologError, match="cannot write the offsets file"):
        await one.commit({("T", 0): 8}, forward=True)


@pytest.mark.parametrize(
    ("start", "groups", "begun"),
    [
        (duolog.Start.LATEST, "ab", {"T"}),
        (duolog.Start.LATEST, "b", set()),
        (duolog.Start.LATEST, "ac", set()),
        (duolog.Start.EARLIEST, "ab", set()),
    ],
)
async def test_a_topic_that_the_group_reads_in_another_replica_group_has_begun(
    start: duolog.Start, groups: str, begun: set[str]
) -> None:
    """What came to a new replica group is not skipped there by a group that starts at the end."""

    class Member:
        def __init__(self, offset: int) -> None:
            self._offset = offset

        async def offsets(self, queues: list[Queue], start: object) -> dict[Queue, int]:
            return dict.fromkeys(queues, self._offset)

    members: Any = {name: Member({"a": -1, "b": 0, "c": -1}[name]) for name in groups}
    async with duolog.Client("127.0.0.1:1") as client:
        consumer = client.consumer("g", "T", start=start)
        assert await consumer._begun(members, {key: [("T", 0)] for key in groups}) == begun


async def test_a_consumer_gives_a_forked_child_nothing_of_its_parents() -> None:
    """Neither the messages at hand, which the parent handles, nor the end of its span."""
    ended: list[int] = []
    async with duolog.Client("127.0.0.1:1") as client:
        consumer = client.consumer("g", "T")
        consumer._at_hand = iter([cast(Any, "the parent's")])
        consumer.note_fork()
        for processing in (None, SimpleNamespace(end=lambda: ended.append(1))):
            consumer.processing = cast(Any, processing)
            for call in (consumer.get, consumer.get_batch):
                with pytest.raises(duolog.WrongProcess):
                    await call(0.0)
        assert ended == []
