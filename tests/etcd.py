"""A real etcd of one or more members on loopback, as Debian's etcd-server installs it."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ha.registry import RegistryError
from node.etcd import EtcdRegistry, EtcdTls

WHERE = "etcd is not installed (apt-get install etcd-server)"


def need_etcd() -> None:
    """Skip where there is no etcd; in CI that is a failure."""
    if shutil.which("etcd") is None:
        if os.environ.get("CI"):
            pytest.fail(WHERE)
        pytest.skip(WHERE)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Etcd:
    """An etcd cluster; members are numbered from 0."""

    def __init__(self, directory: Path, members: int = 1, tls: EtcdTls | None = None) -> None:
        """tls: serve clients with this certificate, and ask them for one of its authority."""
        self.directory = directory
        self.tls = tls
        ports = free_ports(2 * members)
        self._clients, self._peers = ports[:members], ports[members:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self._clients)

    def start(self) -> None:
        for member in range(len(self._clients)):
            self.start_member(member)
        registry = EtcdRegistry(self.endpoints, 1.0, self.tls)
        until = time.monotonic() + 30
        while True:
            try:
                registry.get("/")
                break
            except RegistryError:
                assert time.monotonic() < until, "etcd does not answer"
                time.sleep(0.05)
        registry.close()

    def start_member(self, member: int) -> None:
        scheme = "http" if self.tls is None else "https"
        client = f"{scheme}://127.0.0.1:{self._clients[member]}"
        peer = f"http://127.0.0.1:{self._peers[member]}"
        cluster = ",".join(f"m{k}=http://127.0.0.1:{p}" for k, p in enumerate(self._peers))
        log = self.directory / f"etcd{member}.log"
        with log.open("ab") as output:
            self._processes[member] = subprocess.Popen(
                [
                    "etcd", "--name", f"m{member}",
                    "--data-dir", str(self.directory / f"etcd{member}"),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", cluster, *self._tls_flags(),
                ],
                stdout=output,
                stderr=output,
            )  # fmt: skip

    def _tls_flags(self) -> list[str]:
        if self.tls is None:
            return []
        return [
            "--cert-file", str(self.tls.cert), "--key-file", str(self.tls.key),
            "--trusted-ca-file", str(self.tls.ca), "--client-cert-auth",
        ]  # fmt: skip

    def kill(self, member: int = 0) -> None:
        process = self._processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def pause(self, member: int = 0) -> None:
        self._processes[member].send_signal(signal.SIGSTOP)

    def resume(self, member: int = 0) -> None:
        self._processes[member].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self._processes.values():
            process.wait(10)
        self._processes.clear()
