"""A client that sends to one queue at a rate: python -m bench.neighbour HOST:PORT TOPIC RATE.

A process of its own: it shares nothing but the node with the client whose effect on it is measured.
It prints a line when it begins, and at the end of its input what each send took, as JSON.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import duolog

BODY = b"." * 100
QUEUE = 0
WARM_UP_SENDS = 200
STOP_SECONDS = 60.0
ROOT = Path(__file__).parent.parent

Sends = list[tuple[float, float]]  # when each was due (monotonic clock), and seconds it took


async def send_at_rate(
    producer: duolog.Producer,
    queues: Sequence[tuple[str, int]],
    rate: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Sends:
    """One send to each queue, one at a time, each at its own time; rate: sends a second.

    A send that could not begin when it was due, because the one before took too long, counts from
    the time it was due: else a stall would look like a single slow send.
    """
    found: Sends = []
    began = clock()
    for number, (topic, queue_id) in enumerate(queues):
        due = began + number / rate
        early = due - clock()
        if early > 0:
            await sleep(early)
            due = clock()
        await producer.send(topic, BODY, queue_id=queue_id)
        found.append((due, clock() - due))
    return found


class Neighbour:
    """The process, while it sends."""

    def __init__(self, endpoint: str, topic: str, rate: float) -> None:
        """Start it; it sends when this returns."""
        command = [sys.executable, "-m", "bench.neighbour", endpoint, topic, str(rate)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None, "piped"
        self._process.stdout.readline()

    def finish(self) -> Sends:
        """End it; what its sends took. Raises ValueError where it failed."""
        output, _ = self._process.communicate(timeout=STOP_SECONDS)
        return [(due, seconds) for due, seconds in json.loads(output)]

    def kill(self) -> None:
        """End it in any case; it may have ended."""
        self._process.kill()
        self._process.wait()


async def send_until_told(endpoint: str, topic: str, rate: float) -> Sends:
    """Send until the end of the standard input."""
    end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    found: Sends = []
    async with duolog.Client(endpoint, timeout=60) as client, client.producer() as producer:
        for _ in range(WARM_UP_SENDS):
            await producer.send(topic, BODY, queue_id=QUEUE)
        print("sending", flush=True)
        while not end.done():
            found += await send_at_rate(producer, [(topic, QUEUE)] * max(1, int(rate / 10)), rate)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send_until_told(sys.argv[1], sys.argv[2], float(sys.argv[3])))))
