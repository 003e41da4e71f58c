"""redis-py at work: pipelines of XADD, one XADD at a time, XREAD."""

import time

import redis

from bench.peers.clients.program import (
    Arrivals,
    Turn,
    arguments,
    began,
    ended,
    of_latencies,
    until_answered,
    until_listening,
)
from bench.peers.peer import Measured, Work
from bench.peers.rows import Kind

BATCH = 1000  # XADD in a pipeline
READ = 1000  # messages of an XREAD
CALL_SECONDS = 30.0


def ready(client: "redis.Redis", work: Work) -> Measured:
    """A message is acknowledged: the log is loaded."""
    started = time.perf_counter()
    until_answered(lambda: client.xadd(work.topic, {"b": b"x"}))
    return Measured(1, time.perf_counter() - started)


def batches(client: "redis.Redis", work: Work, turn: Turn) -> Measured:
    """`xadd` into a pipeline, and `execute` for each thousand."""
    entry, acknowledged = {"b": b"x" * work.size}, 0
    while turn.more():
        count = turn.portion(BATCH)
        pipeline = client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.xadd(work.topic, entry)
        turn.sent += count
        acknowledged += len(pipeline.execute())
    return turn.done(acknowledged)


def singly(client: "redis.Redis", work: Work, turn: Turn) -> Measured:
    """Each is acknowledged before the next one."""
    entry, latencies = {"b": b"x" * work.size}, []
    while turn.more():
        sent = time.perf_counter()
        client.xadd(work.topic, entry)
        latencies.append(time.perf_counter() - sent)
    return of_latencies(latencies, time.perf_counter() - turn.started)


def consume(client: "redis.Redis", work: Work) -> Measured:
    """XREAD from the beginning; the client keeps its place itself."""
    arrivals, size, place, done = Arrivals(work.messages), 0, b"0", False
    while not done:
        found = client.xread({work.topic: place}, count=READ)
        entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
        size += sum(len(fields[b"b"]) for _, fields in entries)
        place = entries[-1][0]
        done = arrivals.add(len(entries))
    arrivals.count += len(client.xread({work.topic: place}, count=1))
    if size != work.messages * work.size:
        raise RuntimeError(f"consumed {size:,} bytes")
    return arrivals.measured()


def main() -> None:
    """One piece of work."""
    address, work = arguments()
    host, _, port = address.rpartition(":")
    if work.kind is Kind.READY:
        began()
        until_listening(address)
    client = redis.Redis(host=host, port=int(port), socket_timeout=CALL_SECONDS)
    match work.kind:
        case Kind.READY:
            ended(ready(client, work))
        case Kind.CONSUME | Kind.CONSUME_EACH:
            ended(consume(client, work))
        case kind:
            send = singly if kind is Kind.SINGLE else batches
            if work.warm_seconds:
                send(client, work, Turn(work.warm_seconds))
            began()
            ended(send(client, work, Turn(work.seconds, work.messages)))


if __name__ == "__main__":
    main()
