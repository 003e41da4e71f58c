"""Two shards of one machine with a real etcd: found from one address, killed, stopped."""

import contextlib
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import duolog.sync
import pytest
from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from duolog_server.chaos.localetcd import LocalEtcd
from tests.etcd import need_etcd
from tests.process.support import SMALL_FILES, environment, refused, run_cli
from tests.until import wait_until

pytestmark = pytest.mark.process

KIB_MAX = 30 << 10
PORTS = 16  # of every four, two are given out
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Machine(ChildProcess):
    """The supervisor of two shards."""

    def __init__(self, directory: Path, registry: str) -> None:
        self.listen = free_ports(PORTS)[0]  # no other test has one up to 20 above it
        replication, self.metrics = self.listen + 1, self.listen + 4
        words = (
            *("node", "start", "--shards", "2", "--name", "m", "--data", directory / "data"),
            *("--role", "AUTO", "--registry", registry, "--listen", f"127.0.0.1:{self.listen}"),
            *("--ha-listen", f"127.0.0.1:{replication}"),
            *("--set", f"metrics.listen=127.0.0.1:{self.metrics}"),
            *("--set", "ha.min_in_sync_replicas=1", "--set", "ha.in_sync_replicas=1"),
            *("--set", "node.group=g", "--set", "registry.lease_seconds=1", *SMALL_FILES),
        )
        program = [sys.executable, "-m", "duolog_server.ops.cli.main", *map(str, words)]
        super().__init__("m", program, directory / "m.log", environment=environment())

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of the port of all shards; 0 where it does not answer."""
        try:
            with OPENER.open(f"http://127.0.0.1:{self.metrics}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def healthy(self) -> bool:
        """Whether both shards serve."""
        assert self.running, self.log_tail()
        return self.get("/health")[0] == 200

    def shards(self) -> list[int]:
        """Process ids of the shards, by number, of those that run."""
        found = Path("/proc").glob("[0-9]*/cmdline")
        own = f"--set\0node.data={self.log.parent}/data/shard-"
        pids = {}
        for file in found:
            with contextlib.suppress(OSError):  # it has ended
                program, _, shard = file.read_text(errors="replace").partition(own)
                if shard and program.startswith(f"{sys.executable}\0-P\0-m\0duolog_server.ops.cli"):
                    pids[shard[:1]] = int(file.parent.name)
        return [pids[number] for number in sorted(pids)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_etcd()
    etcd = LocalEtcd(tmp_path_factory.mktemp("etcd"))
    etcd.start()
    yield etcd.endpoints[0]
    etcd.stop()


def test_two_shards_are_found_from_one_address_survive_a_kill_and_stop(
    tmp_path: Path, registry: str
) -> None:
    machine = Machine(tmp_path, registry)
    machine.start()
    try:
        wait_until(machine.healthy, seconds=120)
        status = Path(f"/proc/{machine.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) <= KIB_MAX

        last = f"127.0.0.1:{machine.listen + 10}"
        with duolog.sync.Client(last, timeout=30) as client:
            wait_until(
                lambda: (
                    {(one.group, one.master) for one in client.admin.route().groups}
                    == {("g-0", "m-0"), ("g-1", "m-1")}
                )
            )
            client.admin.create_topic("orders", 1)
            with client.producer() as producer:
                sent = [
                    producer.send("orders", group.encode(), queue_id=0, group=group)
                    for group in ("g-0", "g-1")
                ]
            assert len(sent) == 2

        text = machine.get("/metrics")[1]
        assert text.count("# TYPE duolog_role gauge") == 1
        for shard in ("0", "1"):
            assert f'duolog_shard_up{{shard="{shard}"}} 1' in text
            assert f'duolog_role{{shard="{shard}",' in text

        before = machine.shards()
        os.kill(before[1], signal.SIGKILL)
        wait_until(lambda: machine.shards()[1:] not in ([], before[1:]), seconds=60)
        wait_until(machine.healthy, seconds=120)
        assert machine.shards()[0] == before[0]
        assert "killed by SIGKILL" in machine.log.read_text()
        assert "node=m-0" in machine.log.read_text()

        assert machine.stop() == 0
        assert machine.shards() == []
        assert machine.log.read_text().count("stopped") == 3
    finally:
        machine.end()


def test_shards_end_with_a_supervisor_that_is_killed_and_the_next_one_has_their_directories(
    tmp_path: Path, registry: str
) -> None:
    machine = Machine(tmp_path, registry)
    machine.start()
    try:
        wait_until(machine.healthy, seconds=120)
        assert machine.log.read_text().count("ready") == 2
        machine.kill()
        machine.start()  # at once: the shards of the first one may not have ended
        wait_until(lambda: machine.log.read_text().count("ready") == 4, seconds=120)
        assert machine.stop() == 0
        wait_until(lambda: machine.shards() == [])
    finally:
        machine.end()


def test_shards_without_a_registry_are_refused() -> None:
    done = run_cli("node", "start", "--shards", "2")
    refused(done, "needs nodes that elect their masters", "--registry", status=2)
    refused(run_cli("node", "start", "--shards", "0"), "--shards", status=2)
