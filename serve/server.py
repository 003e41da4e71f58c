"""A node's process: build the broker, serve, stop cleanly on a signal, fall on a failed disk."""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import grpc.aio
import structlog
from duolog import __version__
from duolog._background import all_of
from duolog.wire import duolog_pb2
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from duolog_server.compat.migration.state import check_served
from duolog_server.ha.registry import Registry
from duolog_server.node.api.append_access import FramesAuthenticator
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.api.health import HealthService
from duolog_server.node.api.native import (
    appends_of,
    changes_of,
    guard_of,
    moves_methods,
    native_methods,
)
from duolog_server.node.api.reservedport import IN_USE, ListenError, ReservedPort
from duolog_server.node.api.timing import timed_methods
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import EXIT_FENCED, Broker
from duolog_server.node.election.failover import Candidate, FailoverService
from duolog_server.node.identity.access.access import Access, access_of
from duolog_server.node.moving.othergroups import NodeMarks
from duolog_server.node.net.frames.server import FramesServer
from duolog_server.node.net.grpc.options import client_port
from duolog_server.node.net.grpc.receive_limit.ledger import Ledger
from duolog_server.node.net.grpc.server import serve as grpc_server
from duolog_server.node.net.methods import Methods
from duolog_server.node.net.tls import ClientTls
from duolog_server.node.replication.framesport import FramesPort
from duolog_server.node.replication.masterstream import ReplicationService
from duolog_server.node.runtime.cautions import EVERY_ADDRESS, cautions, unreached
from duolog_server.node.runtime.config import Config, ConfigError, without_login
from duolog_server.node.runtime.consoleprocess import ConsoleOptions, ConsoleProcess
from duolog_server.node.runtime.logs import configure_logging
from duolog_server.node.runtime.memory import keep_trimmed
from duolog_server.node.runtime.openfiles import connections_that_fit, raise_limit
from duolog_server.node.runtime.stops import on_stop
from duolog_server.node.runtime.storemaking import disk_of, make_store
from duolog_server.store.errors import StoreError
from duolog_server.store.record import Host
from duolog_server.store.status import BrokerRole

if TYPE_CHECKING:
    from duolog_server.compat.grpc.service import MessagingService
    from duolog_server.compat.hawire.server import SlavesServer
    from duolog_server.compat.remoting.port.server import RemotingServer
    from duolog_server.compat.remoting.replicas import SlavesPort
    from duolog_server.compat.remoting.service import RemotingService
    from duolog_server.node.metrics.nodefacts import Ports
    from duolog_server.node.metrics.server import MetricsServer
    from duolog_server.node.traces.exporting import SpanExport
    from duolog_server.node.traces.recorder import Recorder

log = structlog.get_logger("duolog.node")

GRACE_SECONDS = 2.0
NOTE_SECONDS = 0.5
SHORT_CALLS_MAX = 4096  # over gRPC at a time, beside those that wait for messages
# Many calls that wait are many objects that stay: looking at all of them takes 100 ms and more, and
# by default happens whenever a quarter has come new. Here it is after a million new objects. Those
# that are newer are looked at 6,000 at a time: that takes about a millisecond.
GC_THRESHOLDS = 2000, 2, 165
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS_MAX = 2
SERVICES = (
    "duolog.v1.Messages",
    "duolog.v1.Groups",
    "duolog.v1.Admin",
    "duolog.v1.Access",
)


def store_host_of(listen: str) -> Host:
    """The address that message ids carry."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        try:
            address = socket.gethostbyname(host)
        except OSError:
            address = "127.0.0.1"
    return Host(EVERY_ADDRESS.get(address, address), int(port))


def _add_port(
    server: grpc.aio.Server, reserved: ReservedPort, credentials: grpc.ServerCredentials | None
) -> None:
    """Listen on a reserved port. Raises ListenError."""
    try:
        if credentials is None:
            port = server.add_insecure_port(reserved.address)
        else:
            port = server.add_secure_port(reserved.address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ListenError(f"cannot listen on {reserved.address}: {IN_USE}")


@contextlib.contextmanager
def _listening(reserved: ReservedPort) -> Iterator[None]:
    """Raise ListenError, which names the port, instead of OSError."""
    try:
        yield
    except OSError:
        raise ListenError(f"cannot listen on {reserved.address}: {IN_USE}") from None


@contextlib.contextmanager
def _vip_named(is_remoting: bool = True) -> Iterator[None]:
    """Say of the remoting port that a node beside this one may have it for its VIP channel."""
    try:
        yield
    except ListenError as error:
        if not is_remoting:
            raise
        hint = (
            "a node whose remoting.listen is two ports above has it if remoting.vip_channel is on"
        )
        raise ListenError(f"{error} ({hint})") from None


async def _stop(server: grpc.aio.Server) -> None:
    await server.stop(GRACE_SECONDS)


def load_program(config: Config) -> None:
    """Load what a start would load on its way, for one that others wait for."""
    names = []
    if config.remoting.listen:
        names += [
            "duolog_server.compat.remoting.guarding.authenticator",
            "duolog_server.compat.remoting.port.server",
        ]
        names += ["duolog_server.compat.remoting.service"]
    if config.rocketmq.enable:
        names += [
            "duolog_server.compat.grpc.protocol.stubs",
            "duolog_server.compat.grpc.apis",
            "duolog_server.compat.grpc.service",
        ]
    for name in names:
        with contextlib.suppress(ImportError):  # the start says what it lacks
            importlib.import_module(name)


class Node:
    """A node in this process: for the command line, and for tests that run one inside."""

    def __init__(self, config: Config, registry: Registry | None = None) -> None:
        """registry: in the place of the configured one, for several nodes in one process."""
        self.config = config
        self._given_registry = registry
        self.broker: Broker | None = None
        self._server: grpc.aio.Server | None = None
        self._health = HealthService()
        self.port = 0
        self.tls_port = 0
        self.ha_port = 0
        self.rocketmq: MessagingService | None = None
        self._replication: ReplicationService | None = None
        self.failover: FailoverService | None = None
        self._frames: FramesServer | None = None
        self._access: Access | None = None
        self._guard: MethodGuard | None = None
        self._native = Methods()
        self.remoting: RemotingServer | None = None
        self._remoting_service: RemotingService | None = None
        self.rocketmq_slaves: SlavesServer | None = None
        self.metrics: MetricsServer | None = None
        self.console: ConsoleProcess | None = None
        self._spans: SpanExport | None = None
        self._ports: dict[str, ReservedPort] = {}

    async def start(self) -> None:
        """Recover, listen, serve. Raises StoreError, OSError, ConfigError or ListenError.

        No port accepts a connection before the directory is locked and recovered.
        """
        self.config.check()
        with contextlib.ExitStack() as stack:
            for name, address in self._addresses().items():
                if address:
                    with _vip_named(name == "remoting"):
                        self._ports[name] = ReservedPort(address)
                    stack.callback(self._ports[name].release)
            client = self._ports["client"]
            self.port = client.port
            tls = ClientTls(self.config.tls) if self.config.needs_client_tls else None
            export = self._span_export()
            await self._recover(client)
            try:
                if export is not None:
                    self._export_spans(export)
                for name, serve_port in self._servers().items():
                    if name in self._ports:
                        await serve_port(self._ports[name], tls)
            except BaseException:
                await self.stop()
                raise
        if self.rocketmq is not None:
            self.rocketmq.start()
        if self.failover is not None:
            self.failover.start()
        self._health.serve(SERVICES)
        log.info("ready", listen=client.address, data=str(self.config.node.data))

    def _addresses(self) -> dict[str, str]:
        """HOST:PORT of every port, by what it is for; empty where there is none."""
        config = self.config
        leads = config.store.broker_role is not BrokerRole.SLAVE  # a fixed slave serves no slaves
        return {
            "client": config.node.listen,
            "tls": config.tls.listen,
            "slaves": config.ha.listen if leads else "",
            "slaves' frames": config.ha.frames_address if leads else "",
            "frames": config.node.frames_address,
            "remoting": config.remoting.listen,
            "fast": config.remoting_fast_address,
            "rocketmq slaves": config.rocketmq_slaves.listen,
            "metrics": config.metrics.listen,
            "console": config.console.listen,
        }

    def _servers(self) -> dict[str, Callable[[ReservedPort, ClientTls | None], Awaitable[None]]]:
        """What serves each port, in the order in which they are opened.

        `tls` is opened with `client`, `slaves' frames` with `slaves`, `fast` with `remoting`.
        """
        return {
            "frames": self._serve_frames,
            "slaves": self._serve_slaves,
            "client": self._listen,
            "rocketmq slaves": self._serve_rocketmq_slaves,
            "remoting": self._serve_remoting,
            "metrics": self._serve_metrics,
            "console": self._show_console,
        }

    @property
    def _recovered(self) -> Broker:
        assert self.broker is not None, "recovered"
        return self.broker

    async def _recover(self, reserved: ReservedPort) -> None:
        """Make the services and the broker, and recover its store."""
        limits = self.config.limits
        ledger = Ledger(limits.arriving_bytes_max, limits.request_bytes_max)
        server = grpc_server(client_port(limits), limits.polls_max + SHORT_CALLS_MAX, ledger)
        disk = disk_of(self.config)
        check_served(disk, str(self.config.node.data), self.config.node.group)
        broker = Broker(self.config, make_store(self.config, disk, store_host_of(reserved.address)))
        access = self._access = access_of(
            self.config.access,
            lambda: broker.metadata.access,
            lambda: not broker.replication.may_be_behind(),
            broker.times.wall_ms,
        )
        guard = self._guard = guard_of(broker, access)
        if access is not None:
            broker.dialects.frames_keys = access.keys
            broker.replication.prove(access.replication)
            broker.other_groups.marks = NodeMarks(access.moves, broker.times.wall_ms)
            access.gate.lockout = broker.lockout
        native = native_methods(broker, access, guard)
        if self.config.metrics.listen:
            native = timed_methods(native, broker.core.traffic.calls)
        keys, throttle = broker.dialects.frames_keys, broker.core.throttle
        authenticator = FramesAuthenticator(keys, appends_of(broker), guard, throttle)
        self._native = native
        frames = FramesServer(
            authenticator, broker.log.answered, limits, broker.give_up, native.by_path
        )
        others = Methods()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, others.as_server())
        names = (
            *(service.full_name for service in duolog_pb2.DESCRIPTOR.services_by_name.values()),
            *self._serve_rocketmq(broker, access, others),
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names), others.as_server()
        )
        moves = moves_methods(broker)
        server.add_generic_rpc_handlers([*native.generic, *moves.generic, *others.generic])
        try:
            await broker.start()
        except BaseException:
            broker.log.threads.shutdown(wait=False)
            await server.stop(None)
            raise
        if access is None and broker.metadata.access.users:
            log.warning(
                "access control is off, though this directory has users: anyone may do anything",
                reason="access.key_file is not set",
            )
        self.broker, self._server, self._frames = broker, server, frames

    async def _listen(self, reserved: ReservedPort, tls: ClientTls | None) -> None:
        """Open the ports of clients: everything that they lead to is ready.

        Raises ListenError, OSError.
        """
        assert self._server is not None, "recovered"
        self._prepare_election(self._recovered)
        only, tls_port = self.config.tls.only, self._ports.get("tls")
        _add_port(self._server, reserved, tls.first_port() if tls and only else None)
        if tls_port is not None:
            assert tls is not None, "a port with TLS has certificates: checked"
            _add_port(self._server, tls_port, tls.second_port())
            self.tls_port = tls_port.port
            if self.rocketmq is not None and not only:  # its clients stay with the port they chose
                self.rocketmq.tls_port = tls_port.port
        await self._server.start()

    async def _serve_frames(self, reserved: ReservedPort, tls: ClientTls | None) -> None:
        """Take frames. Raises ListenError."""
        dialects, frames = self._recovered.dialects, self._frames
        assert frames is not None, "recovered"
        context = tls.context() if tls is not None and self.config.tls.only else None
        with _listening(reserved):
            await frames.start(reserved.host, reserved.port, context, self.config.node.busy_poll_us)
        dialects.frames_port, dialects.frames_secured = frames.port, context is not None
        log.info("taking frames", listen=f"{reserved.host}:{frames.port}")

    async def _serve_rocketmq_slaves(self, reserved: ReservedPort, _: ClientTls | None) -> None:
        """Serve the log to RocketMQ's slaves. Raises ListenError."""
        from duolog_server.compat.hawire.server import SlavesServer  # others do not need it

        self.rocketmq_slaves = SlavesServer(self._recovered, self.config.rocketmq_slaves)
        with _listening(reserved):
            await self.rocketmq_slaves.start(reserved.host, reserved.port)
        allowed = list(self.config.rocketmq_slaves.allow)
        log.info("serving slaves of RocketMQ", listen=reserved.address, allowed=allowed)

    async def _serve_remoting(self, reserved: ReservedPort, tls: ClientTls | None) -> None:
        """Serve RocketMQ's remoting protocol. Raises ListenError."""
        from duolog_server.compat.remoting.guarding.authenticator import (
            authenticator_of,  # others do not need it
        )
        from duolog_server.compat.remoting.port.server import RemotingServer, Secured
        from duolog_server.compat.remoting.service import RemotingService, Surroundings

        broker, section = self._recovered, self.config.remoting
        advertised = section.advertise or self._reached_at(reserved.port)
        timed = bool(self.config.metrics.listen)
        authenticator = authenticator_of(broker, self.config.rocketmq, self._access, self._guard)
        slaves = self._slaves_port()
        around = Surroundings(section, advertised, self._verbs(broker), authenticator, slaves)
        service = self._remoting_service = RemotingService(broker, around, timed)
        service.start()
        self.remoting = RemotingServer(service, self.config.limits, broker.give_up)
        secured = None
        if tls is not None and self.config.remoting_has_tls:
            secured = Secured(tls.remoting_context(), self.config.tls.only)
        busy_poll_us, fast = self.config.node.busy_poll_us, self._ports.get("fast")
        with _vip_named(), _listening(reserved):
            await self.remoting.start(reserved.host, reserved.port, secured, busy_poll_us)
        if fast is not None:
            with _listening(fast):
                await self.remoting.listen_also(fast.host, fast.port)
        elif vip := self.config.remoting_vip_address:
            await self._serve_vip(self.remoting, vip)
        service.join()
        log.info("serving the remoting protocol", listen=reserved.address, advertised=advertised)

    async def _serve_vip(self, remoting: "RemotingServer", address: str) -> None:
        """Serve clients with the VIP channel; warn where their port is taken."""
        host, _, port = address.rpartition(":")
        try:
            if taken := self.config.option_of(address):
                raise OSError(f"it is the port of {taken}")
            await remoting.listen_also(host, int(port))
        except OSError as error:
            log.warning("remoting: no VIP channel", listen=address, reason=str(error))

    def _reached_at(self, port: int) -> str:
        """HOST:PORT of another port of this node, where `node.advertise` is reached."""
        return f"{self._recovered.advertised.rpartition(':')[0]}:{port}"

    def _verbs(self, broker: Broker) -> Verbs:
        """The administration that RocketMQ's tools request of a node."""
        return Verbs(self._native.by_path, changes_of(broker, self._guard))

    def _slaves_port(self) -> "SlavesPort | None":
        """The port for RocketMQ's slaves, for those that register here."""
        if self.rocketmq_slaves is None:
            return None
        from duolog_server.compat.remoting.replicas import SlavesPort

        section = self.config.rocketmq_slaves
        advertised: str = section.advertise or self._reached_at(self.rocketmq_slaves.port)
        return SlavesPort(section, advertised)

    async def _serve_metrics(self, reserved: ReservedPort, tls: ClientTls | None) -> None:
        """Answer Prometheus. Raises ListenError."""
        context = tls.context() if tls is not None and self.config.metrics.tls else None
        from duolog_server.node.metrics.server import (
            MetricsServer,  # others need no library of Prometheus
        )

        rocketmq, section = self.rocketmq, self.config.metrics
        clients = rocketmq.clients.all if rocketmq is not None else list
        admit = self._guard.admit_status if self._guard is not None else None
        self.metrics = MetricsServer(self._recovered, section, self._counted(), clients, admit)
        with _listening(reserved):
            await self.metrics.start(reserved.host, reserved.port, context)
        log.info("serving metrics", listen=f"{reserved.host}:{self.metrics.port}")

    def _counted(self) -> "Ports":
        """Counters of the clients' ports, for the metrics."""
        from duolog_server.node.metrics.nodefacts import Ports

        frames, remoting, service = self._frames, self.remoting, self._remoting_service
        assert frames is not None, "recovered"
        if remoting is None or service is None:
            return Ports(frames)
        return Ports(frames, (remoting, service.times), self._recovered.dialects.name_servers)

    async def _show_console(self, reserved: ReservedPort, _: ClientTls | None) -> None:
        """Start the process of the console. Raises ListenError."""
        tls, section = self.config.tls, self.config.console
        options = ConsoleOptions(
            (self._recovered.advertised,),
            reserved.host,
            tls=tls.only,
            ca=str(tls.ca or ""),
            cert=str(tls.cert) if section.tls else "",
            key=str(tls.key) if section.tls else "",
            log_json=self.config.node.log_json,
            origins=section.origins,
            protobuf=section.protobuf,
            mask=section.mask,
            vouching=self._access.console_key.hex() if self._access is not None else "",
        )
        self.console = ConsoleProcess(options, reserved.listen())
        self.console.start()
        log.info("serving the console", listen=reserved.address)

    def _span_export(self) -> "Callable[[Recorder], SpanExport] | None":
        """The exporter of a recorder's spans; None if off. Raises ConfigError."""
        section, node = self.config.traces, self.config.node
        if not section.endpoint:
            return None
        try:
            from duolog_server.node.traces.exporting import SpanExport, load
            from duolog_server.node.traces.spanmaker import SpanMaker

            connect = load(section.protocol)
        except ImportError as error:
            raise ConfigError(
                f"traces.endpoint needs packages of OpenTelemetry ({error}): "
                "pip install 'duolog-server[otel]'"
            ) from None
        facts = {
            "service.name": "duolog",
            "service.namespace": node.cluster,
            "service.instance.id": node.name,
            "service.version": __version__,
            "duolog.replica_group": node.group,
        }
        maker = SpanMaker(facts, __version__, section.spans_per_batch_max)
        interval = section.interval_ms / 1000
        return lambda recorder: SpanExport(recorder, maker, connect(section.endpoint), interval)

    def _export_spans(self, export: "Callable[[Recorder], SpanExport]") -> None:
        broker = self._recovered
        assert broker.log.traces is not None, "an endpoint is configured"
        self._spans = export(broker.log.traces)
        broker.spans = self._spans.counts
        self._spans.start()
        log.info("exporting spans", address=without_login(self.config.traces.endpoint))

    def _serve_rocketmq(self, broker: Broker, access: Access | None, methods: Methods) -> list[str]:
        """RocketMQ's API, where its stubs are installed; names of the services served."""
        section = self.config.rocketmq
        if not section.enable:
            return []
        try:
            from duolog_server.compat.grpc.protocol import stubs  # noqa: F401
        except ImportError as error:
            log.info("RocketMQ's API is not served", reason=str(error))
            return []
        from duolog_server.compat.grpc.apis import SERVICE_NAMES, admin_methods, messaging_methods
        from duolog_server.compat.grpc.auth import Authenticator
        from duolog_server.compat.grpc.guard import guard_of as rocketmq_guard
        from duolog_server.compat.grpc.service import MessagingService

        authenticator = Authenticator(section.access_key, section.secret_key, broker.lockout)
        guard = None
        if access is not None and self._guard is not None:
            guard = rocketmq_guard(self._guard, broker, access, self.config.access)
        service = self.rocketmq = MessagingService(broker, authenticator, guard)
        methods.generic += messaging_methods(service, guard).generic
        verbs = self._verbs(broker)
        methods.generic += admin_methods(service, verbs, authenticator, guard).generic
        if self.config.metrics.listen:
            from duolog_server.compat.grpc.apis import timed_methods

            methods.generic = timed_methods(methods, broker.core.traffic.rpcs).generic
        if broker.measures is None:
            return list(SERVICE_NAMES)
        try:
            from duolog_server.compat.grpc import (
                clientmetrics,  # others need no library of OpenTelemetry
            )
        except ImportError as error:
            raise ConfigError(
                f"rocketmq.client_metrics needs packages of OpenTelemetry ({error}): "
                "pip install 'duolog-server[rocketmq]'"
            ) from None
        taker = clientmetrics.ClientMetricsService(
            broker.measures, authenticator, guard, broker.audit
        )
        methods.generic += clientmetrics.methods_of(taker).generic
        return [*SERVICE_NAMES, clientmetrics.SERVICE_NAME]

    async def _serve_slaves(self, reserved: ReservedPort, _: ClientTls | None) -> None:
        """A master's replication port. Raises ListenError, OSError (certificates)."""
        broker = self._recovered
        self.ha_port = reserved.port
        tls = self.config.ha_tls()
        service = ReplicationService(broker.replication, broker.log.threads, tls, broker.give_up)
        if service.listen(reserved.address) == 0:
            raise ListenError(f"cannot listen on {reserved.address}: {IN_USE}")
        if (frames := self._ports.get("slaves' frames")) is not None:
            service.frames = FramesPort(self.config.limits, broker.give_up)
            context = tls.context_of_server() if tls is not None else None
            with _listening(frames):
                await service.frames.start(frames.host, frames.port, context)
        await service.start()
        self._replication = service
        log.info("serving slaves", listen=reserved.address)

    def _prepare_election(self, broker: Broker) -> None:
        """AUTO: a part in the election of masters. Raises OSError, BadStoreFile."""
        if not broker.replication.elected:
            return
        section = self.config.registry
        registry = self._given_registry
        if registry is None:
            from duolog_server.node.election.etcd import (
                EtcdRegistry,  # others need no stubs of etcd
            )

            timeout = section.request_timeout_ms / 1000
            registry = EtcdRegistry(section.addresses(), timeout, self.config.registry_tls())
        host = self.config.ha.listen.rpartition(":")[0]
        advertised: str = self.config.ha.advertise
        try:
            candidate = Candidate(
                self.config.node,
                broker.advertised,
                advertised or f"{host}:{self.ha_port}",
                section.lease_seconds,
                section.disk_stall_ms,
                self.ha_port,
            )
            self.failover = FailoverService(broker, registry, candidate)
        except BaseException:
            registry.close()
            raise
        broker.failover = self.failover

    async def stop(self) -> None:
        """Refuse new calls, finish those in flight (bounded), close the store."""
        parts = (self.console, self.metrics, self.failover, self._replication)
        for part in (*parts, self.rocketmq_slaves, self.rocketmq):
            if part is not None:
                await part.stop()
        if self._remoting_service is not None:
            await self._remoting_service.leave()
        if self.remoting is not None:
            await self.remoting.stop(GRACE_SECONDS)
        if self._remoting_service is not None:
            await self._remoting_service.stop()
        if self._server is not None and self._frames is not None:
            self._health.end()
            self._recovered.arrivals.end()
            await all_of(self._frames.stop(GRACE_SECONDS), _stop(self._server))
        if self._access is not None:
            self._access.close()
        try:
            if self.broker is not None:
                await self.broker.stop()
        finally:
            if self._spans is not None:
                await self._spans.stop()
        log.info("stopped")


def tune_allocator() -> None:
    """Have glibc keep the memory of large buffers instead of mapping it again each time.

    Every request is a few hundred KiB: mapping and unmapping them costs a page fault per 4 KiB and
    the lock that page faults need. By default glibc keeps memory apart for each thread, up to eight
    times as many as there are cores: what one of gRPC's threads freed is of no use to the others,
    and attackers got several times what they sent. Other C libraries have no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
        mallopt(M_ARENA_MAX, ARENAS_MAX)


def with_files_for(config: Config) -> Config:
    """A configuration with no more connections than files may be open beside the store's."""
    asked = (
        config.node.listen,
        config.node.frames_address,
        config.tls.listen,
        config.remoting.listen,
    )
    wanted = config.limits.connections_max
    fits = connections_that_fit(wanted, sum(map(bool, asked)))
    if fits == wanted:
        return config
    log.warning(
        "insecure setting",
        reason=f"limits.connections_max = {wanted}: so few files may be open that each port takes "
        f"{fits} connections: raise the limit (ulimit -n, LimitNOFILE)",
    )
    limits = config.limits.model_copy(update={"connections_max": fits})
    return config.model_copy(update={"limits": limits})


async def _note_fence(broker: Broker) -> None:
    """Leave word that the node was fenced, if its disk takes it within a moment."""

    def write() -> None:
        with contextlib.suppress(OSError):
            broker.store.note_fence()

    # No pool: the end of a process waits for its threads, however long their disk takes.
    writing = threading.Thread(target=write, name="duolog-fenced", daemon=True)
    writing.start()
    until = asyncio.get_running_loop().time() + NOTE_SECONDS
    while writing.is_alive() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.01)


async def serve(config: Config) -> int:
    """Run a node until a signal comes or its disk fails; the exit status."""
    configure_logging(config.node.log_level, config.node.log_json, config.node.name_in_log)
    tune_allocator()
    raise_limit()
    config = with_files_for(config)
    gc.disable()  # a start makes millions of objects that stay: looking for garbage finds none
    for reason in cautions(config):
        log.warning("insecure setting", reason=reason)
    for reason in unreached(config):
        log.warning("clients may not find this node", reason=reason)
    node = Node(config)
    stop = asyncio.Event()
    on_stop(stop.set)
    try:
        await node.start()
    except (StoreError, OSError, ListenError, ConfigError) as error:
        log.error("cannot start", reason=str(error))
        return 1
    assert node.broker is not None, "start made it"
    gc.freeze()  # nor does it later, with pauses for all who send
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    async with asyncio.TaskGroup() as tasks:
        waits = [tasks.create_task(event.wait()) for event in (stop, node.broker.failed)]
        trimming = tasks.create_task(keep_trimmed())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in (*waits, trimming):
            task.cancel()
    failed = node.broker.failed.is_set()
    if failed:
        await _note_fence(node.broker)
    with contextlib.suppress(StoreError):
        await node.stop()
    return EXIT_FENCED if failed else 0
