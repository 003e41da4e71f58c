"""Programs that fork while they have an open client, as gunicorn and multiprocessing do."""

import subprocess
import sys
from collections.abc import Iterator

import duolog.sync
import pytest
from duolog._runtime import TRANSPORT_VARIABLE

from tests.process.forks import environment
from tests.process.support import NodeProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
PROGRAM_SECONDS = 60.0
PROGRAM = """
import asyncio, gc, multiprocessing, os, signal, sys, threading
import duolog, duolog.sync

endpoint, topic = sys.argv[1:]
CHILD_SECONDS = 20

def send(word):
    with duolog.sync.Client(endpoint) as client, client.producer() as producer:
        producer.post(topic, word.encode())
        producer.flush()
        producer.send(topic, word.encode())
    return word

async def send_async(word):
    async with duolog.Client(endpoint) as client, client.producer() as producer:
        await producer.send(topic, word.encode(), key="k")

def forked(work):
    child = os.fork()
    if child == 0:
        status = 3
        try:
            signal.alarm(CHILD_SECONDS)
            work()
            status = 0
        finally:
            signal.alarm(0)
            if status:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status

def refused(work):
    try:
        work()
    except duolog.WrongProcess as error:
        assert "spawn" in str(error), error
        return
    raise AssertionError(f"{work} was not refused")

def refused_async(work):
    refused(lambda: asyncio.run(work()))
"""
FROM_A_USED_CLIENT = """
def parents(client, producer, consumer, posted):
    for use in (
        lambda: producer.send(topic, b"x"),
        lambda: producer.post(topic, b"x"),
        lambda: producer.post(topic, b"x", key="k"),
        lambda: producer.send_batch(topic, [b"x"]),
        producer.flush,
        lingering.flush,
        posted.receipt,
        lambda: consumer.get(1),
        lambda: consumer.get_batch(1),
        lambda: consumer.commit(),
        lambda: client.admin.topics(),
        lambda: client.pull(topic, 0, 0),
        client.producer,
        lambda: client.consumer("h", topic),
    ):
        refused(use)
    consumer.close(); producer.close(); client.close()
    gc.collect()

with duolog.sync.Client(endpoint) as client:
    producer = client.producer()
    producer.send(topic, b"parent")
    lingering = client.producer(linger=1)
    with client.consumer("g", topic) as consumer:
        assert consumer.get(10).body == b"parent"
        posted = lingering.post(topic, b"posted")
        forked(lambda: parents(client, producer, consumer, posted))
        forked(lambda: send("child"))
        forked(lambda: asyncio.run(send_async("async")))
        forked(lambda: forked(lambda: send("grandchild")))
        errors = []
        thread = threading.Thread(target=lambda: forked(lambda: send("thread")))
        threading.excepthook = lambda told: errors.append(told.exc_value)
        thread.start(); thread.join()
        assert not errors, errors
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map_async(send, ["pool1", "pool2"]).get(CHILD_SECONDS)
        assert posted.receipt(10)
        producer.send(topic, b"last")
        found = []
        while (message := consumer.get(10)) is not None:
            found.append(message.body.decode())
            if message.body == b"last":
                break
        print(*sorted(found))
"""
ASYNC = """
async def parents(client, producer, consumer, posted):
    for use in (
        lambda: producer.send(topic, b"x"),
        lambda: producer.send(topic, b"x", key="k"),
        lambda: producer.send_batch(topic, [b"x"]),
        lambda: producer.flush(),
        lambda: posted._wait(),
        lambda: consumer.get(1),
        lambda: consumer.get_batch(1),
        lambda: consumer.__anext__(),
        lambda: consumer.commit(),
        lambda: client.admin.topics(),
        lambda: client.access.who_am_i(),
        lambda: client.transactions("t").start(),
        lambda: client.pull(topic, 0, 0),
    ):
        try:
            await asyncio.wait_for(use(), 5)
        except duolog.WrongProcess as error:
            assert "spawn" in str(error), error
        else:
            raise AssertionError(f"not refused: {use.__code__.co_names}")
    await consumer.close(); await producer.close(); await client.close()

async def main():
    async with duolog.Client(endpoint) as client, client.producer() as producer:
        await producer.send(topic, b"parent")
        lingering = client.producer(linger=1)
        async with client.consumer("g", topic) as consumer:
            assert (await consumer.get(10)).body == b"parent"
            posted = lingering.post(topic, b"posted")
            child = os.fork()
            if child == 0:
                asyncio._set_running_loop(None)
                signal.alarm(CHILD_SECONDS)
                status = 3
                try:
                    asyncio.run(parents(client, producer, consumer, posted))
                    send("child")
                    status = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(status)
            status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status[1] == 0, status
            await posted
            await producer.send(topic, b"last")
            found = []
            async for message in consumer:
                found.append(message.body.decode())
                if message.body == b"last":
                    break
            print(*sorted(found))

asyncio.run(main())
"""
OVER_GRPC = """
import duolog._forks
duolog._forks.SHUTDOWN_SECONDS = CHILD_SECONDS  # the machine may be busy

with duolog.sync.Client(endpoint) as client:
    producer = client.producer()
    producer.send(topic, b"parent")
    posted = client.producer(linger=1).post(topic, b"posted")
    forked(lambda: refused(lambda: producer.send(topic, b"x")))
    forked(lambda: refused(lambda: send("child")))
    forked(lambda: refused_async(lambda: send_async("child")))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        refused(lambda: pool.map_async(send, ["x"]).get(CHILD_SECONDS))

    def dropped():
        global client, producer, posted
        client = producer = posted = None
        gc.collect()

    forked(dropped)
    assert posted.receipt(10)
forked(lambda: send("after the parent's end"))
forked(lambda: asyncio.run(send_async("async")))
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(*pool.map_async(send, ["pool"]).get(CHILD_SECONDS))
"""


PROGRAMS = {
    "frames": ("frames", FROM_A_USED_CLIENT),
    "async": ("frames", ASYNC),
    "grpc": ("grpc", OVER_GRPC),
}


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory,
) -> "Iterator[dict[str, subprocess.Popen[str]]]":
    """The programs, side by side: most of their time is that of imports."""
    node = NodeProcess(tmp_path_factory.mktemp("forks") / "data")
    node.start()
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        for name in PROGRAMS:
            client.admin.create_topic(name, queues=1)
    inherited = {k: v for k, v in environment().items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    begun = {
        name: subprocess.Popen(
            [sys.executable, "-c", PROGRAM + text, node.endpoint, name],
            env={**inherited, TRANSPORT_VARIABLE: transport},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, (transport, text) in PROGRAMS.items()
    }
    yield begun
    for program in begun.values():
        program.kill()
        program.communicate()
    node.stop()


def told(program: "subprocess.Popen[str]") -> list[str]:
    """What a program prints, as words; it has to end well."""
    output, _ = program.communicate(timeout=PROGRAM_SECONDS)
    assert program.returncode == 0, output
    return output.split()


def test_children_of_a_used_client_send_with_clients_of_their_own(
    programs: "dict[str, subprocess.Popen[str]]",
) -> None:
    twice = ["child", "grandchild", "pool1", "pool2", "thread"]  # posted, and sent
    once = ["async", "last", "posted"]  # the last two by the parent
    assert told(programs["frames"]) == sorted([*twice, *twice, *once])


def test_children_of_a_running_loop_use_clients_of_their_own(
    programs: "dict[str, subprocess.Popen[str]]",
) -> None:
    assert told(programs["async"]) == ["child", "child", "last", "posted"]


def test_over_grpc_a_child_is_refused_until_its_parents_client_is_closed(
    programs: "dict[str, subprocess.Popen[str]]",
) -> None:
    assert told(programs["grpc"]) == ["pool"]
