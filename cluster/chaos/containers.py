"""The compose cluster as a target: what `make up` started is broken through the Docker engine.

One-way cuts are packet filters in a node's own network, set by a helper container beside it.
"""

import contextlib
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import docker
import docker.errors

from duolog_server.chaos.target import Unsupported

PROJECT = "duolog"
HELPER_IMAGE = "duolog-chaos:bookworm"
MAKE_HELPER = str(Path(__file__).resolve().parent.parent / "chaos-image")
READY_SECONDS = 60.0
MEMBERS = "member needs --target processes: the compose file says which nodes there are"
DISKS = "disk_full, disk_hang, power_cut_all need --target processes --disks MIB: one disk for all"
ETCD = ("etcd1", "etcd2", "etcd3")


class ContainerTarget:
    """Nodes a1, a2, a3 of a compose project."""

    def __init__(self, project: str = PROJECT) -> None:
        """Raises DockerException if no engine answers, RuntimeError if the cluster is not up."""
        self.nodes: tuple[str, ...] = ("a1", "a2", "a3")
        self._project = project
        self._docker = docker.from_env(timeout=30)
        self._helpers: dict[str, Any] = {}
        self._disconnected: set[str] = set()
        self._addresses = {service: self._address(service) for service in (*ETCD, *self.nodes)}

    def _container(self, service: str) -> Any:
        labels = [
            f"com.docker.compose.project={self._project}",
            f"com.docker.compose.service={service}",
        ]
        found = self._docker.containers.list(all=True, filters={"label": labels})
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} containers of service {service}: run make up")
        return found[0]

    def prepare(self, kinds: Collection[str]) -> None:
        """Check that these faults can be injected; build the helper image if needed.

        Raises Unsupported.
        """
        if not {"disk_full", "disk_hang", "power_cut_all"}.isdisjoint(kinds):
            raise Unsupported(DISKS)
        if "member" in kinds:
            raise Unsupported(MEMBERS)
        if "cut_one_way" not in kinds:
            return
        self._make_helper_image()
        self.start()  # the helper needs a node's network
        try:
            self._run(self._helper(self.nodes[0]), "iptables -w -L INPUT")
        except (RuntimeError, docker.errors.DockerException) as error:
            raise Unsupported(f"no packets can be filtered in a node's network: {error}") from None

    def _make_helper_image(self) -> None:
        try:
            self._docker.images.get(HELPER_IMAGE)
        except docker.errors.ImageNotFound:
            made = subprocess.run([MAKE_HELPER], capture_output=True, text=True, check=False)
            if made.returncode:
                told = (made.stderr.strip() or "it says nothing").splitlines()[-1]
                raise Unsupported(
                    f"cannot make the image {HELPER_IMAGE} (cluster/chaos-image): {told}"
                ) from None

    def start(self) -> None:
        """The nodes run already; undo what an earlier run left behind."""
        for service in (*ETCD, *self.nodes):
            container = self._container(service)
            if container.status == "paused":
                container.unpause()
            elif container.status != "running":
                container.start()
        for node in self.nodes:
            self.mend(node)

    def stop(self) -> None:
        """Undo remaining faults; the cluster keeps running."""
        for node in self.nodes:
            self.mend(node)
        self.start()

    def endpoint(self, node: str) -> str:
        """Endpoint of the client API."""
        return f"{self._addresses[node]}:8081"

    def _address(self, service: str) -> str:
        """The address that the compose file gives a service in the cluster's network."""
        networks = self._container(service).attrs["NetworkSettings"]["Networks"]
        if len(networks) != 1:
            raise RuntimeError(f"{service} is in {len(networks)} networks, not in one: make up")
        (network,) = networks.values()
        return str(network["IPAMConfig"]["IPv4Address"])

    # -- faults --------------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """SIGKILL; the engine does not restart a container that was killed by hand."""
        self._drop_helper(node)
        self._container(node).kill("SIGKILL")
        self._until(node, "exited")

    def revive(self, node: str) -> None:
        """Start again."""
        self._container(node).start()
        self._until(node, "running")

    def restart(self, node: str) -> None:
        """SIGTERM, and start."""
        self._drop_helper(node)
        self._container(node).restart(timeout=15)

    def pause(self, node: str) -> None:
        """The cgroup freezer."""
        self._container(node).pause()

    def resume(self, node: str) -> None:
        """Thaw."""
        self._container(node).unpause()

    def cut(self, node: str, other: str, *, both: bool) -> None:
        """Drop packets in the node's own network; from and to everybody by disconnecting it."""
        if other == "all" and both:
            self._network().disconnect(self._container(node))
            self._disconnected.add(node)
            return
        helper = self._helper(node)
        for source in self._sources(node, other):
            self._run(helper, f"iptables -I INPUT -s {source} -j DROP")
            if both:
                self._run(helper, f"iptables -I OUTPUT -d {source} -j DROP")

    def mend(self, node: str) -> None:
        """Connect again, and no more filters."""
        if node in self._disconnected:
            self._network().connect(self._container(node), ipv4_address=self._addresses[node])
            self._disconnected.discard(node)
        helper = self._helpers.get(node)
        if helper is not None:
            self._run(helper, "iptables -F")

    def kill_etcd(self, member: int) -> None:
        """SIGKILL of an etcd member."""
        self._container(ETCD[member % 3]).kill("SIGKILL")
        self._until(ETCD[member % 3], "exited")

    def revive_etcd(self, member: int) -> None:
        """Start it again."""
        self._container(ETCD[member % 3]).start()

    def fill_disk(self, node: str) -> None:
        """All containers share the host's disk."""
        raise Unsupported(DISKS)

    def free_disk(self, node: str) -> None:
        """Fill nothing."""

    def hang_disk(self, node: str) -> None:
        """All containers share the host's disk."""
        raise Unsupported(DISKS)

    def free_hung_disk(self, node: str) -> None:
        """No disk hangs."""

    def join(self) -> str:
        """The compose file says which nodes there are."""
        raise Unsupported(MEMBERS)

    def leave(self, node: str) -> None:
        """None has joined."""

    def power_cut_all(self) -> None:
        """All containers share the host's disk."""
        raise Unsupported(DISKS)

    # -- parts ---------------------------------------------------------------------------------

    def _sources(self, node: str, other: str) -> list[str]:
        if other == "etcd":
            return [self._addresses[name] for name in ETCD]
        if other == "all":
            return [address for name, address in self._addresses.items() if name != node]
        return [self._addresses[other]]

    def _network(self) -> Any:
        label = f"com.docker.compose.project={self._project}"
        (found,) = self._docker.networks.list(filters={"label": label})
        return found

    def _helper(self, node: str) -> Any:
        if node not in self._helpers:
            self._helpers[node] = self._docker.containers.run(
                HELPER_IMAGE,
                network_mode=f"container:{self._container(node).id}",
                cap_add=["NET_ADMIN"],
                detach=True,
                remove=True,
                labels={"duolog.chaos": self._project},
            )
        return self._helpers[node]

    def _drop_helper(self, node: str) -> None:
        """A node's network ends with its container; so does the helper's part in it."""
        helper = self._helpers.pop(node, None)
        if helper is not None:
            with contextlib.suppress(docker.errors.APIError):
                helper.kill()

    @staticmethod
    def _run(helper: Any, command: str) -> None:
        code, output = helper.exec_run(command)
        if code:
            raise RuntimeError(f"{command}: {output.decode(errors='replace').strip()}")

    def _until(self, service: str, status: str) -> None:
        until = time.monotonic() + READY_SECONDS
        while self._container(service).status != status:
            if time.monotonic() > until:
                raise RuntimeError(f"{service} is not {status} within {READY_SECONDS:g} s")
            time.sleep(0.02)

    def log_digest(self, node: str, end: int) -> str:
        """Digest of the log's bytes, computed in the container."""
        source = (Path(__file__).parent / "logdigest.py").read_text()
        command = ["python", "-c", source, "/data/store", str(end)]
        code, output = self._container(node).exec_run(command)
        if code:
            raise RuntimeError(f"no digest of {node}: {output.decode(errors='replace')[-500:]}")
        return str(output.decode().strip())

    def collect(self, directory: Path) -> None:
        """The containers' logs."""
        for service in (*ETCD, *self.nodes):
            text = self._container(service).logs(tail=20_000)
            (directory / f"{service}.log").write_bytes(text)

    def close(self) -> None:
        """Remove the helpers."""
        for node in list(self._helpers):
            self._drop_helper(node)
