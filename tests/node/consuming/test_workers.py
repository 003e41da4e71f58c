"""Workers of a consumer group with a node: the programs of the documentation, and retries."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path

import duolog
import duolog.sync
import pytest

from tests.documented import ROOT, blocks
from tests.nodefixtures import StartNode
from tests.process.support import NodeProcess
from tests.until import WAIT_SECONDS, wait_until

# Jobs in the background, as this one may be, are started to ignore it.
HEEDING = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
PAGE = ROOT / "docs" / "consuming.md"


def programs() -> list[str]:
    """Those of the section on workers: an asynchronous one, and one in threads."""
    return [block.text for block in blocks(PAGE, "python") if "consumer.run(" in block.text]


@contextmanager
def running(program: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", HEEDING + program], stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_the_workers_of_the_documentation_share_messages_and_end_at_a_signal(
    tmp_path: Path,
) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        with duolog.sync.Client(node.endpoint) as client, ExitStack() as workers:
            client.admin.create_topic("orders", 4)
            outputs = [tmp_path / f"worker-{n}" for n in range(2)]
            children = [
                workers.enter_context(
                    running(program.replace("127.0.0.1:8081", node.endpoint), output)
                )
                for program, output in zip(programs(), outputs, strict=True)
            ]

            def bodies() -> list[str]:  # lines of several threads may be mixed
                return re.findall(r"b'(\d+)'", "".join(each.read_text() for each in outputs))

            with client.producer() as producer:
                sent = count()

                def both_handle() -> bool:
                    for n in islice(sent, 10):
                        producer.post("orders", b"%d" % n, key=f"order-{n % 10}")
                    return all(each.stat().st_size for each in outputs)

                wait_until(both_handle, "the second worker got queues")
            last = next(sent)
            wait_until(lambda: len(bodies()) >= last, "all messages")
            for child, number in zip(children, (signal.SIGTERM, signal.SIGINT), strict=True):
                child.send_signal(number)
            assert [child.wait(WAIT_SECONDS) for child in children] == [0, 0]
            assert set(bodies()) == {str(n) for n in range(last)}
            group = client.admin.group("billing")
            assert sum(queue.lag_messages for queue in group.queues) == 0
    finally:
        node.stop()


@pytest.mark.usefixtures("quick_groups")
async def test_a_handler_that_fails_gets_its_message_again_until_it_is_a_dead_letter(
    start_node: StartNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = await start_node(tmp_path / "data", message_delay_level="1s")
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        await client.admin.put_group("g", retry_times=1)
        async with client.producer() as producer:
            for body in (b"poison", b"fine"):
                await producer.send("T", body)
        handled: list[tuple[bytes, int]] = []
        async with client.consumer("g", "T") as consumer:

            async def handle(message: duolog.Message) -> None:
                handled.append((message.body, message.reconsume_times))
                if message.body == b"poison":
                    if message.reconsume_times:
                        consumer.stop()
                    raise ValueError("cannot be handled")

            async with asyncio.timeout(WAIT_SECONDS):
                await consumer.run(handle)
        assert handled == [(b"poison", 0), (b"fine", 0), (b"poison", 1)]
        dead = await client.pull("%DLQ%g", 0, 0)
        assert dead.body_list() == [b"poison"]
        group = await client.admin.group("g")
        assert sum(queue.lag_messages for queue in group.queues) == 0
    told = [record.getMessage() for record in caplog.records if record.name == "duolog.worker"]
    assert [line.rpartition("at attempt ")[2] for line in told] == [
        "1: it is retried",
        "2, the last: it is in %DLQ%g",
    ]
