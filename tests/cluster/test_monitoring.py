"""The compose cluster's monitoring: what is scraped, what is mounted, what is open to whom."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from duolog_server.node.runtime.config import load

CLUSTER = Path(__file__).parent.parent.parent / "cluster"
PROMETHEUS = CLUSTER / "prometheus"
PROVISIONING = CLUSTER / "grafana" / "provisioning"
MONITORS = ("prometheus", "grafana")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


COMPOSE = read(CLUSTER / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = {
    name: service
    for name, service in SERVICES.items()
    if "DUOLOG_METRICS__LISTEN" in service.get("environment", ())
}


def mounts(service: str) -> dict[str, str]:
    """What is mounted, read-only or not, by the path inside the container."""
    found = {}
    for mount in SERVICES[service]["volumes"]:
        source, inside, *_ = mount.split(":")
        found[inside] = source
    return found


def test_every_node_of_the_cluster_is_scraped() -> None:
    (job,) = read(PROMETHEUS / "prometheus.yml")["scrape_configs"]
    assert job["job_name"] == "duolog"
    (static,), (named,) = job["static_configs"], job["dns_sd_configs"]
    assert {*static["targets"], *(f"{name}:{named['port']}" for name in named["names"])} == {
        f"{name}:5557" for name in NODES
    }
    assert {target.partition(":")[0] for target in static["targets"]} == {
        name for name, service in NODES.items() if "profiles" not in service
    }
    stored = {name for name in SERVICES if f"{name}:/data" in SERVICES[name].get("volumes", ())}
    assert set(NODES) == stored, "every node has metrics"


@pytest.mark.parametrize("name", NODES)
def test_a_node_of_the_cluster_has_metrics_inside_its_network_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in NODES[name]["environment"].items():
        if "${" not in value:  # chosen by whoever starts the cluster
            monkeypatch.setenv(variable, value)
    config, _ = load()
    assert config.metrics.listen == "0.0.0.0:5557"
    assert all(not port.endswith(":5557") for port in NODES[name]["ports"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (prometheus) is missing")
def test_prometheus_own_tool_accepts_the_configuration() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", str(PROMETHEUS / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", MONITORS)
def test_a_monitor_may_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["profiles"] == ["monitoring"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    tag = service["image"].rstrip("}").rpartition(":")[2]
    assert tag[-1].isdecimal(), "a version is pinned"
    for mount in service["volumes"]:
        assert mount.endswith(":ro") or mount.partition(":")[0] in COMPOSE["volumes"]


def test_ports_and_addresses_are_given_once() -> None:
    ports = [port.rpartition(":")[0] for one in SERVICES.values() for port in one.get("ports", ())]
    assert len(set(ports)) == len(ports)
    addresses = [one["networks"]["duolog"]["ipv4_address"] for one in SERVICES.values()]
    assert len(set(addresses)) == len(addresses)


def test_prometheus_finds_its_configuration_and_grafana_prometheus_and_dashboards() -> None:
    assert mounts("prometheus")["/etc/prometheus"] == "./prometheus"
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (source,) = read(PROVISIONING / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["prometheus"]["ports"][0].endswith(":9090")
    (provider,) = read(PROVISIONING / "dashboards" / "duolog.yml")["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == "./grafana"


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing")
def test_compose_accepts_the_file_with_every_profile() -> None:
    profiles = sorted({name for one in SERVICES.values() for name in one.get("profiles", ())})
    assert profiles == ["monitoring", "second", "spark"]
    flags = [flag for profile in profiles for flag in ("--profile", profile)]
    checked = subprocess.run(
        ["docker-compose", "-f", str(CLUSTER / "docker-compose.yml"), *flags, "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    stopped = (CLUSTER / "down").read_text()
    assert all(f"--profile {profile} " in stopped for profile in profiles)
