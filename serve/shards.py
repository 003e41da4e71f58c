"""The shards of a machine: nodes of one replica group each, and the process that keeps them.

    python -m duolog_server.serve.shards PLAN

It is what `duolog node start --shards N` becomes. A node is a process and uses about one core, so
a machine of many cores has several.

Rules: it stays small, and so imports neither gRPC nor numpy, nor the SDK, which imports the first;
it never forks a process that has threads; a shard that ends is started again, unless its disk or
its configuration is at fault; shards stop one after the other, so that each hands over to a node
that runs. The shards end with it, whatever ends it.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from duolog_server.node.runtime.logs import configure_logging
from duolog_server.node.runtime.restarts import Restarts
from duolog_server.node.runtime.stops import on_stop

import structlog  # isort: skip  (after logs, which has it do without rich)

from duolog_server.serve.shardmetrics import ShardsPort

log = structlog.get_logger("duolog.node")

PAUSE_SECONDS_MAX = 30.0
STOP_SECONDS = 60.0  # longest that one shard may take to stop
# An error of the configuration, or of the disk: as cluster/systemd/duolog.service has it, a restart
# mends neither.
FINAL = (2, 74)
CLEAN = frozenset((0, -signal.SIGTERM))  # the second of a node that has not begun to start


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run. programs: the command of each shard's node. metrics_ports: of each, on the
    loopback. metrics: HOST:PORT where those of all are shown; empty: nowhere.
    """

    programs: Sequence[Sequence[str]]
    metrics_ports: Sequence[int]
    metrics: str
    log_level: str
    log_json: bool

    def command(self) -> list[str]:
        """The program that carries it out."""
        plan = json.dumps(asdict(self))
        return [sys.executable, "-P", "-m", "duolog_server.serve.shards", plan]


def cores_of(shards: int, cores: Iterable[int]) -> list[list[int]]:
    """The cores of each shard: equal shares; none where there are fewer cores than shards."""
    free = sorted(cores)
    if len(free) < shards:
        return [[] for _ in range(shards)]
    ends = [len(free) * shard // shards for shard in range(shards + 1)]
    return [free[begin:end] for begin, end in itertools.pairwise(ends)]


class Shard:
    """The process of one shard, started again when it ends."""

    def __init__(self, number: int, program: Sequence[str], cores: Sequence[int]) -> None:
        """cores: those that it runs on; empty: any."""
        self.number = number
        words = str(os.getpid()), ",".join(map(str, cores)), *program
        self._command = (sys.executable, "-P", "-m", "duolog_server.serve.shardprocess", *words)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Have it stop, as a node does on SIGTERM; `keep` returns when it has."""
        self._stop.set()

    async def keep(self) -> int:
        """Run it until it is stopped, or cannot be mended by a restart; its last exit status."""
        loop, restarts = asyncio.get_running_loop(), Restarts(PAUSE_SECONDS_MAX)
        while True:
            began = loop.time()
            try:
                status = await self._run()
                reason = said(status)
            except OSError as error:
                status, reason = 1, f"cannot start it: {error}"
            if self._stop.is_set():
                return status
            if status in FINAL:
                log.error(
                    "a shard ended and is not started again", shard=self.number, reason=reason
                )
                return status
            pause = restarts.pause(loop.time() - began)
            log.warning(
                "a shard ended and is started again",
                shard=self.number,
                reason=reason,
                pause_seconds=pause,
            )
            if await self._stopped_within(pause):
                return 0  # nothing ran that could fail to stop

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stop.wait()
        except TimeoutError:
            return False

    async def _run(self) -> int:
        """Start it; its exit status once it has ended. Raises OSError.

        Its process group is its own: Ctrl-C in the terminal is for the supervisor, which stops the
        shards one by one. Its session is not: Linux shares processors out between sessions first.
        """
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, process_group=0
        )
        log.info("a shard started", shard=self.number, pid=process.pid)
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(process.wait())
            stopped = tasks.create_task(self._stop.wait())
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not ended.done():
                process.terminate()
                await asyncio.wait((ended,), timeout=STOP_SECONDS)
            if not ended.done():
                log.error(
                    "a shard did not stop in time and is killed",
                    shard=self.number,
                    seconds=STOP_SECONDS,
                )
                process.kill()
        return ended.result()


def said(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"exit status {status}"
    names = {one.value: one.name for one in signal.Signals}  # not those of real time
    return f"killed by {names.get(-status, f'signal {-status}')}"


async def run(plan: Plan) -> int:
    """Run the shards until a signal comes, or none is left that a restart may mend.

    The exit status: 0 where all stopped in order; that of a shard's disk or configuration; else 1.
    """
    stop = asyncio.Event()
    on_stop(stop.set)
    port = ShardsPort(plan.metrics_ports)
    if plan.metrics:
        host, _, number = plan.metrics.rpartition(":")
        try:
            await port.start(host.strip("[]"), int(number))
        except OSError as error:
            log.error("cannot start", reason=f"cannot listen on {plan.metrics}: {error}")
            return 1
        log.info("serving metrics", listen=plan.metrics)
    shares = cores_of(len(plan.programs), os.sched_getaffinity(0))
    shards = [
        Shard(number, program, cores)
        for number, (program, cores) in enumerate(zip(plan.programs, shares, strict=True))
    ]
    try:
        async with asyncio.TaskGroup() as tasks:
            kept = [tasks.create_task(shard.keep()) for shard in shards]
            told, ended = tasks.create_task(stop.wait()), tasks.create_task(asyncio.wait(kept))
            await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            for shard, keeping in zip(shards, kept, strict=True):
                shard.stop()
                await keeping
    finally:
        await port.stop()
    log.info("stopped")
    return status_of([keeping.result() for keeping in kept])


def status_of(statuses: Sequence[int]) -> int:
    """The exit status of all shards, of that of each."""
    final = [status for status in statuses if status in FINAL]
    return final[0] if final else int(not CLEAN.issuperset(statuses))


def main() -> None:
    """Entry point."""
    plan = Plan(**json.loads(sys.argv[1]))
    configure_logging(plan.log_level, plan.log_json)
    sys.exit(asyncio.run(run(plan)))


if __name__ == "__main__":
    main()
