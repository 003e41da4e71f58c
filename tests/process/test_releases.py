"""Nodes of an earlier release beside today's: a group is rolled from one to the other, and back."""

import os
import subprocess
import sys
from pathlib import Path

import duolog
import pytest
from duolog.testing._node import ChildNode

from duolog_server.chaos.history import OK
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.chaos.run import Run, ordered
from duolog_server.chaos.timeline import Fault
from duolog_server.chaos.workload import Load
from tests.etcd import need_etcd
from tests.process.support import SMALL_FILES
from tests.process.test_failover import carried_out
from tests.releases import RELEASES, Release, environment_of

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(600)]

# In the log of a slave that copies from a master whose chunks have no CRC over the log bytes.
NO_CRC = "log bytes are copied without a checksum of their own"


class Rolled(ProcessTarget):
    """A restart gives a node the program of the other release: the earlier one, or today's."""

    def __init__(self, directory: Path, program: str, earlier: dict[str, str]) -> None:
        super().__init__(directory, lease_seconds=1, flags=SMALL_FILES)
        self._program, self._earlier = program, earlier
        self.of_today: set[str] = set(self.nodes)
        for name in self.nodes:
            self._change(name)

    def _change(self, node: str) -> None:
        self.of_today ^= {node}
        child = self._nodes[node]
        child.program = ChildNode.program if node in self.of_today else self._program
        environment = dict(child.environment or {})
        for name, value in self._earlier.items():
            if node in self.of_today:
                environment.pop(name)
            else:
                environment[name] = value
        child.environment = environment

    def restart(self, node: str) -> None:
        """SIGTERM, and start the other release."""
        self._nodes[node].stop()
        self._change(node)
        self.revive(node)


class Rolling(Run):
    """A run with one more event: that a node of one's choice leads."""

    async def _act(self, fault: Fault, node: str) -> float:
        return await (self._lead(node) if fault.kind == "lead" else super()._act(fault, node))

    async def _lead(self, node: str) -> float:
        async def order() -> None:
            async with duolog.Client(self.target.endpoint(self._master), timeout=10) as client:
                await client.admin.failover(node)

        async def refused(why: str) -> None:
            await self._healthy()

        await ordered(order, refused)
        while node != self._master:
            await self._healthy()
        return self.workload.now()


@pytest.mark.parametrize("release", RELEASES)
async def test_a_group_is_rolled_from_an_earlier_release_and_back(
    tmp_path: Path, release: str
) -> None:
    """Every release is master and slave of the other on the way; writers and readers go on."""
    need_etcd()
    earlier = environment_of(release)
    where = "import ha.frames, duolog; print(ha.frames.__file__, duolog.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], env={**os.environ, **earlier}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(f"releases/{release}" in path for path in found), found

    there = [("lead", "a"), ("restart", "b"), ("lead", "b"), ("restart", "c"), ("restart", "a")]
    back = [("restart", "a"), ("lead", "a"), ("restart", "c"), ("restart", "b")]
    target = Rolled(tmp_path, RELEASES[release].program, earlier)
    faults = [Fault(kind, node, gap=0.0, lasts=0.0) for kind, node in (*there, *back)]
    run = Rolling(target, faults, Load(producers=3, pause=0.005, queues=3, readers=1))
    result = await carried_out(run, target)
    assert result.history.outcomes()[OK] > 100
    assert not target.of_today
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in target.nodes}
    # b follows a before a is rolled, and c follows a again after it was rolled back; where both
    # are of today, the CRC is asked for and given.
    assert all(NO_CRC in logs[name] for name in "bc"), logs


def test_a_clone_without_the_releases_commit_fails_and_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RELEASES, "v0.0.0", Release("0" * 40, ""))
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        environment_of("v0.0.0")
