"""Three nodes as processes with a real etcd: masters die, are switched, hang, or have a full disk.

The long runs are `make chaos`; here every kind of fault is met a few times.
"""

import os
from pathlib import Path

import pytest

from duolog_server.chaos import run as chaos_run
from duolog_server.chaos.__main__ import main
from duolog_server.chaos.history import OK
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.chaos.run import Result, Run
from duolog_server.chaos.timeline import Fault
from duolog_server.chaos.workload import Load
from tests.etcd import need_etcd
from tests.process.support import SMALL_FILES

pytestmark = [pytest.mark.process, pytest.mark.long]

SMALL = (*SMALL_FILES, "--set", "node.log_level=warning")


@pytest.fixture(autouse=True)
def _etcd() -> None:
    need_etcd()


async def carried_out(run: Run, target: ProcessTarget) -> Result:
    """What came of a run that must be valid and without findings."""
    try:
        result = await run.carry_out()
    finally:
        target.stop()
    assert result.findings == []
    assert result.invalid == ""
    return result


async def carry_out(target: ProcessTarget, faults: list[Fault], least_ok: int = 100) -> Result:
    load = Load(producers=3, pause=0.005, least_ok=least_ok)
    return await carried_out(Run(target, faults, load), target)


async def test_nothing_is_lost_or_duplicated_when_masters_die_and_the_next_one_leads(
    tmp_path: Path,
) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=1, flags=SMALL)
    faults = [
        Fault("kill"),
        Fault("kill", "slave"),
        Fault("switch"),
        Fault("kill"),
        Fault("restart"),
        Fault("kill", lasts=4.0),
    ]
    result = await carry_out(target, faults, least_ok=301)
    assert [row.kind for row in result.failovers].count("kill") == 3
    assert all(row.seconds < 10 for row in result.failovers)
    assert result.history.outcomes()[OK] > 300


async def test_a_master_that_stands_still_for_longer_than_its_lease_is_replaced(
    tmp_path: Path,
) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, flags=SMALL)
    await carry_out(target, [Fault("pause", lasts=7.0), Fault("pause", "slave", lasts=4.0)])


async def test_the_group_goes_on_while_an_etcd_member_is_away(tmp_path: Path) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, etcd_members=3, flags=SMALL)
    faults = [Fault("etcd_kill", lasts=2.0), Fault("kill"), Fault("etcd_kill", lasts=1.0)]
    await carry_out(target, faults)


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="disks on loop devices need root")
async def test_nothing_acknowledged_is_lost_when_every_node_loses_power(tmp_path: Path) -> None:
    flags = (*SMALL, "--set", "store.flush_disk_type=SYNC_FLUSH")
    target = ProcessTarget(tmp_path, lease_seconds=2, disk_bytes=96 << 20, flags=flags)
    await carry_out(target, [Fault("power_cut_all"), Fault("power_cut_all")], least_ok=50)


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="disks on loop devices need root")
async def test_the_power_cut_loses_unsynced_messages_under_async_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_run, "HEALTHY_SECONDS", 30.0)  # without what it lost it never is
    # Acknowledged from page caches, on one machine whose boot id does not change.
    target = ProcessTarget(tmp_path, lease_seconds=2, disk_bytes=96 << 20, flags=SMALL)
    run = Run(target, [Fault("power_cut_all", gap=1.0)] * 2, Load(producers=3, least_ok=1))
    try:
        result = await run.carry_out()
    finally:
        target.stop()
    assert result.findings != [] or result.invalid != ""


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="disks on loop devices need root")
async def test_a_full_disk_costs_no_acknowledged_message(tmp_path: Path) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, disk_bytes=96 << 20, flags=SMALL)
    faults = [Fault("disk_full", "slave", lasts=2.0), Fault("disk_full", lasts=2.0)]
    await carry_out(target, faults)


async def test_a_master_that_stands_still_for_about_its_lease_acknowledges_nothing_late(
    tmp_path: Path,
) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, flags=SMALL)
    await carry_out(target, [Fault("stall", lasts=seconds) for seconds in (1.6, 2.0, 2.2, 2.6)])


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="networks of nodes need root")
async def test_nothing_is_lost_when_single_links_are_cut_in_one_direction(tmp_path: Path) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, flags=SMALL)
    target.prepare({"cut_one_way"})
    faults = [
        Fault("cut_one_way", "slave", "master", lasts=3.0),
        Fault("cut_one_way", "master", "slave", lasts=3.0),
        Fault("cut_one_way", "master", "etcd", lasts=4.0),
    ]
    await carry_out(target, faults)


async def test_a_node_joins_and_leaves_under_load(tmp_path: Path) -> None:
    target = ProcessTarget(tmp_path, lease_seconds=2, flags=SMALL)
    result = await carry_out(target, [Fault("member", lasts=0.5), Fault("kill")])
    assert set(result.history.drains) == {"a", "b", "c"}


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="disks on loop devices need root")
async def test_a_disk_that_hangs_costs_no_acknowledged_message(tmp_path: Path) -> None:
    flags = (*SMALL, "--set", "store.flush_disk_type=SYNC_FLUSH")
    target = ProcessTarget(tmp_path, lease_seconds=2, disk_bytes=96 << 20, flags=flags)
    faults = [Fault("disk_hang", "slave", lasts=1.0), Fault("disk_hang", lasts=3.0)]
    await carry_out(target, faults, least_ok=50)


def test_wrong_arguments_get_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--replay", str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 2
    assert "cannot use the planned faults" in capsys.readouterr().err
