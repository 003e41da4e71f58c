"""A real etcd of one or more members on one address, as Debian's etcd-server installs it."""

import shutil
import signal
import time
from pathlib import Path

from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from duolog_server.chaos.links import LOOPBACK, Place
from duolog_server.chaos.target import Unsupported
from duolog_server.ha.registry import RegistryError
from duolog_server.node.election.etcd import EtcdRegistry
from duolog_server.node.runtime.tls import Tls

READY_SECONDS = 60.0
# etcd grants no lease below one and a half of this, in whole seconds: so it grants one of 1 s.
ELECTION_MS = 600


class LocalEtcd:
    """An etcd cluster; members are numbered from 0."""

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        tls: Tls | None = None,
        *,
        election_ms: int = ELECTION_MS,
        place: Place = LOOPBACK,
    ) -> None:
        """tls: serve clients with this certificate, and ask them for one of its authority."""
        self._election_ms = election_ms
        self._place = place
        self.directory = directory = directory.absolute()
        self.tls = tls
        ports = free_ports(2 * members)
        self._clients, self._peers = ports[:members], ports[members:]
        self._members = [
            ChildProcess(f"m{k}", self._command(k), directory / f"etcd{k}.log")
            for k in range(members)
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """HOST:PORT of every member."""
        return tuple(f"{self._place.host}:{port}" for port in self._clients)

    @property
    def pids(self) -> list[int]:
        """Processes of the members."""
        return [member.pid for member in self._members]

    def start(self) -> None:
        """Start all members, wait until they answer. Raises Unsupported without etcd."""
        for member in range(len(self._clients)):
            self.start_member(member)
        registry = EtcdRegistry(self.endpoints, 1.0, self.tls)
        until = time.monotonic() + READY_SECONDS
        try:
            while True:
                try:
                    registry.get("/")
                    return
                except RegistryError as error:
                    if time.monotonic() > until:
                        raise RuntimeError(f"etcd does not answer: {error}") from None
                    time.sleep(0.05)
        finally:
            registry.close()

    def start_member(self, member: int) -> None:
        """Start one. Raises Unsupported."""
        if shutil.which("etcd") is None:
            raise Unsupported("etcd is not installed (apt-get install etcd-server)")
        self._members[member].start()

    def _command(self, member: int) -> list[str]:
        scheme = "http" if self.tls is None else "https"
        host = self._place.host
        client = f"{scheme}://{host}:{self._clients[member]}"
        peer = f"http://{host}:{self._peers[member]}"
        cluster = ",".join(f"m{k}=http://{host}:{p}" for k, p in enumerate(self._peers))
        return [
            *self._place.enter, "etcd", "--name", f"m{member}",
            "--data-dir", str(self.directory / f"etcd{member}"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, *self._tls_flags(),
            "--election-timeout", str(self._election_ms),
            "--heartbeat-interval", str(self._election_ms // 10),
        ]  # fmt: skip

    def _tls_flags(self) -> list[str]:
        if self.tls is None:
            return []
        return [
            "--cert-file", str(self.tls.cert), "--key-file", str(self.tls.key),
            "--trusted-ca-file", str(self.tls.ca), "--client-cert-auth",
        ]  # fmt: skip

    def kill(self, member: int = 0) -> None:
        """SIGKILL."""
        self._members[member].kill()

    def pause(self, member: int = 0) -> None:
        """SIGSTOP."""
        self._members[member].signal(signal.SIGSTOP)

    def resume(self, member: int = 0) -> None:
        """SIGCONT."""
        self._members[member].signal(signal.SIGCONT)

    def stop(self) -> None:
        """All members down, at once: nothing they hold is read again."""
        for member in self._members:
            if member.running:
                member.kill()
