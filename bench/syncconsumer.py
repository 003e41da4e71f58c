"""The synchronous client at work: python -m bench.syncconsumer HOST:PORT TOPIC MESSAGES.

Prints messages a second. A process of its own, as its users have: gRPC's asyncio is at home in one
event loop of a process.
"""

import subprocess
import sys
import time
from itertools import islice

import duolog.sync


def rate_in_a_process(endpoint: str, topic: str, messages: int) -> float:
    """Messages a second that a loop over a consumer gets, in a process of its own."""
    command = [sys.executable, "-m", "bench.syncconsumer", endpoint, topic, str(messages)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(ran.stdout)


def _rate(endpoint: str, topic: str, messages: int) -> float:
    with (
        duolog.sync.Client(endpoint, timeout=60) as client,
        client.consumer("synchronous", topic) as consumer,
    ):
        total, began = 0, time.perf_counter()
        for message in islice(consumer, messages):
            total += len(message.body)
        return messages / (time.perf_counter() - began)


if __name__ == "__main__":
    print(_rate(sys.argv[1], sys.argv[2], int(sys.argv[3])))
