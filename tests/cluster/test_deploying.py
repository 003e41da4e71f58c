"""Manifests for Kubernetes and the unit for systemd: valid, and of settings that a node has."""

import configparser
import os
import random
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import duolog
import duolog.sync
import grpc
import kubernetes_validate
import pytest
from duolog.testing._process import ChildProcess
from grpc_health.v1 import health_pb2, health_pb2_grpc

from duolog_server.node.broker import EXIT_FENCED
from duolog_server.node.runtime.config import Config, load
from tests.cluster.manifests import FOLDER, NAMESPACE, Pod, documents, named
from tests.documented import console_lines
from tests.etcd import need_etcd
from tests.until import BLOCKING_SECONDS, wait_until

ROOT = FOLDER.parent.parent
UNIT = ROOT / "cluster" / "systemd" / "duolog.service"
PAGE = ROOT / "docs" / "deploying.md"
NODES = [Pod("duolog", ordinal) for ordinal in range(3)]
MEMBERS = [Pod("etcd", ordinal) for ordinal in range(3)]
EXPOSURE_MAX = 20  # of 100, as systemd counts it


def test_manifests_are_valid() -> None:
    newest = kubernetes_validate.latest_version()
    kinds = [one["kind"] for one in documents()]
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(kinds)
    for one in documents():
        kubernetes_validate.validate(one, newest, strict=True)


def test_selectors_select_the_pods_of_their_sets() -> None:
    for pod in (NODES[0], MEMBERS[0]):
        spec = named("StatefulSet", pod.set_name)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["serviceName"] == named("Service", pod.set_name)["metadata"]["name"]
        selectors = [
            spec["selector"]["matchLabels"],
            named("Service", pod.set_name)["spec"]["selector"],
            named("PodDisruptionBudget", pod.set_name)["spec"]["selector"]["matchLabels"],
            named("NetworkPolicy", pod.set_name)["spec"]["podSelector"]["matchLabels"],
            *(
                one["labelSelector"]["matchLabels"]
                for one in spec["template"]["spec"]["topologySpreadConstraints"]
            ),
        ]
        assert selectors == [labels] * len(selectors)


@pytest.mark.parametrize("folder", ["nodes", "with-etcd"])
def test_kustomize_renders_them(folder: str) -> None:
    programs = {"kubectl": ["kubectl", "kustomize"], "kustomize": ["kustomize", "build"]}
    program = next((words for name, words in programs.items() if shutil.which(name)), None)
    if program is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run(
        [*program, str(FOLDER / folder)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "image: duolog:0" in done.stdout
    assert "name: duolog-" in done.stdout  # the ConfigMap, and the name under which it is used


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("DUOLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def loaded(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of a node with these variables, each of which must be a setting."""
    ours = {name: value for name, value in environment.items() if name.startswith("DUOLOG_")}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    config, origins = load()
    assert {f"environment {name}" for name in ours} <= {str(one) for one in origins.values()}
    return config


def test_settings_and_ports_are_those_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = NODES[1]
    config = loaded(pod.environment(), monkeypatch)
    assert config.node.name == pod.name
    assert config.node.advertise == f"{pod.host}:8081"
    assert config.ha.advertise == f"{pod.host}:10912"
    mounts = {one["name"]: one["mountPath"] for one in pod.container["volumeMounts"]}
    assert str(config.node.data).startswith(f"{mounts['data']}/")
    listens = (
        *(config.node.listen, config.node.frames_listen, config.metrics.listen),
        *(config.ha.listen, config.ha.frames_listen),
    )
    ports = {int(listen.rpartition(":")[2]) for listen in listens}
    assert {one["containerPort"] for one in pod.container["ports"]} == ports
    assert {one["port"] for one in named("Service", "duolog")["spec"]["ports"]} == ports
    rules = named("NetworkPolicy", "duolog")["spec"]["ingress"]
    assert {one["port"] for rule in rules for one in rule["ports"]} == ports
    probes = [pod.container[f"{name}Probe"]["grpc"]["port"] for name in ("startup", "readiness")]
    assert [*probes, pod.container["livenessProbe"]["grpc"]["port"]] == [8081] * 3
    assert config.node.listen.endswith(":8081")
    registry = [endpoint.partition(".")[0] for endpoint in config.registry.endpoints.split(",")]
    assert registry == [member.name for member in MEMBERS]


def unit() -> configparser.RawConfigParser:
    """The unit's settings; of those that it repeats, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_and_its_file_are_of_settings_that_a_node_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = unit()["Service"]
    environment = [
        word.partition("=")[::2]
        for line in UNIT.read_text().splitlines()
        if line.startswith("Environment=")
        for word in line.removeprefix("Environment=").split()
    ]
    variables = dict(environment)
    file = tmp_path / "duolog.toml"
    (written,) = (
        block.partition("```")[0]
        for block in PAGE.read_text().split("```toml\n")[1:]
        if "[node]" in block
    )
    file.write_text(written)
    assert variables.pop("DUOLOG_CONFIG") == "/etc/duolog/duolog.toml"
    monkeypatch.setenv("DUOLOG_CONFIG", str(file))
    config = loaded(variables, monkeypatch)
    assert str(config.node.data).startswith(f"/var/lib/{service['StateDirectory']}/")
    assert variables["NUMBA_CACHE_DIR"] == f"/var/cache/{service['CacheDirectory']}"
    assert tomllib.loads(written)["node"]["listen"] == config.node.listen
    assert str(EXIT_FENCED) in service["RestartPreventExitStatus"].split()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, sys.executable))  # it must be there
    for words in (["verify"], ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(copy)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(copy) not in done.stderr, done.stderr


def test_commands_of_the_page_name_what_exists() -> None:
    lines = console_lines(PAGE)
    applied = [line.split()[-1] for line in lines if " apply -k " in line]
    assert applied
    assert all((ROOT / folder / "kustomization.yaml").exists() for folder in applied)


# -- the same command lines, as processes of this machine ----------------------------------------


class Cluster:
    """Pods as processes: same commands, same variables, same ports, at addresses of loopback."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        network = random.SystemRandom().randrange(2, 250)  # other runs may have others
        self.addresses = {
            pod.name: f"127.0.{network}.{10 * number + pod.ordinal + 1}"
            for number, pods in enumerate((NODES, MEMBERS))
            for pod in pods
        }
        self.processes: dict[str, ChildProcess] = {}

    def environment(self, pod: Pod) -> dict[str, str]:
        """A pod's, with addresses for names and a directory of its own."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        found = {"PATH": path, "HOME": "/nonexistent"}
        for name, value in pod.environment().items():
            value = value.replace("0.0.0.0", self.addresses[pod.name])
            value = value.replace("/data/", f"{self.directory / pod.name}/")
            for other in (*NODES, *MEMBERS):
                for host in (other.host, f"{other.name}.{other.set_name}"):
                    value = value.replace(f"{host}:", f"{self.addresses[other.name]}:")
            found[name] = value
        assert NAMESPACE not in str({**found, "NAMESPACE": ""}), "every name has an address"
        return found

    def start(self, pod: Pod) -> None:
        """Its container's command."""
        process = ChildProcess(
            pod.name,
            pod.command(),
            self.directory / f"{pod.name}.log",
            environment=self.environment(pod),
        )
        process.start()
        self.processes[pod.name] = process

    def endpoint(self, pod: Pod) -> str:
        """Of the native API."""
        return f"{self.addresses[pod.name]}:8081"

    def hook(self, pod: Pod, name: str) -> "subprocess.CompletedProcess[str]":
        """Run a hook of its lifecycle. Its commands call 127.0.0.1:8081, which is the pod's."""
        command = pod.container["lifecycle"][name]["exec"]["command"]
        variables = self.environment(pod) | {"DUOLOG_ENDPOINTS": self.endpoint(pod)}
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=100, check=True
        )

    def is_serving(self, pod: Pod) -> bool:
        """What its probes ask."""
        with grpc.insecure_channel(self.endpoint(pod)) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=3
                )
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """All of them."""
        for process in self.processes.values():
            if process.running:
                process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_etcd()
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def replicas(client: duolog.sync.Client) -> dict[str, duolog.ReplicaRoute]:
    """The nodes of the group by name."""
    groups = client.admin.route().groups  # none before the first election
    return {replica.node: replica for group in groups for replica in group.replicas}


def in_sync(client: duolog.sync.Client) -> list[str]:
    """Names of the nodes that hold every acknowledged put; none where nobody can say."""
    try:
        return sorted(name for name, replica in replicas(client).items() if replica.in_sync)
    except duolog.DuologError:
        return []


def master(client: duolog.sync.Client) -> str:
    """Name of the master."""
    (group,) = client.admin.route().groups
    return group.master


@pytest.mark.long
@pytest.mark.process
def test_the_pods_run_as_processes_and_a_stop_hands_over_before(cluster: Cluster) -> None:
    for pod in NODES:
        cluster.start(pod)
    for pod in NODES:  # without etcd, and so without a master
        wait_until(partial(cluster.is_serving, pod), "probes succeed", pause=BLOCKING_SECONDS)
    for member in MEMBERS:
        cluster.start(member)
    names = sorted(pod.name for pod in NODES)
    endpoints = ",".join(map(cluster.endpoint, NODES))
    with duolog.sync.Client(endpoints) as client, client.producer() as producer:
        wait_until(lambda: in_sync(client) == names, "all nodes are in sync")
        for pod in NODES:
            assert "error" not in cluster.hook(pod, "postStart").stderr
        client.admin.create_topic("orders")
        stopping, failed, sent = threading.Event(), [], []

        def send() -> None:
            while not stopping.is_set():
                try:
                    sent.append(producer.send("orders", b"paid"))
                except duolog.DuologError as error:
                    failed.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            _roll(cluster, client)
        finally:
            stopping.set()
            sender.join()
        assert failed == []
        assert len({(receipt.queue_id, receipt.queue_offset) for receipt in sent}) == len(sent) > 0


def _roll(cluster: Cluster, client: duolog.sync.Client) -> None:
    """Restart each node as Kubernetes does: the master first, which is the hardest."""
    first = master(client)
    for pod in sorted(NODES, key=lambda pod: pod.name != first):
        done = cluster.hook(pod, "preStop")
        assert f"{pod.name} is drained" in done.stdout + done.stderr
        assert replicas(client)[pod.name].drained
        assert master(client) != pod.name
        assert cluster.processes[pod.name].stop() == 0
        cluster.start(pod)
        done = cluster.hook(pod, "postStart")
        assert f"{pod.name} is no longer drained" in done.stdout + done.stderr
        names = sorted(one.name for one in NODES)
        wait_until(lambda names=names: in_sync(client) == names, "it is in sync again")  # type: ignore[misc]
