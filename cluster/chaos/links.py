"""A network of its own for each process of a target, so that single links can be cut.

Each process is in a network namespace, and all of these hang on a bridge that leads nowhere else.
Cuts are packet filters in the namespace of the process that hears nothing any more. Linux, root.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from duolog_server.chaos.target import Unsupported

PROGRAMS = {"ip": "iproute2", "iptables": "iptables"}
INSIDE = "eth0"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: its address, and the words before its command."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


LOOPBACK = Place()


class Links:
    """Namespaces, by the names of their processes. 198.18.0.0/15 is for tests of networks."""

    def __init__(self, names: Iterable[str]) -> None:
        """Nothing exists before `start`. Names are short: they are part of an interface's name."""
        self._tag = f"dl{os.getpid() % 100_000}"
        self._net = f"198.18.{os.getpid() % 250}"
        self._hub = self._space("hub")
        self._numbers = {name: number for number, name in enumerate(names, 2)}
        self._made = False

    def place(self, name: str) -> Place:
        """Where a process is to run."""
        return Place(self._address(name), ("ip", "netns", "exec", self._space(name)))

    def start(self) -> None:
        """Make them all. Raises Unsupported."""
        if os.geteuid() != 0:
            raise Unsupported("a network for each node needs root")
        for program, package in PROGRAMS.items():
            if shutil.which(program) is None:
                raise Unsupported(f"{program} is not installed (apt-get install {package})")
        self._made = True
        try:
            self._make()
        except RuntimeError as error:
            self.stop()
            raise Unsupported(f"no network can be made for a node: {error}") from None

    def _make(self) -> None:
        # The bridge is in a namespace, too: this machine's own filters do not apply to it.
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "hub", "up")
        _run(
            "ip", "link", "add", self._tag, "type", "veth", "peer", "name", "v1", "netns", self._hub
        )
        _run("ip", "address", "add", f"{self._net}.1/24", "dev", self._tag)
        _run("ip", "link", "set", self._tag, "up")
        _run("ip", "-n", self._hub, "link", "set", "v1", "master", "hub", "up")
        for name, number in self._numbers.items():
            space, outside = self._space(name), f"v{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            peer = ("peer", "name", INSIDE, "netns", space)
            _run("ip", "-n", self._hub, "link", "add", outside, "type", "veth", *peer)
            _run("ip", "-n", self._hub, "link", "set", outside, "master", "hub", "up")
            _run("ip", "-n", space, "address", "add", f"{self._address(name)}/24", "dev", INSIDE)
            _run("ip", "-n", space, "link", "set", INSIDE, "up")
        self.mend(next(iter(self._numbers)))  # packets can be filtered

    def stop(self) -> None:
        """Remove them, as far as they exist. A link goes with the namespace of one of its ends."""
        if not self._made:
            return
        self._made = False
        for space in (*map(self._space, self._numbers), self._hub):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=30)

    # -- faults --------------------------------------------------------------------------------

    def cut(self, name: str, other: str, *, both: bool) -> None:
        """Drop what `other` ("all": every other process here) sends to a process; both: and back.

        Cut off from all in both directions, it hears nobody else either, clients included.
        """
        if other == "all" and both:
            self._filter(name, "-I", "INPUT", "-i", INSIDE, "-j", "DROP")
            self._filter(name, "-I", "OUTPUT", "-o", INSIDE, "-j", "DROP")
            return
        sources = [n for n in self._numbers if n != name] if other == "all" else [other]
        for source in sources:
            address = self._address(source)
            self._filter(name, "-I", "INPUT", "-s", address, "-j", "DROP")
            if both:
                self._filter(name, "-I", "OUTPUT", "-d", address, "-j", "DROP")

    def mend(self, name: str) -> None:
        """Undo all cuts of a process."""
        self._filter(name, "-F")

    def _filter(self, name: str, *words: str) -> None:
        _run("ip", "netns", "exec", self._space(name), "iptables", "-w", *words)

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _address(self, name: str) -> str:
        return f"{self._net}.{self._numbers[name]}"


def _run(*command: str) -> None:
    """Run a command to its end. Raises RuntimeError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
