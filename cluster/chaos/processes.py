"""A group of node processes on loopback, with an etcd of its own.

With `disk_bytes` every node has a small disk: an ext4 image on a loop device (root), which can be
full, and which can lose power: the processes are killed, the images copied as the platters have
them, and the copies mounted in their place.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cluster.chaos.logdigest import digest
from cluster.chaos.target import Unsupported

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
FILLER = "filler"


class ProcessTarget:
    """Nodes a, b, c as child processes."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        etcd_members: int = 1,
        lease_seconds: int = 3,
        disk_bytes: int = 0,
        flags: tuple[str, ...] = (),
    ) -> None:
        """directory: empty, and removed by nobody here. flags: further ones of `node start`."""
        self.directory = directory
        self.nodes = tuple("abcdefgh"[:nodes])
        self._disk_bytes = disk_bytes
        self._members = etcd_members
        ports = _free_ports(2 * nodes + 2 * etcd_members)
        self._listen = dict(zip(self.nodes, ports[:nodes], strict=True))
        self._ha = dict(zip(self.nodes, ports[nodes : 2 * nodes], strict=True))
        self._etcd_ports = ports[2 * nodes :]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._generation = 0
        self._flags = (
            "--role", "AUTO",
            "--registry", ",".join(f"127.0.0.1:{p}" for p in self._etcd_ports[:etcd_members]),
            "--set", f"registry.lease_seconds={lease_seconds}",
            *flags,
        )  # fmt: skip

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Disks, etcd, nodes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for member in range(self._members):
            self.revive_etcd(member)
        for node in self.nodes:
            if self._disk_bytes:
                self._make_disk(node)
            self._spawn(node)
        for node in self.nodes:
            self._wait_port(node)

    def stop(self) -> None:
        """Everything down, disks unmounted."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
        self._processes.clear()
        for node in self.nodes:
            self._unmount(node)

    def endpoint(self, node: str) -> str:
        """Of the client API."""
        return f"127.0.0.1:{self._listen[node]}"

    def _spawn(self, node: str) -> None:
        command = [sys.executable, "-m", "node.cli.main", "node", "start", "--name", node]
        command += ["--data", str(self._data(node)), "--listen", self.endpoint(node)]
        command += ["--ha-listen", f"127.0.0.1:{self._ha[node]}", *self._flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DUOLOG_")}
        with (self.directory / f"{node}.log").open("ab") as output:
            self._processes[node] = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment
            )

    def _wait_port(self, node: str) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if self._processes[node].poll() is not None:
                text = (self.directory / f"{node}.log").read_text(errors="replace")
                raise RuntimeError(f"node {node} ended:\n{text[-2000:]}")
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex(("127.0.0.1", self._listen[node])) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"node {node} is not ready within {READY_SECONDS:g} s")

    # -- faults --------------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """SIGKILL."""
        process = self._processes[node]
        if process.poll() is not None:
            raise RuntimeError(f"node {node} was not running")
        process.kill()
        process.wait(STOP_SECONDS)

    def revive(self, node: str) -> None:
        """Start again."""
        self._spawn(node)
        self._wait_port(node)

    def restart(self, node: str) -> None:
        """SIGTERM, and start."""
        process = self._processes[node]
        process.terminate()
        process.wait(STOP_SECONDS)
        self.revive(node)

    def pause(self, node: str) -> None:
        """SIGSTOP."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """SIGCONT."""
        self._processes[node].send_signal(signal.SIGCONT)

    def cut(self, node: str, other: str, *, both: bool) -> None:
        """Processes of one host share its network."""
        raise Unsupported("links are cut between containers only")

    def mend(self, node: str) -> None:
        """Nothing is cut."""

    def kill_etcd(self, member: int) -> None:
        """SIGKILL of an etcd member."""
        process = self._processes.pop(f"etcd{member}")
        process.kill()
        process.wait(STOP_SECONDS)

    def revive_etcd(self, member: int) -> None:
        """Start a member."""
        clients, peers = self._etcd_ports[: self._members], self._etcd_ports[self._members :]
        client, peer = f"http://127.0.0.1:{clients[member]}", f"http://127.0.0.1:{peers[member]}"
        everybody = ",".join(f"m{k}=http://127.0.0.1:{port}" for k, port in enumerate(peers))
        if shutil.which("etcd") is None:
            raise Unsupported("etcd is not installed (apt-get install etcd-server)")
        with (self.directory / f"etcd{member}.log").open("ab") as output:
            self._processes[f"etcd{member}"] = subprocess.Popen(
                [
                    "etcd", "--name", f"m{member}",
                    "--data-dir", str(self.directory / f"etcd{member}"),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", everybody,
                ],
                stdout=output,
                stderr=output,
            )  # fmt: skip

    # -- disks ---------------------------------------------------------------------------------

    def _data(self, node: str) -> Path:
        return self.directory / node / "store" if self._disk_bytes else self.directory / node

    def _image(self, node: str) -> Path:
        return self.directory / f"{node}.{self._generation}.img"

    def _make_disk(self, node: str) -> None:
        if os.geteuid() != 0:
            raise Unsupported("disks on loop devices need root")
        image = self._image(node)
        with image.open("wb") as made:
            made.truncate(self._disk_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        self._mount(node)

    def _mount(self, node: str) -> None:
        where = self.directory / node
        where.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", str(self._image(node)), str(where)], check=True)

    def _unmount(self, node: str) -> None:
        if self._disk_bytes and os.path.ismount(self.directory / node):
            subprocess.run(["umount", "-l", str(self.directory / node)], check=True)

    def fill_disk(self, node: str) -> None:
        """A file takes all the room there is."""
        if not self._disk_bytes:
            raise Unsupported("a disk can be filled where nodes have disks of their own")
        with (self.directory / node / FILLER).open("wb") as filler:
            try:
                while True:
                    filler.write(b"\0" * (1 << 20))
                    filler.flush()
            except OSError:
                return

    def free_disk(self, node: str) -> None:
        """The file goes."""
        (self.directory / node / FILLER).unlink()

    def power_cut_all(self) -> None:
        """Kill all nodes at once, and go on with what their platters had at that moment."""
        if not self._disk_bytes:
            raise Unsupported("power is cut where nodes have disks of their own")
        before = self._generation
        for node in self.nodes:
            self._processes[node].kill()
        # What the file systems on the images have not written back is in memory only: the copies
        # never see it.
        for node in self.nodes:
            old = self.directory / f"{node}.{before}.img"
            new = self.directory / f"{node}.{before + 1}.img"
            subprocess.run(["cp", "--sparse=always", str(old), str(new)], check=True)
        for node in self.nodes:
            self._processes[node].wait(STOP_SECONDS)
            self._unmount(node)
        self._generation = before + 1
        for node in self.nodes:
            (self.directory / f"{node}.{before}.img").unlink()
            self._mount(node)
            self._spawn(node)
        for node in self.nodes:
            self._wait_port(node)

    # -- facts ---------------------------------------------------------------------------------

    def log_digest(self, node: str, end: int) -> str:
        """Of the log's bytes."""
        return digest(self._data(node), end)

    def collect(self, directory: Path) -> None:
        """Logs lie in the target's directory."""
        for log in self.directory.glob("*.log"):
            shutil.copy(log, directory / log.name)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
