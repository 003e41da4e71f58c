"""A cluster of two replica groups: topics lie in both, transparently for clients."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duolog
import pytest
from duolog._groupreader import GroupReader
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.inspection.doctor.consumers import diagnose_groups
from duolog_server.serve.server import Node
from duolog_server.store.groupproblems import OLD_MS
from tests.keyfiles import access_files
from tests.node.replicas import GROUPS, WAIT_SECONDS, broker_of, client_of, master_of, start_groups
from tests.node.runtime.test_clocks import jumping
from tests.nodefixtures import StartNode, received
from tests.until import until


async def test_a_dead_group_does_not_hold_up_sends_to_the_others(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog._topics.FRESH_SECONDS", 0.1)
    monkeypatch.setattr("duolog._topics.GROUP_SECONDS", 0.2)
    loop = asyncio.get_running_loop()
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        await producer.send("T", b"x", key="k")
        await nodes["broker-b"].stop()
        await asyncio.sleep(0.3)
        began = loop.time()
        receipts = [await producer.send("T", b"y", key="k") for _ in range(5)]
        assert {receipt.group for receipt in receipts} == {"broker-a"}
        assert loop.time() - began < WAIT_SECONDS / 2, "of the time that each of them has"


async def test_a_group_that_does_not_answer_for_a_moment_keeps_its_keys(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog._topics.GROUP_SECONDS", 0.2)
    async with client_of(nodes["broker-a"]) as client:
        await client.admin.create_topic("T", 2)
        topics = client.producer()._topics
        slots = await topics.slots("T", 5)
        await nodes["broker-b"].stop()
        topics.forget("T")
        assert await topics.slots("T", 5) == slots


async def test_a_topic_is_made_in_every_group_and_the_cluster_shown_whole(
    nodes: dict[str, Node],
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        await client.admin.create_topic("T", 2)
        with pytest.raises(duolog.TopicExists):
            await client.admin.create_topic("T", 3)
        receipts = [await producer.send("T", b"%d" % k) for k in range(40)]
        places = Counter((receipt.group, receipt.queue_id) for receipt in receipts)
        assert places == {(group, queue): 10 for group in GROUPS for queue in (0, 1)}
        listed = await client.admin.topics(["T"])
        assert sorted(topic.group for topic in listed) == sorted(GROUPS)
    async with client_of(nodes["broker-a"]) as client:
        route = await client.admin.route()
        assert [group.group for group in route.groups] == list(GROUPS)
        status = await client.admin.cluster_status()
        assert {node.replication.group for node in status.nodes} == set(GROUPS)


async def test_pages_show_what_lies_in_some_groups_only(nodes: dict[str, Node]) -> None:
    async with client_of(nodes["broker-a"]) as client:
        await client.admin.create_topic("A", 1, groups=["broker-b"])
        await client.admin.create_topic("B", 1)
        await client.admin.create_topic("C", 1, groups=["broker-a"])
        await client.admin.put_group("g")
        await client.admin.commit("g", {("B", group, 0): 0 for group in GROUPS})
        rows, after = list[tuple[str, str]](), ""
        for count in (1, 2, 1):
            page = await client.admin.topics_page(after=after, limit=1)
            rows += [(row.topic, row.group) for row in page.rows]
            after = page.next
            assert (len(page.rows), page.total) == (count, 2), "each replica group has two"
        assert after == ""
        assert rows == [("A", "broker-b"), *(("B", group) for group in GROUPS), ("C", "broker-a")]
        assert (await client.admin.topics_page()).total == 3
        groups = await client.admin.groups_page()
        assert [row.group for row in groups.rows] == ["g"]
        assert {queue.replica_group for queue in groups.rows[0].queues} == set(GROUPS)


@pytest.mark.usefixtures("quick_groups")
async def test_a_problem_of_one_group_is_told_with_what_the_others_know(
    nodes: dict[str, Node],
) -> None:
    """Where a consumer group is well, a list of problems leaves it out, with its consumers."""
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        for group in GROUPS:
            await producer.send("T", b"x", queue_id=0, group=group)
        await client.admin.put_group("well")
        for name, offset in (("g", 0), ("well", 1)):
            offsets = {("T", "broker-a", 0): 1, ("T", "broker-b", 0): offset}
            await client.admin.commit(name, offsets)
        beat = wire.HeartbeatRequest(group="g", member_id="m", topics=["T"], session_ms=60_000)

        async def has_queue() -> bool:
            reply = await client._router.connection("broker-a").groups.Heartbeat(beat, timeout=10)
            return len(reply.queues) == 1

        await until(has_queue)
        for node in nodes.values():
            jumping(node).jumped = 2 * OLD_MS
        groups = await client.admin.groups(problems_only=True)
        assert [group.group for group in groups] == ["g"]
        assert {queue.replica_group for queue in groups[0].queues} == set(GROUPS)
        assert groups[0].members == 1
        whole = await client.admin.groups(["g"])
        told = diagnose_groups(groups, [])
        assert [one.cause for one in told] == ["queue-stuck"]
        assert [one.cause for one in diagnose_groups(whole, [])] == ["queue-stuck"]


async def test_messages_of_one_key_stay_in_one_queue_of_one_group(nodes: dict[str, Node]) -> None:
    async with client_of(nodes["broker-b"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        for key in ("k1", "k2", "k3"):
            sent = [await producer.send("T", b"x", key=key) for _ in range(5)]
            assert len({(receipt.group, receipt.queue_id) for receipt in sent}) == 1
            assert [r.queue_offset - sent[0].queue_offset for r in sent] == [0, 1, 2, 3, 4]
            found = await client.admin.find("T", key=key)
            assert len(found) == 5


async def test_a_queue_that_is_in_two_groups_is_named_with_its_group(
    nodes: dict[str, Node],
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        with pytest.raises(duolog.UnknownTopic, match="broker-a, broker-b"):
            await producer.send("T", b"x", queue_id=0)
        with pytest.raises(duolog.UnknownTopic, match="replica group 'z' does not exist"):
            await producer.send("T", b"x", queue_id=0, group="z")
        receipt = await producer.send("T", b"x", queue_id=0, group="broker-b")
        assert receipt.group == "broker-b"
        batch = await client.pull("T", 0, 0, group="broker-b")
        assert (batch.body_list(), batch.group) == ([b"x"], "broker-b")
        await client.admin.create_topic("only-b", 1, groups=["broker-b"])
        assert (await producer.send("only-b", b"y", queue_id=0)).group == "broker-b"


@pytest.mark.usefixtures("quick_groups")
async def test_a_consumer_reads_all_groups_and_commits_in_each(nodes: dict[str, Node]) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        await producer.send_batch("T", [b"%d" % k for k in range(30)])
        for k in range(30, 60):
            await producer.send("T", b"%d" % k)
        seen: set[bytes] = set()
        groups: set[str] = set()
        async with client.consumer("g", "T") as consumer:
            # Each group grants its queues at the end of its own grace.
            await until(lambda: len(consumer.assignment) == 4)
            while len(seen) < 60:
                message = await received(consumer)
                seen.add(message.body)
                groups.add(message.group)
        assert groups == set(GROUPS)
        described = await client.admin.group("g")
        assert sum(queue.committed or 0 for queue in described.queues) == 60
        assert {queue.replica_group for queue in described.queues} == set(GROUPS)
        async with client.consumer("g", "T") as again:
            assert await again.get(0.3) is None


@pytest.mark.usefixtures("quick_groups")
async def test_what_comes_to_another_replica_group_is_read_from_its_first_message(
    nodes: dict[str, Node],
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("U", 1, groups=["broker-a"])
        await producer.send("U", b"before")
        async with client.consumer("g", "U", start=duolog.Start.LATEST):
            pass
        await client.admin.create_topic("U", 1, groups=["broker-b"])
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        receipts = [await producer.send("U", b"%d" % k) for k in range(4)]
        assert {receipt.group for receipt in receipts} == set(GROUPS)
        async with client.consumer("g", "U", start=duolog.Start.LATEST) as consumer:
            found = [await consumer.get(WAIT_SECONDS) for _ in range(4)]
        assert {one.body for one in found if one is not None} == {b"%d" % k for k in range(4)}


async def test_sends_without_a_queue_go_to_the_group_that_takes_them(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"x")
        master = master_of(nodes["broker-b"])
        monkeypatch.setattr(master, "stopped", lambda now_ms: "nothing is taken here")
        receipts = [await producer.send("T", b"%d" % k, timeout=5) for k in range(6)]
        assert {receipt.group for receipt in receipts} == {"broker-a"}
        with pytest.raises(duolog.NotMaster):
            await producer.send("T", b"x", queue_id=0, group="broker-b", timeout=4)


@pytest.mark.usefixtures("quick_groups")
async def test_a_group_that_cannot_be_joined_is_joined_by_a_later_try(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        for k in range(4):
            await producer.send("T", b"%d" % k)
        failures = [duolog.Unavailable("no answer")]
        start = GroupReader.start

        async def flaky(reader: GroupReader) -> None:
            if failures and reader.replica_group == "broker-b":
                raise failures.pop()
            await start(reader)

        monkeypatch.setattr(GroupReader, "start", flaky)
        consumer = client.consumer("g", "T")
        with pytest.raises(duolog.Unavailable):
            await consumer.start()
        await consumer.start()
        found: set[bytes] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found) < 4:
                message = await received(consumer)
                found.add(message.body)
        await consumer.close()


@pytest.mark.usefixtures("quick_groups")
async def test_a_silent_group_ends_the_reading_only_where_all_are_silent(
    nodes: dict[str, Node],
) -> None:
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        async with client.consumer("g", "T") as consumer:
            a, b = (consumer._readers[name] for name in ("broker-a", "broker-b"))
            b._silent("a test", duolog.Unavailable("b does not answer"))
            await producer.send("T", b"1", group="broker-a")
            assert (await received(consumer)).body == b"1"
            assert await consumer.get(timeout=0) is None
            a._silent("a test", duolog.Unavailable("a does not answer"))
            with pytest.raises(duolog.Unavailable, match="a does not answer"):
                await consumer.get(timeout=0)
            assert await consumer.get(timeout=0.01) is None, "it waits for messages again"
            b._silent("a test", None)
            await producer.send("T", b"2", group="broker-b")
            assert (await received(consumer)).body == b"2"


async def test_a_group_that_cannot_be_joined_later_hinders_no_other(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(nodes["broker-a"]) as client:
        await client.admin.create_topic("T", 1)
        async with client.consumer("g", "T") as consumer:
            for reader in consumer._readers.values():
                await reader.close()
            consumer._readers.clear()
            start = GroupReader.start

            async def silent(reader: GroupReader) -> None:
                if reader.replica_group == "broker-a":  # the first one that is tried
                    raise duolog.Unavailable("no answer")
                await start(reader)

            monkeypatch.setattr(GroupReader, "start", silent)
            await consumer._join()
            assert list(consumer._readers) == ["broker-b"]


async def test_a_topic_is_unknown_only_where_every_group_says_so(nodes: dict[str, Node]) -> None:
    """While no node of a group has an address, topics of that group do not count as unknown."""
    async with client_of(nodes["broker-a"]) as client:
        await client.admin.create_topic("only-b", 1, groups=["broker-b"])
    broker = broker_of(nodes["broker-a"])
    assert broker.failover is not None
    whole = dict(broker.failover.routes)
    learn = broker.failover._learn_routes
    broker.failover._learn_routes = lambda routes: None  # type: ignore[method-assign]
    broker.failover.routes = {**whole, "broker-b": replace(whole["broker-b"], replicas={})}
    async with client_of(nodes["broker-a"]) as client, client.producer() as producer:
        with pytest.raises(duolog.Unavailable, match="broker-b cannot be reached"):
            await producer.send("only-b", b"x", timeout=4)
        with pytest.raises(duolog.Unavailable, match="no node of replica group"):
            await client.pull("only-b", 0, 0, group="broker-b")
        sending = asyncio.ensure_future(producer.send("only-b", b"x", timeout=10))
        await asyncio.sleep(0.3)
        broker.failover.routes = whole
        assert (await sending).group == "broker-b"
        with pytest.raises(duolog.UnknownTopic):
            await producer.send("nowhere", b"x", timeout=5)
    broker.failover._learn_routes = learn  # type: ignore[method-assign]


async def test_users_are_the_same_in_every_group(start_node: StartNode, tmp_path: Path) -> None:
    """Also their tokens, and passwords that are given once more."""
    access = access_files(tmp_path, "secret")
    nodes = await start_groups(start_node, tmp_path, access=access)

    def client_of_user(user: str, password: str) -> duolog.Client:
        endpoint = f"127.0.0.1:{nodes['broker-a'].port}"
        return duolog.Client(endpoint, timeout=30, user=user, password=password)

    async with client_of_user("root", "secret") as root:
        await root.access.create_user("root", "secret", is_super=True)
        await root.access.create_user("alice", "secret")
        entry = '{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}'
        rights = f'{{"policies": [{{"policyType": "Custom", "entries": [{entry}]}}]}}'
        await root.access.set_rights("alice", rights)
        await root.admin.create_topic("T", 1)
        token = await root.access.issue_token(60, user="alice")
        await root.access.alter_user("alice", password="secret")
    rows = [broker_of(node).metadata.access.rows() for node in nodes.values()]
    assert rows[0] == rows[1]
    for password in ("secret", token):
        async with client_of_user("alice", password) as alice, alice.producer() as producer:
            receipts = [await producer.send("T", b"%d" % k) for k in range(10)]
            assert {receipt.group for receipt in receipts} == set(GROUPS)
