"""Messages posted to a node: each is stored once, in order, however it was posted."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duolog
import duolog.sync
import pytest
from duolog._connection import Connection

from duolog_server.serve.server import Node


async def bodies(client: duolog.Client, queue_id: int) -> list[bytes]:
    """All that a queue has."""
    found: list[bytes] = []
    while (batch := await client.pull("T", queue_id, len(found))).count:
        found += [bytes(message.body) for message in batch]
    return found


async def test_posts_are_stored_once_in_the_order_of_their_key(client: duolog.Client) -> None:
    handles: list[tuple[bytes, duolog.Posted]] = []

    async def post(producer: duolog.Producer, name: str) -> None:
        for number in range(3000):
            body = f"{name} {number}".encode()
            key = name if number % 3 else None
            handles.append((body, producer.post("T", body, key=key, tags=name)))
            if not number % 100:
                await asyncio.sleep(0)

    async with client.producer() as producer:
        await asyncio.gather(*(post(producer, name) for name in "abcd"))
    queues = [await bodies(client, queue_id) for queue_id in range(4)]
    assert sorted(body for queue in queues for body in queue) == sorted(body for body, _ in handles)
    for body, handle in handles:
        receipt = await handle
        assert queues[receipt.queue_id][receipt.queue_offset] == body
    for name in "abcd":
        of_key = [
            (queue_id, int(body.split()[1]))
            for queue_id, queue in enumerate(queues)
            for body in queue
            if body.startswith(name.encode()) and int(body.split()[1]) % 3
        ]
        assert len({queue_id for queue_id, _ in of_key}) == 1
        assert of_key == sorted(of_key)
    found = await client.admin.find("T", key="c")
    assert {message.properties["TAGS"] for message in found} == {"c"}


async def test_flush_reports_that_the_node_went_away(client: duolog.Client, node: Node) -> None:
    producer = client.producer(timeout=1)
    await producer.send("T", b"before", timeout=20)
    await node.stop()
    handles = [producer.post("T", b"x", queue_id=1) for _ in range(3)]
    with pytest.raises((duolog.Retryable, duolog.ResultUnknown)):
        await producer.flush()
    assert all(handle.done and handle.error() is not None for handle in handles)


def post_from_threads(endpoint: str) -> list[list[duolog.sync.Posted]]:
    """Three threads post to one producer; what becomes of each message is known at the end."""
    with duolog.sync.Client(endpoint, timeout=20) as client:
        told: list[duolog.sync.Posted] = []
        handles: list[list[duolog.sync.Posted]] = [[], [], []]

        def post(producer: duolog.sync.Producer, name: int) -> None:
            for number in range(2000):
                while True:
                    try:
                        posted = producer.post(
                            "T", b"%d %d" % (name, number), key=str(name), on_done=told.append
                        )
                    except duolog.BufferFull:
                        producer.flush()
                    else:
                        handles[name].append(posted)
                        break

        with client.producer(buffer_bytes=50_000) as producer:
            threads = [threading.Thread(target=post, args=(producer, name)) for name in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            handles[0][-1].receipt(timeout=20)
        assert len(told) == 6000
        with pytest.raises(duolog.BadRequest, match="closed"):
            producer.post("T", b"x")
        return handles


async def test_threads_post_to_a_synchronous_producer(client: duolog.Client, node: Node) -> None:
    handles = await asyncio.to_thread(post_from_threads, f"127.0.0.1:{node.port}")
    queues = [await bodies(client, queue_id) for queue_id in range(4)]
    for name, posted in enumerate(handles):
        assert [handle.error() for handle in posted] == [None] * 2000
        places = [(one.queue_id, one.queue_offset) for one in (p.receipt() for p in posted)]
        assert places == sorted(places)
        found = [queues[queue_id][offset] for queue_id, offset in places]
        assert found == [b"%d %d" % (name, number) for number in range(2000)]
    assert sum(map(len, queues)) == 6000


async def test_waiting_for_a_receipt_times_out(client: duolog.Client, node: Node) -> None:
    def post() -> None:
        endpoint = f"127.0.0.1:{node.port}"
        with (
            duolog.sync.Client(endpoint, timeout=20) as made,
            made.producer(linger=10) as producer,
        ):
            posted = producer.post("T", b"x")
            assert not posted.done
            with pytest.raises(TimeoutError):
                posted.receipt(timeout=0.01)
            producer.flush()
            assert posted.receipt(timeout=20).status == "PUT_OK"

    await asyncio.to_thread(post)


async def test_a_callback_that_would_block_the_clients_thread_gets_an_error(
    client: duolog.Client, node: Node
) -> None:
    def post() -> None:
        refused: list[BaseException] = []
        with (
            duolog.sync.Client(f"127.0.0.1:{node.port}", timeout=20) as made,
            made.producer() as producer,
        ):

            def waits(posted: duolog.sync.Posted) -> None:
                posted.receipt()
                again.append(producer.post("T", b"again"))
                for wait in (producer.flush, again[0].receipt, lambda: producer.send("T", b"x")):
                    try:
                        wait()
                    except RuntimeError as error:
                        refused.append(error)

            again: list[duolog.sync.Posted] = []
            producer.post("T", b"x", on_done=waits).receipt(timeout=20)
            producer.flush()
            assert again[0].receipt(timeout=20).status == "PUT_OK"
        assert len(refused) == 3

    async with asyncio.timeout(60):
        await asyncio.to_thread(post)


async def test_flushes_while_threads_post(client: duolog.Client, node: Node) -> None:
    def post(producer: duolog.sync.Producer, name: int) -> None:
        for number in range(1500):
            producer.post("T", b"x", key=str(number % 50), tags=str(name))
            if not number % 30:
                producer.flush()

    def run() -> None:
        with (
            duolog.sync.Client(f"127.0.0.1:{node.port}", timeout=20) as made,
            made.producer() as producer,
            ThreadPoolExecutor() as threads,
        ):
            for done in [threads.submit(post, producer, name) for name in range(4)]:
                done.result()

    await asyncio.to_thread(run)
    assert sum([len(await bodies(client, queue_id)) for queue_id in range(4)]) == 6000


async def test_a_refused_post_fails_alone(client: duolog.Client, node: Node) -> None:
    async with client.producer() as producer:
        good = [producer.post("T", b"%d" % k, queue_id=0) for k in range(20)]
        large = producer.post("T", b"x", queue_id=0, properties={"p": "x" * 40_000})
        good += [producer.post("T", b"%d" % k, queue_id=0) for k in range(20, 40)]
        gone = producer.post("nowhere", b"x", key="k")
        with pytest.raises(duolog.MessageTooLarge):
            await large
        with pytest.raises(duolog.UnknownTopic):
            await gone
    assert [handle.receipt().queue_offset for handle in good] == list(range(40))
    assert await bodies(client, 0) == [b"%d" % k for k in range(40)]


async def test_a_message_that_fits_no_request_is_refused_alone_and_at_once(
    client: duolog.Client, node: Node
) -> None:
    async with client.producer(timeout=20, buffer_bytes=1 << 30) as producer:
        await producer.send("T", b"0", queue_id=0)
        async with asyncio.timeout(60):
            good = [producer.post("T", b"1", queue_id=0)]
            large = producer.post("T", bytes(65 << 20), queue_id=0)
            good += [producer.post("T", b"%d" % k, queue_id=0) for k in range(2, 10)]
            with pytest.raises(duolog.MessageTooLarge):
                await large
            with pytest.raises(duolog.MessageTooLarge):
                await producer.send("T", bytes(65 << 20))
            receipts = [await one for one in good]
    assert [one.queue_offset for one in receipts] == list(range(1, 10))
    assert await bodies(client, 0) == [b"%d" % k for k in range(10)]


async def test_posts_past_their_deadline_are_not_sent(client: duolog.Client, node: Node) -> None:
    async with client.producer() as producer:
        await producer.send("T", b"0", queue_id=0)
        for seconds in (0, -1.0):
            with pytest.raises(duolog.Timeout):
                await producer.send("T", b"x", timeout=seconds)
            with pytest.raises(duolog.Timeout):
                await producer.send_batch("T", [b"x"], timeout=seconds)
        with pytest.raises(duolog.Timeout):
            await producer.post("T", b"x", timeout=-1)
    assert [len(await bodies(client, queue_id)) for queue_id in range(4)] == [1, 0, 0, 0]


async def test_a_send_that_is_not_answered_in_time_says_by_whom(
    client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await producer.send("T", b"x")

    async def hang(connection: Connection, request: Any, body: Any, until: float) -> None:
        async with asyncio.timeout_at(until):
            await asyncio.Event().wait()

    monkeypatch.setattr(Connection, "append", hang)
    with pytest.raises(
        duolog.DuologError, match=r"not sent within 0.[01][0-9]* s \(127.0.0.1:\d+ did not answer\)"
    ):
        await producer.send("T", b"y", timeout=0.1)
