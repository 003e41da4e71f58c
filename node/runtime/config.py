"""The node's one typed config: defaults, then `duolog.toml`, then environment, then flags.

Environment names are DUOLOG_<SECTION>__<KEY>, as DUOLOG_STORE__FLUSH_DISK_TYPE=SYNC_FLUSH. An
unknown key is an error, wherever it is written. Other variables that begin with DUOLOG_ are
ignored (Kubernetes sets DUOLOG_SERVICE_HOST for a service named duolog).
"""

import dataclasses
import difflib
import ipaddress
import os
import re
import socket
import tomllib
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from duolog._busypoll import MICROSECONDS_MAX
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from duolog_server.ha.options import HaOptions
from duolog_server.node.runtime.certificates import BadCertificate, CertificateFiles, read
from duolog_server.node.runtime.durability import durability_of, settings_for
from duolog_server.node.runtime.origins import origins_of
from duolog_server.node.runtime.tls import Tls
from duolog_server.store.options import StoreOptions, option
from duolog_server.store.status import BrokerRole

ENV_PREFIX = "DUOLOG_"
DEFAULT_FILE = "duolog.toml"
DEFAULT_LISTEN = "127.0.0.1:8081"
FILE_VARIABLE = "DUOLOG_CONFIG"
TYPO = 0.75  # similarity of two names that differ by a typing mistake
ALIKE = 0.65  # similarity from which a name is suggested
SECTIONS = (
    "node",
    "tls",
    "access",
    "audit",
    "limits",
    "transactions",
    "rocketmq",
    "remoting",
    "metrics",
    "console",
    "traces",
    "ha",
    "rocketmq_slaves",
    "registry",
    "store",
)
SECRETS = frozenset((("rocketmq", "secret_key"),))  # never shown
NOT_SHOWN = "(set, not shown)"


class ConfigError(Exception):
    """The configuration is invalid; the text names the file, the key and what is wrong."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _endpoint(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not of the form HOST:PORT")
    return value


def _endpoint_or_empty(value: str) -> str:
    return _endpoint(value) if value else value


def _listed(value: object) -> object:
    """A list, as the environment and --set have it: in one text."""
    return (
        [one.strip() for one in value.split(";") if one.strip()]
        if isinstance(value, str)
        else value
    )


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is neither an address nor a network: {error}") from None
    return values


Endpoint = Annotated[str, AfterValidator(_endpoint)]
Rules = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_networks)]
_FIELD = r"\s*(\$\.)?[^\s,.=]+(\.[^\s,.=]+)*\s*"
MASK_RULE = rf"[^=]*[^\s=][^=]*={_FIELD}(,{_FIELD})*"  # TOPIC=hidden, TOPIC=FIELD[,FIELD...]
PROTOBUF_RULE = r"[^=]*[^\s=][^=]*=.*\S.*:[^:]*[^\s:][^:]*"  # TOPIC=FILE:TYPE
EndpointOrEmpty = Annotated[str, AfterValidator(_endpoint_or_empty)]
Endpoints = Annotated[tuple[Endpoint, ...], BeforeValidator(_listed)]
AUTO_PORT = "auto"


def _frames_listen(value: str) -> str:
    return value if value == AUTO_PORT else _endpoint_or_empty(value)


def _frames_address(frames_listen: str, listen: str) -> str:
    """HOST:PORT where frames are taken, with port 0 for a free one; empty: nowhere."""
    return f"{listen.rpartition(':')[0]}:0" if frames_listen == AUTO_PORT else frames_listen


FramesListen = Annotated[str, AfterValidator(_frames_listen)]
# Brokers and clients of RocketMQ reach a second port of a broker by that of the first.
FAST_PORT = -2


class NodeSection(_Section):
    """The node's identity and ports."""

    name: str = Field(
        default_factory=socket.gethostname,
        description="name of this node, unique in its replica group",
    )
    cluster: str = Field("DefaultCluster", description="name of the cluster")
    group: str = Field(
        "broker-a", description="replica group (brokerName): the nodes that hold the same log"
    )
    listen: Endpoint = Field(DEFAULT_LISTEN, description="HOST:PORT of the client API")
    advertise: EndpointOrEmpty = Field(
        "", description="HOST:PORT at which others reach the client API; empty: same as `listen`"
    )
    frames_listen: FramesListen = Field(
        AUTO_PORT,
        description="HOST:PORT where the SDK's frames are taken; `auto`: a free port on the host "
        "of `listen`; empty: none, all clients use gRPC",
    )
    busy_poll_us: int = Field(
        250,
        ge=0,
        le=MICROSECONDS_MAX,
        description="after a single message, busy-poll this long (µs) for the next request over "
        "frames or the remoting protocol before sleeping; turns itself off where it does not help, "
        "and with fewer than two cores. 0: never",
    )
    data: Path = Field(Path("duolog-data"), description="store directory")
    durability: str = Field(
        "",
        description="what an acknowledged message survives, in one word for role and flush mode: "
        "`process`, `power`, `replicas` or `replicas+power` "
        "([durability](replication.md#durability-in-one-word)); empty: as `store.broker_role` and "
        "`store.flush_disk_type` have it, which is `process` by default, as in RocketMQ",
    )
    log_level: str = Field("info", description="lowest level logged: debug, info, warning or error")
    log_json: bool = Field(False, description="write the log as JSON lines")
    log_name: bool = Field(
        False,
        description="write the node's name in each line of the log, for nodes that share one; "
        "nodes of `--shards` do",
    )

    @field_validator("name", "group", "cluster")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not value or len(value) > 255 or not value.isprintable() or "/" in value:
            raise ValueError("must have 1 to 255 printable characters other than /")
        return value

    @property
    def frames_address(self) -> str:
        """HOST:PORT where frames are taken, with port 0 for a free one; empty: nowhere."""
        return _frames_address(self.frames_listen, self.listen)

    @property
    def name_in_log(self) -> str:
        """The name in each line of the log; empty: none."""
        return self.name if self.log_name else ""

    @field_validator("log_level")
    @classmethod
    def _is_level(cls, value: str) -> str:
        if value not in ("debug", "info", "warning", "error"):
            raise ValueError("must be debug, info, warning or error")
        return value


class TlsSection(_Section):
    """TLS on the ports of clients."""

    cert: Path | None = Field(
        None,
        description="file with the node's certificate chain (PEM), for the host by which clients "
        "reach it; files are read again after they were replaced",
    )
    key: Path | None = Field(None, description="file with the key of `cert`, not encrypted")
    listen: EndpointOrEmpty = Field(
        "", description="HOST:PORT of a second port, with TLS, beside `node.listen`; empty: none"
    )
    only: bool = Field(
        False,
        description="`node.listen` and frames take TLS only, and no plain clients: for clusters, "
        "as the ports that nodes name are then those with TLS",
    )
    ca: Path | None = Field(
        None,
        description="`only`: file with the CA (PEM) of the other nodes' certificates, for calls of "
        "RocketMQ's clients that nodes forward to each other, and for queues that move; not set: "
        "gRPC's own authorities",
    )
    client_certs: Literal["none", "optional", "required"] = Field(
        "none",
        description="certificates of clients: `none` are asked for; `required` on each port with "
        "TLS; `optional`: required on `listen` and not asked for on `node.listen`, with `only`",
    )
    client_ca: Path | None = Field(
        None, description="file with the CA (PEM) of clients' certificates"
    )

    @property
    def files(self) -> CertificateFiles:
        """The files, those that are set."""
        return CertificateFiles(self.client_ca, self.cert, self.key)

    @property
    def files_of_peers(self) -> CertificateFiles:
        """The files with which this node calls others."""
        return CertificateFiles(self.ca, self.cert, self.key)

    @property
    def serves(self) -> bool:
        """Whether any port of clients speaks TLS."""
        return self.only or bool(self.listen)

    def check(self, *, others: bool) -> None:
        """Raise ConfigError if keys contradict each other, or a file cannot be used.

        others: another port speaks TLS: that of the metrics, of the console, or for remoting.
        """
        serves = self.serves or others
        if serves and not (self.cert and self.key):
            raise ConfigError(
                "tls.listen, tls.only, metrics.tls, console.tls and TLS on remoting.listen need "
                "tls.cert and tls.key"
            )
        files = {*self.files.paths, *self.files_of_peers.paths}
        if not serves and (files or self.client_certs != "none"):
            raise ConfigError(
                "keys of [tls] are set, and no port speaks TLS: set tls.only, or tls.listen for a "
                "second port, or metrics.tls, console.tls or remoting.listen"
            )
        if self.ca is not None and not self.only:
            raise ConfigError("tls.ca needs tls.only: otherwise nodes call plain ports of others")
        if (self.client_certs == "none") != (self.client_ca is None):
            raise ConfigError(
                "tls.client_ca and tls.client_certs (optional or required) must be set together"
            )
        both = self.only and bool(self.listen)
        if self.client_certs == "optional" and not both:
            raise ConfigError(
                "tls.client_certs = optional needs tls.only and tls.listen: certificates are "
                "required on tls.listen, and not asked for on node.listen"
            )
        if both and self.client_certs != "optional":
            raise ConfigError(
                "with tls.only, node.listen speaks TLS: leave out tls.listen, or set "
                "tls.client_certs = optional"
            )
        _check_files("tls", self.files)
        _check_files("tls", self.files_of_peers)


class AccessSection(_Section):
    """Users and their rights."""

    key_file: Path | None = Field(
        None,
        description="file with the key that all nodes of the cluster share, as `duolog user key` "
        "writes it; if set, only users may call; not set: no access control, anybody may call",
    )
    first_user_file: Path | None = Field(
        None,
        description="file with NAME:PASSWORD of a super user that counts while no user was created",
    )
    node_proof: Literal["required", "offered"] = Field(
        "required",
        description="whether the nodes of a replica group must prove to each other that they have "
        "the key: `required`; `offered`: nodes without a key file may still replicate, while it is "
        "introduced node by node",
    )
    date_window_seconds: int = Field(
        300,
        ge=60,
        le=86_400,
        description="how far the date that a client of RocketMQ's API signs may be from this "
        "node's clock, either way",
    )
    date_zones: str = Field(
        "",
        description="time zones of such clients, besides UTC and this machine's own, as "
        "`Asia/Shanghai,Europe/Berlin`: most of them write that date in their local time",
    )

    @field_validator("date_zones")
    @classmethod
    def _are_zones(cls, value: str) -> str:
        for name in filter(None, value.split(",")):
            try:
                ZoneInfo(name.strip())
            except (ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(
                    f"{name.strip()!r} is not a time zone that this machine knows"
                ) from None
        return value

    def zones(self) -> tuple[ZoneInfo, ...]:
        """The time zones, one by one."""
        return tuple(ZoneInfo(name.strip()) for name in self.date_zones.split(",") if name.strip())


class AuditSection(_Section):
    """The audit log: calls done and denied."""

    file: Path | None = Field(
        None,
        description="file that gets a JSON line for each entry; nodes on one machine need one "
        "each; not set: none",
    )
    topic: bool = Field(
        False,
        description="whether a master also stores its entries as messages of the topic "
        "`DUOLOG_SYS_AUDIT`",
    )
    level: Literal["changes", "all"] = Field(
        "changes",
        description="what is written: `changes`: calls that change topics, groups, users, rights, "
        "quotas or the master, and all that were denied; `all`: every other call as well, but not "
        "each batch of a stream",
    )
    file_bytes_max: int = Field(
        16 << 20, ge=1 << 16, description="bytes of `file`, after which a new one begins"
    )
    files_max: int = Field(
        8, ge=1, le=1000, description="most files, with the older ones: FILE.1, FILE.2 and so on"
    )


class LimitsSection(_Section):
    """Limits on what clients may ask for and create."""

    auto_create_topic: bool = Field(False, description="create a topic on its first send")
    default_topic_queues: int = Field(
        4, ge=1, le=1024, description="queues of a topic created without a number"
    )
    topics_max: int = Field(10_000, ge=1, description="maximum number of topics on this node")
    groups_max: int = Field(
        10_000, ge=1, description="maximum number of consumer groups on this node"
    )
    request_bytes_max: int = Field(
        32 << 20, ge=1 << 20, description="largest message over gRPC, and largest frame"
    )
    append_in_flight_max: int = Field(256, ge=1, description="most unanswered batches per stream")
    pull_bytes_max: int = Field(
        8 << 20, ge=4096, description="most bytes of message bodies in one read"
    )
    pull_messages_max: int = Field(65_536, ge=1, description="most messages in one read")
    poll_ms_max: int = Field(30_000, ge=0, description="longest time a pull waits for messages")
    polls_max: int = Field(
        10_000,
        ge=1,
        description="most pulls and subscriptions waiting at a time; each takes up to 7 KiB",
    )
    connections_max: int = Field(
        3500,
        ge=16,
        description="most connections of clients to each of the ports; more are closed at once. An "
        "idle one takes up to 17 KiB",
    )
    connections_per_address_max: int = Field(
        2000,
        ge=8,
        description="most of one address, or of one IPv6 network of 64 bits, over frames and over "
        "the remoting protocol; over frames, it may use gRPC beyond",
    )
    streams_max: int = Field(
        2048,
        ge=16,
        description="most calls at a time on one connection over gRPC; clients wait, or open "
        "another connection",
    )
    answers_bytes_max: int = Field(
        16 << 20,
        ge=1 << 20,
        description="most bytes of answers (messages, lists, look-ups) that clients have not taken "
        "yet; a client's address may hold a 4th, or one answer",
    )
    arriving_bytes_max: int = Field(
        32 << 20,
        ge=1 << 20,
        description="room on each port of clients for requests that have not arrived whole. Over "
        "frames and the remoting protocol, further ones wait unread; over gRPC, connections that "
        "make no progress are closed. A longer request needs to be alone",
    )
    snapshot_interval_ms: int = Field(
        5000, ge=100, description="interval between metadata snapshots"
    )


class TransactionsSection(_Section):
    """Checks of half messages that are neither committed nor rolled back."""

    timeout_ms: int = Field(
        6000, ge=0, description="age at which producers are first asked about a half message"
    )
    check_interval_ms: int = Field(30_000, ge=100, description="interval between further checks")
    check_max: int = Field(
        15,
        ge=1,
        description="checks after which a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC",
    )


class RocketmqSection(_Section):
    """RocketMQ's own API on the client port. Needs the extra `rocketmq`."""

    enable: bool = Field(True, description="serve the API, if the extra is installed")
    access_key: str = Field(
        "", description="access key that clients must sign with; empty: no authentication"
    )
    secret_key: str = Field("", description="secret key that belongs to `access_key`")
    client_metrics: bool = Field(
        False,
        description="have clients push what they measure to the node that they use (OTLP), which "
        "shows it by topic and group in its metrics; needs `metrics.listen`",
    )


class RemotingSection(_Section):
    """RocketMQ's classic remoting protocol, for clients of RocketMQ 4."""

    listen: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT where clients find a name server and a broker, with the same port "
        "on all nodes of a group; takes TLS, too, where `tls.cert` is set, and nothing else with "
        "`tls.only`; empty: nowhere",
    )
    advertise: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT at which clients reach `listen`; empty: its port on the host of "
        "`node.advertise`",
    )
    vip_channel: bool = Field(
        True,
        description="serve the port two below `listen` as well: RocketMQ's clients with the VIP "
        "channel send there, those before 4.5 by default; where another program has that port, the "
        "log warns",
    )
    namesrv_addr: Endpoints = Field(
        (),
        max_length=16,
        description="HOST:PORT of RocketMQ's name servers, where this node registers as a broker "
        "named `node.group` of `node.cluster`; a list, or one text with semicolons between them",
    )
    namesrv_ca: Path | None = Field(
        None,
        description="file with the CA of the name servers' certificates; empty: connections to "
        "them have no TLS",
    )
    broker_id: int = Field(
        1,
        ge=1,
        le=(1 << 63) - 1,
        description="id that a slave with a fixed role registers with: another one for each slave "
        "of a group; where masters are elected, nodes choose theirs",
    )
    store_reply_message_enable: bool = Field(
        True,
        description="store replies to requests in the topic `<cluster>_REPLY_TOPIC` as well",
    )


class MetricsSection(_Section):
    """Metrics for Prometheus."""

    listen: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT where `GET /metrics` is answered: to a user that may Get the "
        "cluster, or to anybody without access control; empty: nowhere",
    )
    tls: bool = Field(
        False,
        description="`listen` takes TLS only, with the certificate of `tls.cert`; certificates of "
        "clients as `tls.client_certs` says",
    )
    series_max: int = Field(
        50_000,
        ge=1000,
        description="most series of topics, groups and clients in one answer; over it, those with "
        "the fewest messages are left out",
    )


class ConsoleSection(_Section):
    """The console, a cluster in a browser."""

    listen: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT that browsers reach: they log in as users of the nodes, or, on "
        "loopback and without access control, anonymously; empty: nowhere",
    )
    tls: bool = Field(
        False, description="`listen` takes TLS only, with the certificate of `tls.cert`"
    )
    url: str = Field(
        "",
        description="where browsers see the console behind a proxy, as "
        "`https://console.example.org`; several with commas; it then answers to these names alone, "
        "and asks for a login on loopback, too; empty: no proxy",
    )

    @field_validator("url")
    @classmethod
    def _has_origins(cls, value: str) -> str:
        origins_of(value)  # BadOrigin is a ValueError
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of the URLs."""
        return origins_of(self.url)

    protobuf: Rules = Field(
        (),
        description="rules `TOPIC=FILE:TYPE`: bodies of topics, by name or pattern, that are shown "
        "as Protobuf; FILE is made by `protoc --include_imports --descriptor_set_out`",
    )
    mask: Rules = Field(
        (),
        description="rules `TOPIC=hidden` and `TOPIC=FIELD[,FIELD...]`: bodies of topics, by name "
        "or pattern, that are not shown, and fields whose values are not: a name, or a path as "
        "`$.name` or `customer.name`",
    )

    @field_validator("protobuf", "mask")
    @classmethod
    def _are_rules(cls, rules: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        form = PROTOBUF_RULE if info.field_name == "protobuf" else MASK_RULE
        for rule in rules:
            if not re.fullmatch(form, rule):
                wanted = (
                    "FILE:TYPE" if form is PROTOBUF_RULE else "hidden or TOPIC=FIELD[,FIELD...]"
                )
                raise ValueError(f"{rule!r} is not of the form TOPIC={wanted}")
        return rules


class TracesSection(_Section):
    """Spans for OpenTelemetry."""

    endpoint: str = Field(
        "",
        description="URL of an OTLP collector, as `http://127.0.0.1:4317`, that gets spans of what "
        "the node does with messages whose senders are sampled; `https://` uses TLS; empty: none. "
        "Needs the extra `otel`",
    )
    protocol: Literal["grpc", "http"] = Field(
        "grpc", description="`grpc` (a collector's port 4317) or `http` (4318, `/v1/traces`)"
    )
    interval_ms: int = Field(1000, ge=100, le=60_000, description="time between two exports")
    spans_per_batch_max: int = Field(
        32,
        ge=1,
        le=1000,
        description="most spans of one batch; messages that were sent as a batch have one together",
    )

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
            raise ValueError(f"must be a URL such as http://127.0.0.1:4317, not {value!r}")
        return value


@dataclass(frozen=True)
class HaAddresses:
    """Addresses of replication."""

    listen: EndpointOrEmpty = option(
        "", "HOST:PORT of the replication port (haListenPort); empty: slaves cannot connect"
    )
    frames_listen: FramesListen = option(
        AUTO_PORT,
        "HOST:PORT where slaves that reached `listen` connect for frames; `auto`: a free port on "
        "its host; empty: none, replication stays on gRPC",
    )
    advertise: EndpointOrEmpty = option(
        "", "AUTO: HOST:PORT at which slaves reach that port; empty: same as `listen`"
    )
    master: EndpointOrEmpty = option(
        "", "SLAVE: HOST:PORT of the master's replication port (haMasterAddress)"
    )
    tls_ca: Path | None = option(
        None, "file with the CA of the group's certificates; if set, replication uses TLS"
    )
    tls_cert: Path | None = option(
        None, "file with this node's certificate, used as server and as client"
    )
    tls_key: Path | None = option(None, "file with the key of `tls_cert`")

    @property
    def frames_address(self) -> str:
        """HOST:PORT where slaves' frames are taken, with port 0 for a free one; empty: nowhere."""
        return _frames_address(self.frames_listen, self.listen) if self.listen else ""


@dataclass(frozen=True, slots=True)
class HaSection(HaOptions, HaAddresses):
    """Replication: its addresses, then its options."""


class RocketmqSlavesSection(_Section):
    """Brokers of RocketMQ that copy this node's log as slaves."""

    listen: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT where a master serves them (haListenPort), with the same port on "
        "all nodes of a group; empty: nowhere",
    )
    allow: Networks = Field(
        (),
        description="addresses from which the log may be copied, and networks as `10.0.0.0/24`; "
        "with `listen` at least one, as RocketMQ's protocol has neither users nor TLS",
    )
    advertise: EndpointOrEmpty = Field(
        "",
        description="HOST:PORT at which they reach `listen`; empty: its port on the host of "
        "`node.advertise`",
    )

    def allows(self, host: str) -> bool:
        """Whether the log may be copied from an address, as sockets name it."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in ipaddress.ip_network(one) for one in self.allow)

    def check(self) -> None:
        """Raise ConfigError if keys contradict each other."""
        if self.listen and not self.allow:
            raise ConfigError(
                "rocketmq_slaves.listen needs rocketmq_slaves.allow, the addresses of the slaves: "
                "anyone who reaches that port gets all messages"
            )
        if not self.listen and (self.allow or self.advertise):
            raise ConfigError(
                "rocketmq_slaves.allow and rocketmq_slaves.advertise need rocketmq_slaves.listen"
            )


class RegistrySection(_Section):
    """The etcd cluster in which nodes elect their masters (broker_role AUTO)."""

    endpoints: str = Field(
        "", description="etcd's client addresses, HOST:PORT[,HOST:PORT...] (etcd 3.4 or newer)"
    )
    lease_seconds: int = Field(
        3,
        ge=1,
        le=300,
        description="a master that does not renew its lease for this long is replaced; etcd may "
        "grant more (docs/failover.md)",
    )
    request_timeout_ms: int = Field(
        800, ge=50, description="longest wait for one etcd member; after it the next one is asked"
    )
    disk_stall_ms: int = Field(
        4000,
        ge=100,
        description="a node stops renewing its lease while a sync takes longer than this",
    )
    tls_ca: Path | None = Field(None, description="file with the CA of etcd's certificates")
    tls_cert: Path | None = Field(
        None, description="file with this node's client certificate for etcd"
    )
    tls_key: Path | None = Field(None, description="file with the key of `tls_cert`")

    @field_validator("endpoints")
    @classmethod
    def _are_endpoints(cls, value: str) -> str:
        for word in filter(None, value.split(",")):
            _endpoint(word.strip())
        return value

    def addresses(self) -> tuple[str, ...]:
        """The endpoints, one by one."""
        return tuple(word.strip() for word in self.endpoints.split(",") if word.strip())


class Config(_Section):
    """The whole configuration."""

    node: NodeSection = NodeSection()
    tls: TlsSection = TlsSection()
    access: AccessSection = AccessSection()
    audit: AuditSection = AuditSection()
    limits: LimitsSection = LimitsSection()
    transactions: TransactionsSection = TransactionsSection()
    rocketmq: RocketmqSection = RocketmqSection()
    remoting: RemotingSection = RemotingSection()
    metrics: MetricsSection = MetricsSection()
    console: ConsoleSection = ConsoleSection()
    traces: TracesSection = TracesSection()
    ha: HaSection = HaSection()
    rocketmq_slaves: RocketmqSlavesSection = RocketmqSlavesSection()
    registry: RegistrySection = RegistrySection()
    store: StoreOptions = StoreOptions()

    def ha_tls(self) -> Tls | None:
        """TLS of the replication port; None without TLS."""
        ha = self.ha
        return Tls(ha.tls_ca, ha.tls_cert, ha.tls_key) if ha.tls_ca else None

    def registry_tls(self) -> Tls | None:
        """TLS of etcd's clients; None without TLS."""
        registry = self.registry
        if registry.tls_ca is None:
            return None
        return Tls(registry.tls_ca, registry.tls_cert, registry.tls_key)

    @property
    def remoting_has_tls(self) -> bool:
        """Whether the remoting port speaks TLS."""
        return bool(self.remoting.listen and self.tls.cert)

    @property
    def needs_client_tls(self) -> bool:
        """Whether any port of clients, or that of the metrics, speaks TLS."""
        return self.tls.serves or self.metrics.tls or self.remoting_has_tls

    def check(self) -> None:
        """Raise ConfigError if keys contradict each other."""
        if self.access.first_user_file and not self.access.key_file:
            raise ConfigError("access.first_user_file needs access.key_file")
        if self.access.node_proof == "offered" and not self.access.key_file:
            raise ConfigError("access.node_proof = offered needs access.key_file")
        rocketmq = self.rocketmq
        if bool(rocketmq.access_key) != bool(rocketmq.secret_key):
            raise ConfigError("rocketmq.access_key and rocketmq.secret_key must be set together")
        if rocketmq.access_key and self.access.key_file:
            raise ConfigError(
                "rocketmq.access_key contradicts access.key_file: where a node has users, "
                "RocketMQ's clients sign as one of them. Remove rocketmq.access_key and "
                "rocketmq.secret_key, and create a user with these as name and password: "
                "`duolog user create NAME --signs`"
            )
        if rocketmq.client_metrics and not self.metrics.listen:
            raise ConfigError(
                "rocketmq.client_metrics needs metrics.listen, where the clients' metrics are shown"
            )
        ha = CertificateFiles(self.ha.tls_ca, self.ha.tls_cert, self.ha.tls_key)
        if len(ha.paths) not in (0, 3):
            raise ConfigError("ha.tls_ca, ha.tls_cert and ha.tls_key must be set together")
        _check_files("ha.tls_*", ha)
        if self.metrics.tls and not self.metrics.listen:
            raise ConfigError("metrics.tls needs metrics.listen")
        if self.console.tls and not self.console.listen:
            raise ConfigError("console.tls needs console.listen")
        if self.console.url and not self.console.listen:
            raise ConfigError("console.url needs console.listen")
        if self.console.tls and any(one.startswith("http:") for one in self.console.origins):
            raise ConfigError("console.url is http://, and with console.tls browsers need https://")
        if self.console.listen and self.tls.only and self.tls.client_certs == "required":
            raise ConfigError(
                "console.listen does not work with tls.client_certs = required: the console calls "
                "the nodes with its users' passwords, and has no certificate"
            )
        if self.remoting.advertise and not self.remoting.listen:
            raise ConfigError("remoting.advertise needs remoting.listen")
        if self.remoting.namesrv_addr and not self.remoting.listen:
            raise ConfigError("remoting.namesrv_addr needs remoting.listen, which is registered")
        if self.remoting.namesrv_ca and not self.remoting.namesrv_addr:
            raise ConfigError("remoting.namesrv_ca needs remoting.namesrv_addr")
        self.tls.check(others=self.metrics.tls or self.console.tls or self.remoting_has_tls)
        self.rocketmq_slaves.check()
        self._check_ports()
        role = self.store.broker_role
        if role is BrokerRole.SLAVE and not self.ha.master:
            raise ConfigError("ha.master must be set: a SLAVE needs the HOST:PORT of its master")
        if role is BrokerRole.SYNC_MASTER and not self.ha.listen:
            raise ConfigError(
                "ha.listen must be set: a SYNC_MASTER needs a replication port for its slaves"
            )
        if role is BrokerRole.AUTO and not self.ha.listen:
            raise ConfigError(
                "ha.listen must be set: an AUTO node needs a replication port for its slaves"
            )
        if role is BrokerRole.AUTO and not self.registry.addresses():
            raise ConfigError(
                "registry.endpoints must be set: an AUTO node needs the addresses of etcd"
            )
        if bool(self.registry.tls_cert) != bool(self.registry.tls_key):
            raise ConfigError("registry.tls_cert and registry.tls_key must be set together")
        registry = self.registry_tls()
        if registry is None and self.registry.tls_cert:
            raise ConfigError("registry.tls_cert needs registry.tls_ca")
        if registry is not None:
            _check_files("registry.tls_*", registry.files)

    @property
    def remoting_fast_address(self) -> str:
        """HOST:PORT where brokers of RocketMQ ask for topics (fastListenPort); empty: nowhere.

        Their slaves ask their master so. Raises ConfigError where there is no such port.
        """
        if not (self.rocketmq_slaves.listen and self.remoting.listen):
            return ""
        host, _, port = self.remoting.listen.rpartition(":")
        if int(port) + FAST_PORT <= 0:
            raise ConfigError(
                f"remoting.listen = {self.remoting.listen}: RocketMQ's slaves ask for topics at "
                "the port two below: choose a port from 3 on"
            )
        return f"{host}:{int(port) + FAST_PORT}"

    @property
    def remoting_vip_address(self) -> str:
        """HOST:PORT where clients with the VIP channel send to; empty: nowhere."""
        host, _, port = self.remoting.listen.rpartition(":")
        if not self.remoting.vip_channel or int(port or 0) + FAST_PORT <= 0:
            return ""
        return f"{host}:{int(port) + FAST_PORT}"

    def option_of(self, address: str) -> str:
        """The option by which this node has a port; empty: by none."""
        ports = self.own_ports().items()
        return next((key for key, one in ports if one and clash(address, one)), "")

    def own_ports(self) -> dict[str, str]:
        """The ports that the node must have, by what an error calls them."""
        serves_slaves = self.store.broker_role is not BrokerRole.SLAVE
        return {
            "node.listen": self.node.listen,
            "node.frames_listen": self.node.frames_address,
            "tls.listen": self.tls.listen,
            "ha.listen": self.ha.listen if serves_slaves else "",
            "ha.frames_listen": self.ha.frames_address if serves_slaves else "",
            "remoting.listen": self.remoting.listen,
            "the port two below remoting.listen": self.remoting_fast_address,
            "rocketmq_slaves.listen": self.rocketmq_slaves.listen,
            "metrics.listen": self.metrics.listen,
            "console.listen": self.console.listen,
        }

    def _check_ports(self) -> None:
        for (key, one), (other_key, other) in combinations(self.own_ports().items(), 2):
            if one and other and clash(one, other):
                raise ConfigError(
                    f"{key} = {one} and {other_key} = {other} are the same port: give each its own"
                )


def clash(one: str, other: str) -> bool:
    """Whether two addresses cannot both be listened on, as far as that shows without names."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if int(port) != int(other_port) or int(port) == 0:
        return False
    hosts = {host, other_host}
    return (
        len(hosts) == 1
        or ("0.0.0.0" in hosts and not any(one.startswith("[") for one in hosts))
        or "[::]" in hosts  # IPv4 as well
    )


def _check_files(keys: str, files: CertificateFiles) -> None:
    try:
        read(files)
    except BadCertificate as error:
        raise ConfigError(f"{keys}: {error}") from None


Origins = dict[tuple[str, str], str]
Tree = dict[str, dict[str, object]]


def load(file: Path | None = None, flags: Tree | None = None) -> tuple[Config, Origins]:
    """The config and, for every key that does not have its default, the origin of its value.

    file: a TOML file that must exist. If None, the file that DUOLOG_CONFIG names, which must exist
    as well; without that variable, ./duolog.toml if it exists. Raises ConfigError.
    """
    tree: Tree = {}
    origins: Origins = {}
    named = os.environ.get(FILE_VARIABLE)
    if file is not None:
        _merge(tree, origins, _read_file(file), str(file))
    elif named:
        _merge(tree, origins, _read_file(Path(named), f"environment {FILE_VARIABLE}: "), named)
    elif Path(DEFAULT_FILE).exists():
        _merge(tree, origins, _read_file(Path(DEFAULT_FILE)), DEFAULT_FILE)
    for section, key, value, name in _environment():
        _merge(tree, origins, {section: {key: value}}, f"environment {name}")
    _merge(tree, origins, flags or {}, "flag")
    _expand_durability(tree, origins)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from None
    config.check()
    return config, origins


def _expand_durability(tree: Tree, origins: Origins) -> None:
    """Set role and flush mode by the one word for them. Raises ConfigError."""
    word = tree.get("node", {}).get("durability")
    if not word:
        return
    try:
        wanted = settings_for(str(word), tree)
    except ValueError as error:
        origin = origins["node", "durability"]
        raise ConfigError(f"node.durability: {error} (from {origin})") from None
    for (section, key), value in wanted.items():
        _merge(tree, origins, {section: {key: value}}, "node.durability")


def _read_file(path: Path, origin: str = "") -> Tree:
    try:
        tree = tomllib.loads(path.read_text("utf-8-sig"))  # editors may begin it with a mark
    except OSError as error:
        raise ConfigError(f"{origin}{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}{path}: invalid TOML: {error}") from None
    for section, keys in tree.items():
        if not isinstance(keys, dict):
            raise ConfigError(
                f"{path}: key {section!r} is outside a section; sections are {', '.join(SECTIONS)}"
            )
    return tree


def _environment() -> list[tuple[str, str, str, str]]:
    """Section, key, value and name of each of our variables. Raises ConfigError."""
    found = []
    for name, value in sorted(os.environ.items()):
        section, separator, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        if not name.startswith(ENV_PREFIX) or not separator:
            continue
        if section not in SECTIONS and not _nearest(section, key, TYPO):
            continue  # a variable of another program
        if key not in _keys(section):
            where = _nearest(section, key, ALIKE)
            meant = f"{ENV_PREFIX}{where.replace('.', '__')}".upper()
            hint = f"; did you mean {meant}?" if where else ""
            raise ConfigError(f"environment {name}: unknown key{hint}")
        found.append((section, key, value, name))
    return found


def _keys(section: str) -> list[str]:
    """Keys of a section; empty for an unknown section."""
    field = Config.model_fields.get(section)
    kind = field.annotation if field is not None else None
    return list(described(kind)) if isinstance(kind, type) else []


def described(section: type) -> dict[str, str]:
    """The keys of a section class and their descriptions."""
    if dataclasses.is_dataclass(section):
        return {field.name: field.metadata["doc"] for field in dataclasses.fields(section)}
    assert issubclass(section, BaseModel), "a section is the one or the other"
    return {key: field.description or "" for key, field in section.model_fields.items()}


def _nearest(section: str, key: str, similar: float) -> str:
    """The SECTION.KEY most similar to an unknown one; empty if none is similar enough."""
    known = [f"{name}.{key}" for name in SECTIONS for key in _keys(name)]
    return next(iter(difflib.get_close_matches(f"{section}.{key}", known, 1, similar)), "")


def _merge(tree: Tree, origins: Origins, more: Tree, origin: str) -> None:
    for section, keys in more.items():
        tree.setdefault(section, {})
        origins[section, ""] = origin
        for key, value in keys.items():
            tree[section][key] = value
            origins[section, key] = origin


def _explain(error: ValidationError, origins: Origins) -> str:
    problems = error.errors()
    # Keys that contradict each other are reported once each of them is valid by itself.
    between = [problem for problem in problems if _is_between_keys(problem)]
    if len(between) == len(problems):
        return "; ".join(f"{one['loc'][0]}: {_text_of(one)}" for one in between)
    lines = []
    for problem in (problem for problem in problems if problem not in between):
        where = ".".join(str(part) for part in problem["loc"])
        parts = [str(part) for part in problem["loc"]]
        origin = origins.get((parts[0], parts[1] if len(parts) > 1 else ""))
        if origin is None and parts:
            origin = next((o for (section, _), o in origins.items() if section == parts[0]), None)
        text = _text_of(problem)
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            text = "unknown key"
            meant = _nearest(parts[0], parts[1], ALIKE) if len(parts) > 1 else ""
            if meant:
                text += f"; did you mean {meant}?"
            elif len(parts) == 1:
                text += f"; sections are {', '.join(SECTIONS)}"
        lines.append(f"{where}: {text}" + (f" (from {origin})" if origin else ""))
    return "; ".join(lines)


def _is_between_keys(problem: ErrorDetails) -> bool:
    return problem["type"] == "value_error" and len(problem["loc"]) == 1


def _text_of(problem: ErrorDetails) -> str:
    return problem["msg"].removeprefix("Value error, ")


def without_login(url: str) -> str:
    """A URL without the user and the password that may be in it, to be shown."""
    return re.sub(r"(?<=://)[^/]*@", "", url)


def rows(config: Config, origins: Origins) -> list[tuple[str, str, object, str]]:
    """Every key as (section, key, value, origin), as it may be shown: without secrets."""
    found = []
    for section in SECTIONS:
        part = getattr(config, section)
        for key in described(type(part)):
            value = getattr(part, key)
            plain = getattr(value, "value", value)
            plain = list(plain) if isinstance(plain, tuple) else plain
            origin = origins.get((section, key), "default")
            if (section, key) == ("node", "durability") and not plain:
                plain = durability_of(config.store, config.ha)
                origin = "store.broker_role, store.flush_disk_type"
            if (section, key) in SECRETS and plain:
                plain = NOT_SHOWN
            elif (section, key) == ("traces", "endpoint"):
                plain = without_login(str(plain))
            found.append(
                (
                    section,
                    key,
                    str(plain) if isinstance(plain, Path) else plain,
                    origin,
                )
            )
    return found
