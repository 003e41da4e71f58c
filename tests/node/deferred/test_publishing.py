"""Batches of sinks: staged invisibly, published as a whole and once, by any master."""

import asyncio
import errno
import hashlib
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog._columns import crc32, pack
from duolog._sink import Sink, SinkState
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.service.publishservice import STAGED_TOPIC
from duolog_server.serve.server import Node
from duolog_server.store.dispatch import Dispatcher
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

NOTHING = (b"", b"")


async def stage(sink: Sink, *bodies: bytes, queue_id: int = 0, topic: str = "T") -> int:
    return await sink.stage(topic, queue_id, pack(bodies), NOTHING, 1)


async def publish_until(stands: asyncio.Event, sink: Sink, staged: list[int]) -> None:
    """Publish, and give up once the node stands still."""
    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
        publishing = group.create_task(sink.publish(0, staged))
        await stands.wait()
        publishing.cancel()


async def stored(client: duolog.Client, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while (batch := await client.pull("T", queue_id, offset)).count:
        found += batch.body_list()
        offset = batch.next_offset
    return found


async def test_staged_messages_are_visible_only_once_published(client: duolog.Client) -> None:
    sink = await client.sink("s")
    lost = await stage(sink, b"of a failed try")
    staged = [await stage(sink, b"1", b"2"), await stage(sink, b"3"), await stage(sink, b"4")]
    assert await stored(client) == []
    assert await sink.publish(7, [staged[0], staged[2], staged[1]]) is False
    assert await stored(client) == [b"1", b"2", b"4", b"3"]
    # The same number again, whatever is named for it now, and an older one, change nothing.
    assert await sink.publish(7, staged) is True
    assert await sink.publish(7, [lost]) is True
    assert await sink.publish(6, [lost]) is True
    assert await stored(client) == [b"1", b"2", b"4", b"3"]
    assert await sink.publish(8, [await stage(sink, b"5")]) is False
    assert (await stored(client))[-1] == b"5"
    keys = {message.unique_key for message in await client.pull("T", 0, 0)}
    assert len(keys) == 5


async def test_a_staged_request_creates_its_topic_and_a_refused_one_does_not(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 2})
    topics = broker_of(node).metadata.topics
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        sink = await client.sink("s")
        with pytest.raises(duolog.BadRequest, match=r"has queues 0\.\.1"):
            await stage(sink, b"2", topic="New", queue_id=2)
        assert "New" not in topics
        number = await stage(sink, b"1", topic="New", queue_id=1)
        assert topics["New"].queues == 2
        await sink.publish(0, [number])
        assert (await client.pull("New", 1, 0)).body_list() == [b"1"]


async def test_concurrent_publications_of_one_batch_number_store_it_once(
    client: duolog.Client,
) -> None:
    sink = await client.sink("s")
    tries = [[await stage(sink, b"a")], [await stage(sink, b"b")], [await stage(sink, b"c")]]
    answers = await asyncio.gather(*(sink.publish(0, one) for one in tries))
    assert sorted(answers) == [False, True, True]
    assert len(await stored(client)) == 1


async def test_who_knows_the_name_of_a_sink_cannot_use_up_its_sequences(
    client: duolog.Client,
) -> None:
    """Its producer ids follow from its name, so that every master knows them."""
    await client.admin.create_topic("Other", 1)
    guessed = hashlib.blake2b(b"s\n0", digest_size=10).digest()
    async with client.producer(producer_id=guessed) as producer:
        await producer.send("Other", b"of somebody else")
    sink = await client.sink("s")
    await sink.publish(0, [await stage(sink, b"1", b"2")])
    assert await stored(client) == [b"1", b"2"]


@pytest.mark.parametrize("index", [True, False])
async def test_a_batch_whose_sequences_are_forgotten_is_finished_without_duplicates(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    node = await start_node(producers_max=2, message_index_enable=index)
    metadata = broker_of(node).metadata
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        sink = await client.sink("s")
        staged = [await stage(sink, b"%d" % k) for k in range(6)]
        service = broker_of(node).publishes
        put, puts, stands = service._put, 0, asyncio.Event()

        async def interrupted(*args: object) -> object:
            nonlocal puts
            puts += 1
            if puts >= 4:
                stands.set()
                raise duolog.Busy("the node stands still here")
            return await put(*args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(service, "_put", interrupted)
            patch.setattr(metadata, "note", lambda change: None)  # all notes of it are lost
            await publish_until(stands, sink, staged)
            # It stands still until then: else it goes on by itself, which may be at any moment.
            async with asyncio.timeout(WAIT_SECONDS):
                while await stored(client) != [b"0", b"1", b"2"]:
                    await asyncio.sleep(0.01)  # stored, and not readable at once
            for number in range(5):
                async with client.producer() as producer:
                    await producer.send("T", b"of another %d" % number)
        assert await sink.publish(0, staged) is True
        bodies = [body for body in await stored(client) if not body.startswith(b"of")]
        assert bodies == [b"%d" % k for k in range(6)]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("survived", [1, 3, 5])
async def test_the_rest_of_a_partly_stored_request_is_published(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, index: bool, survived: int
) -> None:
    """The last batch of a dead master may have reached the next one in part."""
    node = await start_node(producers_max=1, message_index_enable=index)
    metadata, service = broker_of(node).metadata, broker_of(node).publishes
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        sink = await client.sink("s")
        bodies = [b"%d" % k for k in range(5)]
        staged = [await stage(sink, b"first"), await stage(sink, *bodies), await stage(sink, b"5")]
        put, puts, stands = service._put, 0, asyncio.Event()

        async def interrupted(request: wire.AppendRequest, *rest: object) -> object:
            nonlocal puts
            puts += 1
            if puts == 1:
                return await put(request, *rest)  # type: ignore[arg-type]
            if puts == 2:
                without_properties = [b""] * survived
                columns = pack(bodies[:survived]), pack(without_properties)
                (request.bodies, request.body_offsets) = columns[0]
                (request.properties, request.property_offsets) = columns[1]
                request.crc32 = crc32(*columns[0], *columns[1])
                await put(request, *rest)  # type: ignore[arg-type]
            stands.set()
            raise duolog.Busy("the node stands still here")

        with monkeypatch.context() as patch:
            patch.setattr(service, "_put", interrupted)
            patch.setattr(metadata, "note", lambda change: None)  # all notes of it are lost
            await publish_until(stands, sink, staged)
            # It stands still until then: else it goes on by itself, which may be at any moment.
            async with asyncio.timeout(WAIT_SECONDS):
                while await stored(client) != [b"first", *bodies[:survived]]:
                    await asyncio.sleep(0.01)  # stored, and not readable at once
            async with client.producer() as producer:
                await producer.send("T", b"of another")  # the sink's sequences are forgotten
        assert await sink.publish(0, staged) is True
        found = [body for body in await stored(client) if body != b"of another"]
        assert found == [b"first", *bodies, b"5"]


@pytest.mark.parametrize("index", [True, False])
async def test_stored_but_unconfirmed_messages_are_not_published_twice(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    node = await start_node(producers_max=1, message_index_enable=index)
    broker = broker_of(node)
    dispatch, held = broker.store.dispatch, False
    monkeypatch.setattr(broker.store, "dispatch", lambda: False if held else dispatch())
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        sink = await client.sink("s")
        staged = [await stage(sink, b"%d" % k) for k in range(2)]
        put, stands = broker.publishes._put, asyncio.Event()

        async def unconfirmed(*args: object) -> object:
            nonlocal held
            held = True  # as while replicas are away
            stored_now = await put(*args)  # type: ignore[arg-type]
            async with client.producer() as producer:
                await producer.send("T", b"of another")  # the sink's sequences are forgotten
            stands.set()
            return stored_now

        monkeypatch.setattr(broker.publishes, "_put", unconfirmed)
        await publish_until(stands, sink, staged)
        monkeypatch.setattr(broker.publishes, "_put", put)
        work = asyncio.ensure_future(sink.publish(0, staged))
        await asyncio.sleep(0.5)
        held = False
        broker.log.pump_soon()
        assert await work is True
        bodies = [body for body in await stored(client) if body != b"of another"]
        assert bodies == [b"0", b"1"]


async def test_a_batch_is_published_once_it_can_be_read(
    node: Node, single: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await single.sink("s")
    number = await stage(sink, b"1")
    broker, steps = broker_of(node), 0
    put_part, change = broker.publishes._put, broker.metadata.change
    put, put_queue = Dispatcher._put, Dispatcher._put_queue

    def all_but_one(self: Dispatcher, *args: Any) -> None:
        if args[2] != ("T", 0):
            put_queue(self, *args)

    def without_room(self: Dispatcher, *args: Any) -> int:
        nonlocal steps
        steps += 1
        put(self, *args)
        raise OSError(errno.ENOSPC, "no room for the file of one queue")

    with monkeypatch.context() as patch, monkeypatch.context() as held:

        async def held_part(*args: Any) -> Any:
            held.setattr(broker.store, "dispatch", lambda: False)
            return await put_part(*args)

        async def noted(what: dict[str, Any]) -> None:
            if what["op"] == "published":
                patch.setattr(Dispatcher, "_put_queue", all_but_one)
                patch.setattr(Dispatcher, "_put", without_room)
                held.undo()
            await change(what)

        patch.setattr(broker.publishes, "_put", held_part)
        patch.setattr(broker.metadata, "change", noted)
        published = asyncio.create_task(sink.publish(0, [number]))
        sinks = broker.metadata.tables.sinks
        await until(lambda: sinks.get("s", {"staged": [number]})["staged"] == [])
        before = steps
        await until(lambda: steps > before + 3)
        assert not published.done()
    assert await published is False
    assert await stored(single) == [b"1"]


async def test_an_invalid_batch_publishes_nothing(client: duolog.Client) -> None:
    sink, other = await client.sink("s"), await client.sink("other")
    mine, foreign = await stage(sink, b"mine"), await stage(other, b"foreign")
    with pytest.raises(duolog.NoSuchMessage, match="staged request 99 does not exist"):
        await sink.publish(0, [mine, 99])
    with pytest.raises(duolog.BadRequest, match="another sink"):
        await sink.publish(0, [mine, foreign])
    with pytest.raises(duolog.BadRequest):
        await sink.publish(-1, [mine])
    with pytest.raises(duolog.BadRequest, match="sink's name"):
        await (await client.sink("x" * 256)).publish(0, [mine])
    with pytest.raises(duolog.BadRequest, match="queues 0"):
        await stage(sink, b"", queue_id=9)
    with pytest.raises(duolog.NoPermission):
        await stage(sink, b"", topic=STAGED_TOPIC)
    with pytest.raises(duolog.BadRequest, match="exceeds the limit"):
        await stage(sink, bytes(65 << 10))
    with pytest.raises(duolog.MessageTooLarge):
        await stage(sink, *[bytes(30 << 10)] * 3)
    assert await stored(client) == []
    assert await sink.publish(0, [mine]) is False
    assert await stored(client) == [b"mine"]
    with pytest.raises(duolog.UnknownTopic):
        await client.pull(STAGED_TOPIC, 0, 0)


async def test_a_restarted_node_knows_what_was_published(
    start_node: StartNode, tmp_path: Path
) -> None:
    first = await start_node(tmp_path / "d")
    async with duolog.Client(f"127.0.0.1:{first.port}") as client:
        await client.admin.create_topic("T", 1)
        sink = await client.sink("s")
        staged = [await stage(sink, b"1")]
        await sink.publish(3, staged, "rows", "me")
        assert await sink.publish(5, [await stage(sink, b"2", b"3")], "rows", "you") is False
    await first.stop()
    again = await start_node(tmp_path / "d")
    async with duolog.Client(f"127.0.0.1:{again.port}") as client:
        sink = await client.sink("s")
        assert await sink.state() == SinkState(5, 2, 3, 2, 0, "rows", "you")
        assert await sink.publish(3, staged, "rows", "me") is True
        assert await stored(client) == [b"1", b"2", b"3"]


async def test_the_next_master_stores_the_rest_and_nothing_twice(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=30) as client:
        await client.admin.create_topic("T", 1)
        sink = await client.sink("s")
        staged = [await stage(sink, b"%d" % k) for k in range(20)]
        master = group.the_master()
        service = broker_of(master).publishes
        put, puts = service._put, 0

        async def interrupted(*args: object) -> object:
            nonlocal puts
            puts += 1
            while puts > 7 and not broker_of(master).replication.not_master():
                await asyncio.sleep(0.01)
            return await put(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(service, "_put", interrupted)
        # The notes of the last ones get lost, as where a log is cut behind what was stored.
        note, notes = broker_of(master).metadata.note, 0

        def forgetful(change: dict[str, object]) -> None:
            nonlocal notes
            notes += 1
            if notes <= 4:
                note(change)

        monkeypatch.setattr(broker_of(master).metadata, "note", forgetful)
        work = asyncio.ensure_future(sink.publish(0, staged))
        await until(lambda: puts >= 8)
        await group.switch(client)
        assert group.the_master() is not master
        await work  # asks the new master, which goes on by itself, too
        assert await stored(client) == [b"%d" % k for k in range(20)]
        assert await sink.publish(0, staged) is True


async def test_an_interrupted_publication_is_finished_without_a_request(
    node: Node, client: duolog.Client
) -> None:
    sink = await client.sink("s")
    staged = [await stage(sink, b"%d" % k) for k in range(3)]
    change = {"op": "publish", "sink": "s", "batch": 1, "staged": staged}
    await broker_of(node).metadata.change(change)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(await stored(client)) < 3:
            await asyncio.sleep(0.02)
    assert await stored(client) == [b"0", b"1", b"2"]


async def test_a_sink_waits_until_enough_replicas_are_in_sync(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await client.sink("s")
    replication = broker_of(node).replication
    for step in (stage(sink, b"1"), sink.publish(0, [0])):
        monkeypatch.setattr(replication, "refusal", lambda: "1 of 2 required replicas are in sync")
        monkeypatch.setattr(broker_of(node).metadata, "refused", lambda: duolog.Busy("as before"))
        work = asyncio.ensure_future(step)
        await asyncio.sleep(0.2)
        assert not work.done()
        monkeypatch.undo()
        assert not await work
    assert await stored(client) == [b"1"]


async def test_a_read_may_leave_columns_out(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await producer.send_batch("T", [b"one", b"two"], queue_id=0, tags="t")
    request = wire.PullRequest(topic="T", queue_id=0, columns=[wire.BODIES])
    group = (await client.admin.topics(["T"]))[0].group
    batch = await client.fetch(request, group)
    assert (batch.bodies, batch.count) == (b"onetwo", 2)
    assert {batch.properties, batch.flags, batch.physical_offsets} == {b""}
    request = wire.PullRequest(topic="T", queue_id=0, columns=[wire.PROPERTIES, wire.FLAGS])
    batch = await client.fetch(request, group, from_slaves=True)
    assert b"TAGS\x01t" in batch.properties
    assert len(batch.flags) == 8
    assert {batch.bodies, batch.store_times} == {b""}


async def test_offsets_are_found_by_size(client: duolog.Client, producer: duolog.Producer) -> None:
    await producer.send_batch("T", [bytes(100)] * 50, queue_id=0)
    (topic,) = await client.admin.topics(["T"])

    async def until(start: int, size: int) -> int:
        return await client.admin.offset_at_size("T", 0, start, size, group=topic.group)

    one = (await client.pull("T", 0, 0, max_messages=2)).physical_offsets
    size = one[1] - one[0]
    assert [await until(0, n) for n in (1, size, 10 * size, 10 * size + 1)] == [1, 1, 10, 10]
    assert await until(45, 1000 * size) == 50
    assert await until(50, size) == 50


async def test_reads_prefer_slaves(start_node: StartNode, tmp_path: Path) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=30) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
        request = wire.PullRequest(topic="T", wait_ms=5000)
        name = (await client.admin.topics(["T"]))[0].group
        batch = await client.fetch(request, name, from_slaves=True)
        assert batch.bodies == b"x"
        out = {node: broker_of(node).core.traffic.messages_out for node in group.nodes}
        assert out.pop(group.the_master()) == 0
        assert sorted(out.values()) == [0, 1]


async def test_what_was_staged_for_a_deleted_topic_is_not_published(client: duolog.Client) -> None:
    """All of a batch or nothing of it, and nothing to a topic that only has the name."""
    await client.admin.create_topic("gone", 1)
    sink = await client.sink("s")
    staged = [await stage(sink, b"1", topic="gone"), await stage(sink, b"2")]
    await client.admin.delete_topic("gone")
    for _ in range(2):
        with pytest.raises(duolog.NoSuchMessage, match="'gone' was deleted"):
            await sink.publish(0, staged)
        await client.admin.create_topic("gone", 1)
    assert (await client.pull("gone", 0, 0)).body_list() == await stored(client) == []
    staged[0] = await stage(sink, b"1", topic="gone")
    assert await sink.publish(0, staged) is False
    assert (await client.pull("gone", 0, 0)).body_list() == [b"1"]
    assert await stored(client) == [b"2"]


@pytest.mark.parametrize("again", [False, True])
async def test_a_part_that_can_no_longer_be_stored_is_reported_to_everybody_who_publishes_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its topic is deleted, or made again, while the batch is stored."""
    service = broker_of(node).publishes
    unseen = service._staged
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        for topic in ("T", "gone"):
            await client.admin.create_topic(topic, 1)
        sink = await client.sink("s")
        staged = [await stage(sink, b"1", topic="gone"), await stage(sink, b"2")]

        async def deleting(offset: int) -> object:
            if service.state("s").known and "gone" in broker_of(node).metadata.topics:
                monkeypatch.undo()
                await client.admin.delete_topic("gone")
                if again:
                    await client.admin.create_topic("gone", 1)
            return await unseen(offset)

        monkeypatch.setattr(service, "_staged", deleting)
        for _ in range(2):
            with pytest.raises(duolog.NoSuchMessage, match="1 parts of a published batch are lost"):
                await sink.publish(0, staged)
        state = await sink.state()
        assert state is not None
        assert state.lost_parts == 1
        assert await stored(client) == [b"2"]
        if again:
            assert (await client.pull("gone", 0, 0)).body_list() == []
        assert await sink.publish(1, [await stage(sink, b"3")]) is False


async def test_the_contents_of_a_sink_are_fixed_by_its_first_batch(client: duolog.Client) -> None:
    sink = await client.sink("s")
    assert await sink.state() is None
    first = [await stage(sink, b"1", b"2"), await stage(sink, b"3")]
    assert await sink.publish(0, first, contents="these rows", publisher="me") is False
    expected = SinkState(0, 1, 3, 3, 0, "these rows", "me")
    assert await sink.state() == expected
    more = [await stage(sink, b"4")]
    for contents in ("", "other rows", "x" * 8192):
        for batch in (0, 1):
            with pytest.raises(duolog.BadRequest, match="publishes 'these rows', not"):
                await sink.publish(batch, more, contents=contents)
    for contents, publisher in (("x" * 8193, ""), ("these rows", "x" * 256)):
        with pytest.raises(duolog.BadRequest, match="limit"):
            await sink.publish(1, more, contents=contents, publisher=publisher)
    assert await sink.state() == expected
    assert await sink.publish(0, more, contents="these rows", publisher="you") is True
    assert await sink.state() == expected
    assert await sink.publish(1, more, contents="these rows", publisher="you") is False
    assert await sink.state() == SinkState(1, 2, 4, 1, 0, "these rows", "you")
    assert await stored(client) == [b"1", b"2", b"3", b"4"]


async def test_of_two_sinks_started_with_different_contents_one_is_refused(
    client: duolog.Client,
) -> None:
    sink = await client.sink("s")
    tries = [[await stage(sink, b"a")], [await stage(sink, b"b")]]
    answers = await asyncio.gather(
        *(sink.publish(k, one, contents=f"rows {k}") for k, one in enumerate(tries)),
        return_exceptions=True,
    )
    assert sorted(map(str, answers))[0] == "False"
    assert sum(isinstance(answer, duolog.BadRequest) for answer in answers) == 1
    assert len(await stored(client)) == 1
