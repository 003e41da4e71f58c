"""The compose cluster: start, access from outside, loss of its master, links and etcd.

These run where a Docker engine answers, are skipped with the reason elsewhere, and fail in CI where
they would be skipped. The long run is `make chaos-containers`.
"""

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.chaos.run import Result, Run
from duolog_server.chaos.timeline import Fault
from duolog_server.chaos.workload import Load
from tests.documented import console_lines

ROOT = Path(__file__).parent.parent.parent
KINDS = ("kill", "pause", "disconnect", "cut_one_way", "restart", "etcd_kill", "switch")
IMAGE_MB = 250
OUTSIDE = "127.0.0.1:18081,127.0.0.1:18082,127.0.0.1:18083"

pytestmark = [pytest.mark.containers, pytest.mark.xdist_group("docker")]


def run(*command: str, timeout: float = 600) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


def why_not() -> str:
    """Why containers cannot be run here, empty where they can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
        return "no Docker engine answers"
    compose = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if compose.returncode and shutil.which("docker-compose") is None:
        return "neither docker compose nor docker-compose is installed"
    return ""


@pytest.fixture(scope="module")
def up() -> Iterator[None]:
    """The cluster, from nothing, and nothing left of it afterwards."""
    reason = why_not()
    if reason:
        if os.environ.get("CI") or os.environ.get("DUOLOG_TEST_CONTAINERS"):
            pytest.fail(reason)
        pytest.skip(reason)
    run("cluster/down", "--volumes")
    run("cluster/up", timeout=900)
    yield
    run("cluster/down", "--volumes")


@pytest.fixture
def target(up: None) -> Iterator[Any]:
    from duolog_server.chaos.containers import ContainerTarget

    made = ContainerTarget()
    made.prepare(KINDS)
    made.start()
    yield made
    made.stop()
    made.close()


async def carry_out(target: Any, faults: list[Fault]) -> Result:
    result = await Run(target, faults, Load(producers=3, pause=0.005)).carry_out()
    assert result.findings == []
    assert result.invalid == ""
    return result


async def test_clients_outside_reach_the_whole_cluster(up: None) -> None:
    async with duolog.Client(OUTSIDE, timeout=15) as client, client.producer() as producer:
        route = await client.admin.route()
        (group,) = route.groups
        assert {replica.node for replica in group.replicas} == {"a1", "a2", "a3"}
        await client.admin.create_topic("outside", 2)
        receipt = await producer.send("outside", b"x")
        assert receipt.status == "PUT_OK"


def test_nodes_run_without_root_and_cannot_write_where_they_need_not(up: None) -> None:
    import docker

    engine = docker.from_env()
    filters: dict[str, Any] = {"label": "com.docker.compose.project=duolog"}
    names = ("a1", "a2", "a3")
    nodes = [
        container
        for container in engine.containers.list(filters=filters)
        if container.labels["com.docker.compose.service"] in names
    ]
    assert len(nodes) == 3
    for container in nodes:
        host = container.attrs["HostConfig"]
        assert container.attrs["Config"]["User"] == "10001:10001"
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0
        assert host["PidsLimit"] > 0
        code, _ = container.exec_run("touch /opt/x")
        assert code != 0
        code, output = container.exec_run(
            "duolog node check --write --json --endpoints 127.0.0.1:8081"
        )
        assert code == 0, output
    engine.close()


def test_prometheus_would_reach_every_node(up: None) -> None:
    for number in (11, 12, 13):
        address = f"http://172.31.77.{number}:5557/metrics"
        with urllib.request.urlopen(address, timeout=10) as reply:
            assert b"duolog_build_info{" in reply.read()


async def test_nothing_is_lost_when_masters_die_freeze_or_are_cut_off(target: Any) -> None:
    faults = [
        Fault("kill"),
        Fault("disconnect", lasts=5.0),
        Fault("cut_one_way", other="all", lasts=5.0),
        Fault("cut_one_way", other="etcd", lasts=5.0),
        Fault("pause", lasts=10.0),
        Fault("etcd_kill", lasts=1.0),
        Fault("disconnect", "slave", lasts=3.0),
        Fault("switch"),
    ]
    result = await carry_out(target, faults)
    assert all(row.seconds < 12 for row in result.failovers)


def test_the_image_is_small_and_has_no_compiler(up: None) -> None:
    size = int(run("docker", "image", "inspect", "duolog:latest", "--format", "{{.Size}}"))
    assert size <= IMAGE_MB * 1_000_000
    found = run(
        "docker", "exec", "duolog-a1", "python", "-c",
        "import importlib.util, shutil, duolog_server.store.kernels.jit as jit;"
        "print(jit.LIBRARY is not None, *map(importlib.util.find_spec, ('numba', 'pytest', 'pip')),"
        "shutil.which('gcc'))",
    )  # fmt: skip
    assert found.split() == ["True", "None", "None", "None", "None"]


def test_the_documented_commands_work(up: None, tmp_path: Path) -> None:
    """Every command of docs/cluster.md, with one fault where it has many."""
    bin_directory = ROOT / ".venv" / "bin"
    environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    lines = console_lines(ROOT / "docs" / "cluster.md")
    assert len(lines) == 16
    for line in lines:
        if line.startswith("make chaos"):  # hours
            continue
        command = re.sub(r"(--(?:kill|pause|disconnect|cut-one-way|moves)) [0-9]+", r"\1 1", line)
        if "duolog_server.chaos --" in command:
            command += f" --lasts 0.5 --out {tmp_path} --name documented --least-ok 50"
            command = command.replace("chaos-results/NAME", f"{tmp_path}/documented")
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    run("docker", "volume", "rm", "duolog-data")
