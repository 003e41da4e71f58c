"""A group of node processes on one machine, with an etcd of its own.

For faults of links, each has a network of its own (root): see `chaos.links`.

With `disk_bytes` every node has a small disk: an ext4 image on a loop device (root), which can be
full, and which can lose power: the processes are killed, the images copied as the platters have
them, and the copies mounted in their place.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint

from duolog_server.chaos.links import LOOPBACK, Links, Place
from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.chaos.logdigest import digest
from duolog_server.chaos.target import Unsupported

FILLER = "filler"
CUTS = frozenset(("disconnect", "cut_one_way"))
ETCD_MEMBERS = 3  # of a cluster that does without one of them


class ProcessTarget:
    """Nodes a, b, c as child processes."""

    def __init__(
        self,
        directory: Path,
        *,
        etcd_members: int = 1,
        lease_seconds: int = 3,
        disk_bytes: int = 0,
        flags: tuple[str, ...] = (),
    ) -> None:
        """directory: empty, and not removed here. flags: further ones of `node start`."""
        self.directory = directory
        self.lease_seconds = lease_seconds
        self.nodes: tuple[str, ...] = ("a", "b", "c")
        self._disk_bytes = disk_bytes
        self._generation = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._etcd_members, self._flags = etcd_members, flags
        self._links: Links | None = None
        self._joined = 0
        self._hung: set[str] = set()
        self._lay_out()

    def _lay_out(self) -> None:
        """Say where everything is to run."""
        self._etcd = LocalEtcd(self.directory, self._etcd_members, place=self._place("etcd"))
        self._nodes = {name: self._node(name) for name in self.nodes}

    def _place(self, name: str) -> Place:
        return LOOPBACK if self._links is None else self._links.place(name)

    def _node(self, name: str) -> ChildNode:
        place = self._place(name)
        made = ChildNode(
            self._data(name),
            "--role", "AUTO",
            "--registry", ",".join(self._etcd.endpoints),
            "--set", f"registry.lease_seconds={self.lease_seconds}",
            "--ha-listen", _at(place, free_endpoint()),
            *self._flags,
            name=name,
            log=self.directory / f"{name}.log",
        )  # fmt: skip
        made.endpoint, made.enter = _at(place, made.endpoint), place.enter
        return made

    # -- life ----------------------------------------------------------------------------------

    def prepare(self, kinds: Collection[str]) -> None:
        """Check that these faults can be struck here. Raises Unsupported."""
        for kind in kinds:
            reason = self._why_not(kind)
            if reason:
                raise Unsupported(reason)
        if self._disk_bytes and os.geteuid() != 0:
            raise Unsupported("disks on loop devices need root")
        if not CUTS.isdisjoint(kinds):
            self._links = Links(("etcd", *self.nodes))
            self._links.start()
            self._lay_out()
        wanted = {"etcd": "etcd-server"}
        if self._disk_bytes:
            wanted |= {"mkfs.ext4": "e2fsprogs", "mount": "mount"}
        for program, package in wanted.items():
            if shutil.which(program) is None:
                raise Unsupported(f"{program} is not installed (apt-get install {package})")

    def _why_not(self, kind: str) -> str:
        """Why a fault cannot be struck on this target, empty where it can."""
        if kind in ("disk_full", "disk_hang", "power_cut_all") and not self._disk_bytes:
            return f"{kind} needs a disk for each node: --disks MIB"
        if kind == "etcd_kill" and len(self._etcd.endpoints) < ETCD_MEMBERS:
            return f"etcd_kill needs {ETCD_MEMBERS} members of etcd: --etcd {ETCD_MEMBERS}"
        if kind == "member" and self._disk_bytes:
            return "member needs nodes without disks of their own: no --disks"
        return ""

    def start(self) -> None:
        """Disks, etcd, nodes."""
        self._etcd.start()
        for name in self.nodes:
            if self._disk_bytes:
                self._make_disk(name)
            self._nodes[name].start()
        for name in self.nodes:
            self._nodes[name].wait_port()

    def stop(self) -> None:
        """Everything down, disks unmounted."""
        for name in sorted(self._hung):  # a process that waits for one cannot be killed
            self.free_hung_disk(name)
        for node in self._nodes.values():
            node.stop()
        self._etcd.stop()
        for name in self.nodes:
            self._unmount(name)
        if self._links is not None:
            self._links.stop()

    @property
    def registry(self) -> tuple[str, ...]:
        """HOST:PORT of etcd's members."""
        return self._etcd.endpoints

    def endpoint(self, node: str) -> str:
        """Endpoint of the client API."""
        return self._nodes[node].endpoint

    # -- faults --------------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """SIGKILL."""
        self._nodes[node].kill()

    def revive(self, node: str) -> None:
        """Start again."""
        self._nodes[node].start()
        self._nodes[node].wait_port()

    def restart(self, node: str) -> None:
        """SIGTERM, and start."""
        self._nodes[node].stop()
        self.revive(node)

    def pause(self, node: str) -> None:
        """SIGSTOP."""
        self._nodes[node].signal(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """SIGCONT."""
        self._nodes[node].signal(signal.SIGCONT)

    def cut(self, node: str, other: str, *, both: bool) -> None:
        """Drop packets in the node's own network."""
        self._known_links().cut(node, other, both=both)

    def mend(self, node: str) -> None:
        """Undo all cuts of a node."""
        self._known_links().mend(node)

    def _known_links(self) -> Links:
        if self._links is None:
            raise Unsupported("nodes have no networks of their own: prepare for cuts first")
        return self._links

    def join(self) -> str:
        """Start a node on an empty directory."""
        self._joined += 1
        name = f"n{self._joined}"
        self._nodes[name] = self._node(name)
        self.revive(name)
        self.nodes += (name,)
        return name

    def leave(self, node: str) -> None:
        """SIGTERM, and its directory is removed."""
        self._nodes.pop(node).stop()
        self.nodes = tuple(name for name in self.nodes if name != node)
        shutil.rmtree(self._data(node))

    def kill_etcd(self, member: int) -> None:
        """SIGKILL of an etcd member."""
        self._etcd.kill(member)

    def revive_etcd(self, member: int) -> None:
        """Start a member."""
        self._etcd.start_member(member)

    # -- disks ---------------------------------------------------------------------------------

    def _data(self, node: str) -> Path:
        return self.directory / node / "store" if self._disk_bytes else self.directory / node

    def _image(self, node: str) -> Path:
        return self.directory / f"{node}.{self._generation}.img"

    def _make_disk(self, node: str) -> None:
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
        # A buffer would be written once more when the file is closed.
        with (self.directory / node / FILLER).open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"\0" * (1 << 20))
            except OSError:
                return

    def free_disk(self, node: str) -> None:
        """The file goes."""
        (self.directory / node / FILLER).unlink()

    def hang_disk(self, node: str) -> None:
        """Freeze the file system: writers wait in the kernel."""
        subprocess.run(["fsfreeze", "-f", str(self.directory / node)], check=True, timeout=60)
        self._hung.add(node)

    def free_hung_disk(self, node: str) -> None:
        """Thaw it."""
        subprocess.run(["fsfreeze", "-u", str(self.directory / node)], check=True, timeout=60)
        self._hung.discard(node)

    def power_cut_all(self) -> None:
        """Kill all nodes at once, and restart with what their platters had at that moment."""
        before = self._generation
        for node in self.nodes:
            if self._nodes[node].running:
                self._nodes[node].signal(signal.SIGKILL)
        # What the file systems on the images have not written back is in memory only: the copies
        # never see it.
        for node in self.nodes:
            old = self.directory / f"{node}.{before}.img"
            new = self.directory / f"{node}.{before + 1}.img"
            subprocess.run(["cp", "--sparse=always", str(old), str(new)], check=True)
        for node in self.nodes:
            self._nodes[node].stop()
            self._unmount(node)
        self._generation = before + 1
        for node in self.nodes:
            (self.directory / f"{node}.{before}.img").unlink()
            self._mount(node)
            self._nodes[node].start()
        for node in self.nodes:
            self._nodes[node].wait_port()

    # -- facts ---------------------------------------------------------------------------------

    def log_digest(self, node: str, end: int) -> str:
        """Digest of the log's bytes."""
        return digest(self._data(node), end)

    def collect(self, directory: Path) -> None:
        """Logs lie in the target's directory."""
        for log in self.directory.glob("*.log"):
            shutil.copy(log, directory / log.name)


def _at(place: Place, endpoint: str) -> str:
    """The port of an endpoint on the host of a place."""
    return f"{place.host}:{endpoint.rpartition(':')[2]}"
