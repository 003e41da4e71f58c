"""POP through RocketMQ's API: leases, attempts, dead letters, order, filters, waiting."""

import asyncio
import gzip
import hashlib
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.compat.grpc.relay.clients import Clients
from duolog_server.node.pop.popservice import SCAN_MAX
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.columns import Columns
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import Api, Received, message, resource
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, broker_of, client_of
from tests.nodefixtures import StartNode
from tests.until import until


async def receive_until(api: Api, group: str, wanted: int, **how: Any) -> list[Any]:
    """Messages of as many polls as it takes."""
    found: list[Any] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < wanted:
            found += (await api.receive(group, **how)).messages
    return found


def attempts(received: Received) -> list[int]:
    return [made.system_properties.delivery_attempt for made in received.messages]


async def test_pop_goes_on_behind_what_was_trimmed(node: Node, api: Api) -> None:
    async with client_of(node) as client:
        await client.admin.create_topic("P", 1)
        async with client.producer() as producer:
            await producer.send_batch("P", [b"%d" % k for k in range(6)])
        (leased,) = (await api.receive("g", "P", count=1)).messages
        assert leased.body == b"0"
        place = duolog.QueuePlace("broker-a", 0)
        await client.admin.trim_topic("P", queue=place, offset=4)
    found = await receive_until(api, "g", 2, topic="P")
    assert [one.body for one in found] == [b"4", b"5"]
    handles = [one.system_properties.receipt_handle for one in (leased, *found)]
    assert (await api.ack("g", *handles, topic="P")).status.code == Code.OK


async def test_a_message_is_received_as_it_was_sent(api: Api) -> None:
    sent = message(
        b"body",
        message_id="01AB",
        tag="A",
        keys=["k1", "k2"],
        properties={"color": "blue", "ü": "ö"},
        trace_context="00-1-2-01",
    )
    reply = await api.send(sent)
    assert reply.status.code == Code.OK
    (entry,) = reply.entries
    assert (entry.message_id, entry.offset) == ("01AB", 0)
    received = await api.receive("g")
    assert received.code == Code.OK
    assert received.delivered == 1
    (found,) = received.messages
    system = found.system_properties
    assert found.body == b"body"
    assert dict(found.user_properties) == {"color": "blue", "ü": "ö"}
    assert (system.message_id, system.tag, list(system.keys)) == ("01AB", "A", ["k1", "k2"])
    assert system.trace_context == "00-1-2-01"
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert system.body_encoding == definition.Encoding.IDENTITY
    assert system.delivery_attempt == 1
    born = sent.system_properties.born_timestamp
    assert system.born_timestamp.ToMilliseconds() == born.ToMilliseconds()
    assert system.born_host.startswith("127.0.0.1:")
    assert system.receipt_handle
    assert found.topic.name == "T"


async def test_a_compressed_body_stays_compressed(api: Api) -> None:
    body = gzip.compress(b"x" * 10_000)
    await api.send(message(body, body_encoding=definition.Encoding.GZIP))
    (found,) = (await api.receive("g")).messages
    assert found.body == body
    assert found.system_properties.body_encoding == definition.Encoding.GZIP
    digest = found.system_properties.body_digest
    assert digest.checksum == hashlib.md5(body).hexdigest().upper()


async def test_each_message_is_delivered_once_to_every_group(api: Api) -> None:
    for k in range(40):
        await api.send(message(b"%d" % k))
    first = await api.receive("g")
    assert len(first.messages) == 32  # however many there are
    found = [*first.messages, *(await api.receive("g")).messages]
    assert sorted(int(made.body) for made in found) == list(range(40))
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND
    others = await receive_until(api, "h", 40)
    assert sorted(int(made.body) for made in others) == list(range(40))


async def test_an_expired_lease_leads_to_another_attempt_and_finally_a_dead_letter(
    api: Api, node: Node
) -> None:
    await api.send(message(b"x", message_id="01CD", tag="A"))
    for attempt in (1, 2, 3):  # retry_times 2
        (found,) = await receive_until(api, "g", 1)
        assert found.system_properties.delivery_attempt == attempt
        assert found.system_properties.message_id == "01CD"
        assert found.topic.name == "T"
        changed = await api.change("g", found.system_properties.receipt_handle, 50)
        assert changed.status.code == Code.OK
    await until(lambda: "%DLQ%g" in broker_of(node).metadata.topics)
    (dead,) = await receive_until(api, "h", 1, topic="%DLQ%g")
    assert (dead.body, dead.system_properties.tag) == (b"x", "A")
    assert dead.system_properties.message_id == "01CD"
    assert dead.system_properties.dead_letter_queue.topic == "T"
    assert dead.system_properties.dead_letter_queue.message_id == "01CD"
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_dead_letter_that_is_popped_has_more_attempts_of_its_own(
    api: Api, node: Node
) -> None:
    """Its copy names the topic that it was first sent to, and is none of that topic's any more."""
    await api.send(message(b"x"))

    async def fail(group: str, topic: str, times: int) -> None:
        for _ in range(times):
            (found,) = await receive_until(api, group, 1, topic=topic)
            handle = found.system_properties.receipt_handle
            assert (await api.change(group, handle, 30, topic)).status.code == Code.OK

    await fail("g", "T", 3)
    await until(lambda: "%DLQ%g" in broker_of(node).metadata.topics)
    await fail("patient", "%DLQ%g", 2)


async def test_a_copy_that_does_not_name_its_topic_is_delivered_until_it_is_a_dead_letter(
    api: Api, node: Node
) -> None:
    """As RocketMQ stores them for another attempt."""
    broker = broker_of(node)
    broker.metadata.auto_create("%RETRY%g_T", 1)
    columns = Columns.of([b"x"], [b"UNIQ_KEY\x01ID"])
    await broker.log.put_and_wait(PutBatch("%RETRY%g_T", 0, columns, 1, Host("127.0.0.1", 1)))
    for _ in range(3):  # retry_times 2
        (found,) = await receive_until(api, "g", 1)
        handle = found.system_properties.receipt_handle
        assert (await api.change("g", handle, 30)).status.code == Code.OK
    await until(lambda: "%DLQ%g" in broker.metadata.topics)


async def test_a_changed_lease_has_a_handle_of_its_own(api: Api) -> None:
    await api.send(message())
    (old,) = (await api.receive("g")).handles
    changed = await api.change("g", old, 30_000)
    assert changed.receipt_handle != old
    reply = await api.ack("g", old, changed.receipt_handle)
    assert reply.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in reply.entries]
    assert codes == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


async def test_an_acknowledgement_after_the_lease_is_refused(api: Api) -> None:
    await api.send(message())
    (handle,) = (await api.receive("g")).handles
    short = (await api.change("g", handle, 30)).receipt_handle
    await asyncio.sleep(0.05)
    assert (await api.ack("g", short)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_tags_are_compared_by_their_text_not_by_their_hash(api: Api) -> None:
    for tag in ("Aa", "BB", "aa", None):  # Aa and BB have one Java hash
        system = {"tag": tag} if tag else {}
        await api.send(message((tag or "none").encode(), **system))
    assert sorted((await api.receive("g", expression="BB || aa")).bodies) == [b"BB", b"aa"]
    # What did not match is done for the group.
    assert (await api.receive("g", expression="*")).code == Code.MESSAGE_NOT_FOUND
    everything = await receive_until(api, "h", 4, expression="")
    assert len(everything) == 4


async def test_sql_filters_by_properties(api: Api) -> None:
    for k in range(5):
        await api.send(message(b"%d" % k, properties={"price": str(k * 10)}, tag="A"))
    await api.send(message(b"none"))
    sql = definition.FilterType.SQL
    received = await api.receive("g", expression="price BETWEEN 15 AND 35 AND TAGS = 'A'", kind=sql)
    assert sorted(received.bodies) == [b"2", b"3"]
    # What did not match is done for the group.
    assert (await api.receive("g", expression="price >= 0", kind=sql)).code == (
        Code.MESSAGE_NOT_FOUND
    )
    for bad in ("", "price >", "price > 'a", "price LIKE 'x'", "a = 1 b = 2", "(" * 200):
        received = await api.receive("h", expression=bad, kind=sql)
        assert received.code == Code.ILLEGAL_FILTER_EXPRESSION


async def test_a_poll_ends_soon_after_the_message_came(api: Api) -> None:
    loop = asyncio.get_running_loop()
    poll = asyncio.ensure_future(api.receive("g", timeout=20))
    await asyncio.sleep(0.2)
    assert not poll.done()
    began = loop.time()
    await api.send(message(b"now"))
    assert (await poll).bodies == [b"now"]
    assert loop.time() - began < 5.0


async def test_of_many_polls_each_message_wakes_one(api: Api) -> None:
    polls = [asyncio.ensure_future(api.receive("g", count=1, timeout=15)) for _ in range(20)]
    await asyncio.sleep(0.3)
    for k in range(20):
        await api.send(message(b"%d" % k))
    found = await asyncio.gather(*polls)
    assert sorted(int(body) for received in found for body in received.bodies) == list(range(20))


async def test_a_client_that_leaves_releases_its_messages(api: Api, node: Node) -> None:
    await api.send(message(b"held"))
    push = Api(node, "push@1")
    received = await push.receive("g", held=True)
    assert received.bodies == [b"held"]
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND
    await push.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
    (found,) = await receive_until(api, "g", 1)
    assert found.system_properties.delivery_attempt == 2
    await push.close()


async def test_a_cancelled_call_leases_no_messages(api: Api) -> None:
    for _ in range(5):
        poll = asyncio.ensure_future(api.receive("g", timeout=10))
        await asyncio.sleep(0.05)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    await api.send(message(b"kept"))
    (found,) = await receive_until(api, "g", 1)
    assert found.body == b"kept"


async def test_a_consumer_can_forward_a_message_to_the_dead_letters(api: Api, node: Node) -> None:
    await api.send(message(b"x"))
    (handle,) = (await api.receive("g")).handles
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource("g"), topic=resource("T"), receipt_handle=handle, message_id="m"
    )
    name = "ForwardMessageToDeadLetterQueue"
    assert (await api.call(name, request)).status.code == Code.OK
    assert (await api.call(name, request)).status.code == Code.OK  # a repeat
    (dead,) = await receive_until(api, "h", 1, topic="%DLQ%g")
    assert dead.body == b"x"


# -- order ---------------------------------------------------------------------------------------


async def test_a_message_group_is_one_queue_and_in_order(api: Api) -> None:
    for k in range(6):
        await api.send(message(b"%d" % k, message_group="one"))
    seen: list[int] = []
    queues = set()
    while len(seen) < 6:
        for queue_id in (0, 1):
            received = await api.receive("fifo", count=2, queue_id=queue_id, poll_ms=200)
            if not received.messages:
                continue
            queues.add(received.messages[0].system_properties.queue_id)
            assert received.messages[0].system_properties.message_group == "one"
            blocked = await api.receive("fifo", count=2, queue_id=queue_id, poll_ms=200)
            assert blocked.code == Code.MESSAGE_NOT_FOUND  # until these are done
            seen += [int(body) for body in received.bodies]
            assert (await api.ack("fifo", *received.handles)).status.code == Code.OK
    assert seen == list(range(6))
    assert len(queues) == 1


async def test_an_orderly_group_has_a_message_again_in_its_place(api: Api) -> None:
    for k in range(4):
        await api.send(message(b"%d" % k, message_group="one"))
    received = Received()
    queue_id = 0
    while not received.messages:
        queue_id = 1 - queue_id
        received = await api.receive("fifo", count=3, queue_id=queue_id)
    assert received.bodies == [b"0", b"1", b"2"]
    # The middle one is done, the others are not.
    await api.ack("fifo", received.handles[1])
    for at in (0, 2):
        await api.change("fifo", received.handles[at], 30)
    await asyncio.sleep(0.2)
    again = await api.receive("fifo", count=3, queue_id=queue_id)
    assert again.bodies[0] == b"0"
    assert attempts(again)[0] == 2
    assert (await api.ack("fifo", *again.handles)).status.code == Code.OK
    left = await receive_until(api, "fifo", 2, count=3, queue_id=queue_id)
    assert [made.body for made in left] == [b"2", b"3"]


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_group_that_reads_already_goes_by_its_new_order(
    api: Api, node: Node, orderly: bool
) -> None:
    group = "z" if orderly else "fifo"
    await api.send(*(message(b"%d" % k, message_group="one") for k in range(4)))
    (first,) = (await api.receive(group, count=1)).handles
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.put_group(group, orderly=orderly)
    if orderly:
        assert not (await api.receive(group, count=1)).bodies  # the first one is out
    assert (await api.ack(group, first)).status.code == Code.OK
    assert (await api.receive(group, count=1)).bodies == [b"1"]
    assert (await api.receive(group, count=1)).bodies == ([] if orderly else [b"2"])


async def test_a_request_that_is_repeated_gets_the_same_messages(api: Api) -> None:
    await api.send(message(b"1", message_group="one"), message(b"2", message_group="one"))
    received = Received()
    queue_id = 0
    while not received.messages:
        queue_id = 1 - queue_id
        received = await api.receive("fifo", queue_id=queue_id, attempt_id="A")
    again = await api.receive("fifo", queue_id=queue_id, attempt_id="A")
    assert again.bodies == received.bodies == [b"1", b"2"]
    assert attempts(again) == [1, 1]
    other = await api.receive("fifo", queue_id=queue_id, attempt_id="B")
    assert other.code == Code.MESSAGE_NOT_FOUND
    assert (await api.ack("fifo", *again.handles)).status.code == Code.OK


async def test_higher_priorities_come_first_and_retries_after_all_in_their_order(
    api: Api, node: Node
) -> None:
    """As RocketMQ does since 5.4: a message's queue is its priority, and so is its copy's."""
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("P", 4, message_type="PRIORITY")
    for priority in (1, 0, 9, 2, 1):  # as the last queue, for all beyond
        await api.send(message(b"%d" % priority, topic="P", priority=priority))
    first = await api.receive("g", topic="P")
    assert first.bodies == [b"9", b"2", b"1", b"1", b"0"]
    for handle in first.handles:
        assert (await api.change("g", handle, 0, "P")).status.code == Code.OK
    copies = retry_topic("g", "P")
    store = broker_of(node).store
    await until(lambda: sum(store.queue_range(copies, k)[1] for k in range(4)) == 5)
    await api.send(message(b"0", topic="P", priority=0))
    found = [await api.receive("g", topic="P", count=1, queue_id=0) for _ in range(6)]
    bodies = [made.body for one in found for made in one.messages]
    assert bodies == [b"0", b"9", b"2", b"1", b"1", b"0"]
    assert attempts(found[1]) == [2]


async def test_a_poll_waits_for_copies_of_every_priority(api: Api, node: Node) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("P", 4, message_type="PRIORITY")
    await api.send(message(b"x", topic="P", priority=2))
    (handle,) = (await api.receive("g", topic="P")).handles
    waits = asyncio.create_task(api.receive("g", topic="P", timeout=20))
    await until(lambda: broker_of(node).waiting_calls.count > 0)
    await api.change("g", handle, 0, "P")
    assert attempts(await waits) == [2]


@pytest.mark.parametrize("suspend", [True, False])
async def test_a_delivery_that_is_suspended_is_no_attempt(api: Api, suspend: bool) -> None:
    await api.send(message(b"x"))
    (handle,) = (await api.receive("g")).handles
    assert (await api.change("g", handle, 0, suspend=suspend)).status.code == Code.OK
    again = await receive_until(api, "g", 1)
    assert again[0].system_properties.delivery_attempt == (1 if suspend else 2)


# -- sending once --------------------------------------------------------------------------------


async def test_a_message_that_is_sent_again_is_stored_once(api: Api, node: Node) -> None:
    one = message(b"x", message_id="01EF")
    replies = await asyncio.gather(*(api.send(one) for _ in range(5)))
    places = {(entry.status.code, entry.offset) for reply in replies for entry in reply.entries}
    assert places == {(Code.OK, 0)}
    assert len(await receive_until(api, "g", 1)) == 1
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_message_that_is_sent_again_after_a_restart_is_stored_once(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "d")
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    api = Api(node)
    one = message(b"x", message_id="01EF")
    await api.send(message(b"before"))
    first = (await api.send(one)).entries[0]
    await api.close()
    await node.stop()
    api = Api(await start_node(tmp_path / "d"))
    again = (await api.send(one)).entries[0]
    assert (again.status.code, again.offset) == (Code.OK, first.offset) == (Code.OK, 1)


async def test_acknowledgements_survive_a_restart_and_the_other_messages_are_redelivered(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "d")
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    api = Api(node)
    for k in range(10):
        await api.send(message(b"%d" % k))
    received = await api.receive("g")
    done = [handle for k, handle in enumerate(received.handles) if k not in (2, 7)]
    assert (await api.ack("g", *done)).status.code == Code.OK
    tables = broker_of(node).metadata.tables
    await until(lambda: tables.committed("g", "T", 0) == 2)
    await until(lambda: tables.acknowledged("g", "T", 0) == [[3, 7], [8, 10]])
    await api.close()
    await node.stop()
    node = await start_node(tmp_path / "d")
    api = Api(node)
    found = await receive_until(api, "g", 2)
    assert [made.body for made in found] == [b"2", b"7"]
    handles = [made.system_properties.receipt_handle for made in found]
    assert (await api.ack("g", received.handles[2])).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await api.ack("g", *handles)).status.code == Code.OK
    tables = broker_of(node).metadata.tables
    await until(lambda: tables.committed("g", "T", 0) == 10)
    await until(lambda: tables.acknowledged("g", "T", 0) == [])


async def test_reset_offsets_apply_to_pop_too(api: Api, node: Node) -> None:
    for k in range(3):
        await api.send(message(b"%d" % k))
    handles = [made.system_properties.receipt_handle for made in await receive_until(api, "g", 3)]
    await api.ack("g", *handles)
    tables = broker_of(node).metadata.tables
    await until(lambda: sum(tables.committed("g", "T", queue) for queue in (0, 1)) == 3)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.reset_group("g", "T", duolog.Start.EARLIEST)
    assert len(await receive_until(api, "g", 3)) == 3


# -- clients -------------------------------------------------------------------------------------


async def test_a_node_ends_when_its_client_watch_fails(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(clients: Clients) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(Clients, "run", broken)
    broker = broker_of(await start_node())
    async with asyncio.timeout(10):
        await broker.failed.wait()
    assert "a fault" in broker.store.fence_reason


async def test_namespaces_keep_topics_and_groups_apart(api: Api, node: Node) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("ns%T", 1)
    await api.send(message(b"inside", namespace="ns"))
    await api.send(message(b"outside"))
    route = await api.route("T", "ns")
    assert route.message_queues[0].topic.resource_namespace == "ns"
    assert len(route.message_queues) == 1
    inside = await api.receive("g", namespace="ns")
    assert inside.bodies == [b"inside"]
    assert inside.messages[0].topic.resource_namespace == "ns"
    reply = await api.ack("g", *inside.handles, namespace="ns")
    assert reply.status.code == Code.OK
    assert (await api.receive("g")).bodies == [b"outside"]


async def test_routes_and_assignments_name_an_address_the_client_reaches(api: Api) -> None:
    port = api.node.port
    route = await api.route("T")
    assert [queue.id for queue in route.message_queues] == [0, 1]
    for queue in route.message_queues:
        (address,) = queue.broker.endpoints.addresses
        assert (address.host, address.port) == ("127.0.0.1", port)
        assert (queue.broker.id, queue.broker.name) == (0, "broker-a")
        assert queue.permission == definition.Permission.READ_WRITE
    asked = definition.Endpoints(scheme=definition.AddressScheme.DOMAIN_NAME)
    asked.addresses.add(host="outside.example", port=9)
    request = service.QueryRouteRequest(topic=resource("T"), endpoints=asked)
    found = await api.call("QueryRoute", request)
    assert found.message_queues[0].broker.endpoints == asked
    for group, ids in (("g", [-1]), ("fifo", [0, 1])):
        asking = service.QueryAssignmentRequest(topic=resource("T"), group=resource(group))
        reply = await api.call("QueryAssignment", asking)
        assert [row.message_queue.id for row in reply.assignments] == ids


async def test_settings_are_answered_with_the_effective_values(api: Api, node: Node) -> None:
    async def ask(settings: Any) -> Any:
        asked = asyncio.Event()

        async def requests() -> Any:
            yield service.TelemetryCommand(settings=settings)
            await asked.wait()

        call = api.stub.Telemetry(requests(), metadata=api.metadata, timeout=5)
        async for reply in call:
            asked.set()
            return reply

    publishing = definition.Publishing(topics=[resource("T")])
    reply = await ask(definition.Settings(publishing=publishing))
    assert reply.status.code == Code.OK
    assert reply.settings.publishing.max_body_size == 65536
    assert reply.settings.publishing.validate_message_type
    assert reply.settings.backoff_policy.max_attempts == 3
    assert reply.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    client = known(known(node.rocketmq).clients.find("test@1"))
    assert client.topics == {"T"}
    for group, fifo in (("g", False), ("fifo", True)):
        subscription = definition.Subscription(group=resource(group))
        reply = await ask(definition.Settings(subscription=subscription))
        settings = reply.settings
        assert settings.subscription.fifo is fifo
        assert settings.subscription.receive_batch_size == 32
        assert settings.subscription.long_polling_timeout.seconds == 20
        assert settings.backoff_policy.max_attempts == 3
        steps = settings.backoff_policy.customized_backoff.next
        assert [step.seconds for step in steps][:4] == [1, 5, 10, 30]


async def test_every_heartbeat_is_answered(api: Api) -> None:
    request = service.HeartbeatRequest(
        group=resource("g"), client_type=definition.ClientType.SIMPLE_CONSUMER
    )
    assert (await api.call("Heartbeat", request)).status.code == Code.OK


async def test_a_client_that_hangs_up_and_sends_again_stores_once(api: Api, node: Node) -> None:
    broker = broker_of(node)
    settle, late = broker.log.settle, asyncio.Event()

    def slow(end_offset: int, no_wait: bool = False) -> Any:
        async def wait() -> PutMessageStatus:
            await late.wait()
            return PutMessageStatus.PUT_OK

        settle(PhyOffset(end_offset), no_wait)
        return asyncio.ensure_future(wait())

    broker.log.settle = slow  # type: ignore[method-assign]
    end = broker.store.log.max_offset
    one = service.SendMessageRequest(messages=[message(b"x", message_id="01FF")])
    first = asyncio.ensure_future(api.call("SendMessage", one, timeout=60))
    await until(lambda: broker.store.log.max_offset > end)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.ensure_future(api.call("SendMessage", one))
    await asyncio.sleep(0.1)
    broker.log.settle = settle  # type: ignore[method-assign]
    late.set()
    (entry,) = (await again).entries
    assert (entry.status.code, entry.offset) == (Code.OK, 0)
    assert (await api.receive("g", timeout=20)).bodies == [b"x"]
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_groups_have_a_limit(start_node: StartNode) -> None:
    node = await start_node(limits={"groups_max": 2})
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    api = Api(node)
    for group, code in (("a", Code.MESSAGE_NOT_FOUND), ("b", Code.MESSAGE_NOT_FOUND)):
        assert (await api.receive(group)).code == code
    assert (await api.receive("c")).code == Code.TOO_MANY_REQUESTS


async def test_the_state_of_a_message_is_shown_for_every_group(api: Api, node: Node) -> None:
    entry = (await api.send(message(b"x", message_group="one"))).entries[0]
    (found,) = (await api.receive("g")).messages
    queue_id = found.system_properties.queue_id
    (held,) = (await api.receive("h")).handles
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:

        async def has(**states: str) -> bool:
            found = await client.admin.track("T", queue_id, entry.offset)
            return states.items() <= found.items() and found.keys() == {"g", "h"}

        await api.ack("g", found.system_properties.receipt_handle)
        await until(lambda: has(g="CONSUMED", h="IN_FLIGHT"))
        for state in ("RETRY", "RETRY", "DEAD_LETTER"):
            await api.change("h", held, 20)
            await until(lambda state=state: has(h=state))  # type: ignore[misc]
            if state == "RETRY":
                (again,) = await receive_until(api, "h", 1)
                held = again.system_properties.receipt_handle
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.track("T", queue_id, 99)
        with pytest.raises(duolog.BadRequest):
            await client.admin.track("T", 99, 0)


async def test_a_filter_that_rarely_matches_blocks_no_other_consumer(api: Api, node: Node) -> None:
    client = duolog.Client(f"127.0.0.1:{node.port}", timeout=10)
    async with client, client.producer() as producer:
        await producer.send_batch("T", [b"x"] * 9000, queue_id=0)
        await producer.send("T", b"last", properties={"a": "1"}, queue_id=0)
    sql = definition.FilterType.SQL
    turns, over = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal turns
        while not over.is_set():
            await asyncio.sleep(0)
            turns += 1

    watching = asyncio.ensure_future(watch())
    looks: list[int] = []  # turns of the loop before each
    pop = broker_of(node).pop
    original = pop.pop

    def counted(request: Any, mono_ms: MonoMs) -> Any:
        looks.append(turns)
        return original(request, mono_ms)

    pop.pop = counted  # type: ignore[method-assign]
    received = await api.receive("g", expression="a = 1", kind=sql, timeout=10)
    over.set()
    await watching
    assert received.bodies == [b"last"]
    assert len(set(looks)) >= 9000 // SCAN_MAX, "others run between them"


async def test_an_acknowledgement_that_an_earlier_mastership_did_not_record_is_repeated(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is delivered again: acknowledging it again is answered OK."""

    async def unrecorded() -> None:
        """The mastership ends before."""

    monkeypatch.setattr(broker_of(node).pop, "_save", unrecorded)
    await api.send(message(b"x"))
    received = await api.receive("g")
    for _ in range(2):
        done = await api.ack("g", *received.handles)
        assert done.entries[0].status.code == Code.OK
    broker_of(node).pop.role_changed()
    assert (await api.receive("g")).bodies == [b"x"]
    stale = await api.ack("g", *received.handles)
    assert stale.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_reset_holds_before_progress_was_recorded(api: Api) -> None:
    await api.send(message(b"x"))
    async with duolog.Client(f"127.0.0.1:{api.node.port}") as client:
        for _ in range(5):
            received = await api.receive("g")
            assert received.bodies == [b"x"]
            await api.ack("g", *received.handles)
            await client.admin.reset_group("g", "T")
        received = await api.receive("g")
        await client.admin.reset_group("g", "T")
        assert (await api.receive("g")).bodies == [b"x"]  # what was out is given up
        stale = await api.ack("g", *received.handles)
        assert stale.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMER_DELIVER_MS", "9" * 30),
        ("TIMER_DELIVER_MS", "253402300800000"),
        ("TIMER_DELIVER_MS", "\u0663"),
        ("_SYS_MSG_PRIORITY_", "high"),
        ("_SYS_MSG_PRIORITY_", "4294967296"),
    ],
)
async def test_malformed_reserved_properties_do_not_block_a_queue(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr("duolog._columns.RESERVED", frozenset())
    async with (
        duolog.Client(f"127.0.0.1:{node.port}") as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"odd", properties={name: value})
    assert (await api.receive("g", timeout=20)).bodies == [b"odd"]


async def test_of_topics_and_groups_that_are_deleted_nothing_is_left(api: Api, node: Node) -> None:
    """However often: progress that is not recorded yet is none of a deleted group either."""
    broker = broker_of(node)
    kept = (len(broker.pop._queues), len(broker.pop._lines))
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        for deletes in ("group", "topic", "group"):
            await client.admin.create_topic("U", 2)
            await api.send(*(message(topic="U") for _ in range(4)))
            received = [one for one in await receive_until(api, "passing", 4, topic="U")]
            handles = [one.system_properties.receipt_handle for one in received]
            await api.ack("passing", *handles, topic="U")
            if deletes == "group":
                await client.admin.delete_group("passing")
            else:
                await client.admin.delete_topic("U")
            assert (len(broker.pop._queues), len(broker.pop._lines)) == kept
            assert broker.pop.validate() == ""
        tables = broker.metadata.tables
        assert [key for key in tables.offsets if key[1] == "passing"] == []


async def test_of_a_topic_whose_files_are_still_to_be_removed_no_progress_is_left(
    api: Api, node: Node
) -> None:
    """Also where its caller has given up meanwhile."""
    broker = broker_of(node)
    kept = len(broker.pop._queues)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 1)
    await api.send(message(topic="U"))
    await receive_until(api, "passing", 1, topic="U")
    assert len(broker.pop._queues) > kept
    async with broker.log.file_work.changes:  # as while queues are flushed
        deleting = asyncio.create_task(broker.metadata.delete_topic("U"))
        await until(lambda: "U" not in broker.metadata.topics)
        deleting.cancel()
        await asyncio.wait([deleting])
        assert len(broker.pop._queues) == kept


@pytest.mark.parametrize("deletes", ["topic", "group"])
async def test_a_deletion_whose_caller_gave_up_before_it_was_applied_leaves_no_progress(
    api: Api, node: Node, deletes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, pop = broker_of(node).metadata, broker_of(node).pop
    kept = len(pop._queues)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 1)
    await api.send(message(topic="U"))
    await receive_until(api, "passing", 1, topic="U")
    delete = metadata.delete_topic("U") if deletes == "topic" else metadata.delete_group("passing")
    deleting = asyncio.create_task(delete)
    with monkeypatch.context() as patched:  # as while a slave has not confirmed its change
        patched.setattr(metadata, "catch_up", lambda: None)
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.wait([deleting])
        assert "U" in metadata.topics
        assert metadata.has_group("passing")
        if deletes == "group":
            with pytest.raises(duolog.Busy, match="is being deleted"):
                await metadata.commit_popped("passing", {}, {})
    metadata.catch_up()
    assert len(pop._queues) == kept
    assert pop.validate() == ""


@pytest.mark.parametrize("deletes", ["topic", "group"])
async def test_a_poll_that_waits_while_its_topic_or_group_is_deleted_leaves_nothing(
    api: Api, node: Node, deletes: str
) -> None:
    broker = broker_of(node)
    lines = broker.pop._lines
    kept = set(lines)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 2)
        poll = asyncio.create_task(api.receive("passing", "U", poll_ms=20_000))
        await until(lambda: any(line.polls for line in lines.values()))
        if deletes == "group":
            await client.admin.delete_group("passing")
        else:
            await client.admin.delete_topic("U")
    poll.cancel()
    await until(lambda: set(lines) == kept)
    assert broker.pop.validate() == ""


async def test_progress_that_is_recorded_while_its_group_is_deleted_is_not_there_afterwards(
    api: Api, node: Node
) -> None:
    broker = broker_of(node)
    await api.send(message())
    (received,) = await receive_until(api, "passing", 1)
    await api.ack("passing", received.system_properties.receipt_handle)
    deleting = asyncio.create_task(broker.metadata.delete_group("passing"))
    await asyncio.sleep(0)  # its change is stored, and not applied
    await broker.pop._save()
    await deleting
    await broker.metadata.all_applied()
    assert [key for key in broker.metadata.tables.offsets if key[1] == "passing"] == []
    assert broker.pop.validate() == ""


async def test_progress_is_refused_until_the_last_of_several_deletions_of_its_group_is_over(
    node: Node,
) -> None:
    metadata = broker_of(node).metadata
    deleting = [asyncio.create_task(metadata.delete_group("passing")) for _ in range(2)]
    await asyncio.sleep(0)  # their changes are stored, and not applied
    with pytest.raises(duolog.Busy, match="is being deleted"):
        await metadata.commit_popped("passing", {}, {})
    with pytest.raises(duolog.Busy, match="is being deleted"):
        await metadata.commit("passing", {})
    with pytest.raises(duolog.Busy, match="is being deleted"):
        await metadata.begin("passing", {})
    await asyncio.gather(*deleting)
    await metadata.commit_popped("passing", {}, {})
