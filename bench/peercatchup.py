"""How fast a slave that has nothing catches up, beside RocketMQ's: the same log, in turns.

`python -m bench.peercatchup --gibibytes 2 --rounds 3 --root DIRECTORY`. Needs Java and Maven.

All masters are started with copies of one directory, so that all send the same bytes; each slave is
a new process. RocketMQ's master sends an empty slave only its newest segment: its slaves are given
the first record, and copy all others. They report where they are 0.5 s after they connected, not
5 s: nothing is sent before that.
"""

import argparse
import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.catchup import POLL_SECONDS, WAIT_SECONDS, Copied, Copying, of_nodes, pages_for
from bench.harness import Node
from bench.peers.rocketmq import HEAP, RocketMq
from bench.peers.rocketmqbroker import RocketmqBroker, name_server
from bench.rocketmqslave import BROKER_RUNTIME_INFO
from duolog_server.compat.remoting.calling import Calling, CallRefused, connect
from duolog_server.demo import measure
from duolog_server.store.options import StoreOptions

VERSIONS = ("4.9.7", "5.3.3")
BODY_BYTES = 1024
OPTIONS = StoreOptions()
SEGMENT = OPTIONS.mapped_file_size_commit_log
# Of brokers: files as nodes make them, which are RocketMQ's own defaults, and early reports.
SETTINGS = {
    "maxHashSlotNum": OPTIONS.max_hash_slot_num,
    "maxIndexNum": OPTIONS.max_index_num,
    "haSendHeartbeatInterval": 500,
}
Turn = Callable[[Path], Coroutine[None, None, Copied]]  # in a directory that is new


def first_record(store: Path) -> bytes:
    """The first record of a store's log."""
    with min((store / "commitlog").iterdir()).open("rb") as file:
        size = int.from_bytes(file.read(4), "big")
        file.seek(0)
        return file.read(size)


def seed(store: Path, record: bytes) -> None:
    """Make a store whose log is one record."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    with (folder / f"{0:020d}").open("wb") as file:
        file.write(record)
        file.truncate(SEGMENT)


class Told:
    """What a broker tells of itself."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._calling: Calling | None = None

    async def number(self, name: str) -> int:
        """One of its figures; 0 while it starts, or its log is empty. Raises ConnectionError."""
        if self._calling is None:
            with suppress(OSError, TimeoutError):
                self._calling = await connect(self._address)
        if self._calling is None:
            return 0
        try:
            answer = await self._calling.call(BROKER_RUNTIME_INFO)
        except CallRefused:
            return 0
        return int(json.loads(answer.body)["table"][name])

    async def known(self, name: str) -> int:
        """One of its figures, once it has started. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not (found := await self.number(name)):
                await asyncio.sleep(POLL_SECONDS)
        return found

    def close(self) -> None:
        """Ask no more."""
        if self._calling is not None:
            self._calling.close()


@dataclass(frozen=True, slots=True)
class Brokers:
    """RocketMQ's master, with a store that it is lent, and its slaves."""

    version: str
    jars: Path
    store: Path

    async def __call__(self, root: Path) -> Copied:
        """One turn."""
        with ExitStack() as stack:
            names, address = name_server(root / "names", self.jars)
            master = RocketmqBroker(root / "master", self.jars, SEGMENT, HEAP)
            slave = RocketmqBroker(root / "slave", self.jars, SEGMENT, HEAP)
            self.store.rename(master.store)
            stack.callback(master.store.rename, self.store)
            record = first_record(master.store)
            seed(slave.store, record)
            serving = master.server("ASYNC_MASTER", 0, address, **SETTINGS)
            own = f"127.0.0.1:{master.port}"
            for server, listens in ((names, address), (serving, own)):
                server.start()
                stack.callback(server.stop)
                server.wait_listening(listens)
            ours, theirs = Told(own), Told(f"127.0.0.1:{slave.port}")
            stack.callback(ours.close)
            stack.callback(theirs.close)
            end = await ours.known("commitLogMaxOffset")
            pages = pages_for(end)
            stack.callback(pages.close)
            # 5.x forgets an address of the configuration; the name server tells it the same one.
            link = {} if self.version.startswith("5.") else {"haMasterAddress": master.link}
            copying = slave.server("SLAVE", 1, address, **SETTINGS, **link)
            stack.callback(copying.stop)

            def start_slave() -> int:
                copying.start()
                return copying.pid

            async def reached() -> int:
                found = await theirs.number("commitLogMaxOffset")
                return found if found > len(record) else 0

            async def behind() -> int:
                return await theirs.number("dispatchBehindBytes")

            return await Copying(serving.pid, start_slave, reached, behind, pages).watch(end)


def turns(root: Path, gibibytes: int, versions: Sequence[str]) -> dict[str, Turn]:
    """What is measured, by name. Each has a copy of the same store below root."""
    store = root / "duolog"
    measure.fill_store(store, gibibytes << 30, BODY_BYTES)
    node = Node(store)
    node.start()  # and stop it in good order, as brokers of RocketMQ want it
    try:
        node.wait_port()
    finally:
        node.stop()

    async def nodes(turn: Path) -> Copied:
        return (await of_nodes(turn, store))[0]

    found: dict[str, Turn] = {"duolog": nodes}
    for version in versions:
        peer = RocketMq(version)
        shutil.copytree(store, root / peer.name)
        found[peer.name] = Brokers(version, peer.jars(), root / peer.name)
    return found


def measured(root: Path, work: dict[str, Turn], rounds: int) -> dict[str, float]:
    """Medians of the rates, bytes a second; every turn is printed as it ends."""
    rates: dict[str, list[float]] = {name: [] for name in work}
    for name in list(work) * rounds:
        with TemporaryDirectory(prefix="turn-", dir=root) as place:
            copied = asyncio.run(work[name](Path(place)))
        print(f"{name}: {copied}", flush=True)
        rates[name].append(copied.rate)
    return {name: median(found) for name, found in rates.items()}


def main() -> None:
    """Print every turn, and a line of the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gibibytes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--versions", nargs="*", default=list(VERSIONS))
    parser.add_argument("--root", type=Path, default=None)
    words = parser.parse_args()
    with TemporaryDirectory(prefix="duolog-bench-", dir=words.root) as root:
        work = turns(Path(root), words.gibibytes, words.versions)
        found = measured(Path(root), work, words.rounds)
    rates = [f"{name} {rate / 1e6:,.0f} MB/s" for name, rate in found.items()]
    ours = found.pop("duolog")
    ratios = [f"{ours / rate:.2f} x {name}" for name, rate in found.items()]
    line = f"catch-up of an empty slave, {words.gibibytes} GiB"
    print(f"{line}: {' / '.join(rates)}, {', '.join(ratios)}")


if __name__ == "__main__":
    main()
