"""What the nodes of one machine, its shards, have of their own; all else one configuration has.

Shard K, from 0 on, is the node NAME-K of the replica group GROUP-K in the directory DATA/shard-K,
and each of its ports is `PORT_STEP` times K above the configured one. Its metrics are on the
loopback; those of all are at the configured port. The console, which shows the whole cluster, is
shard 0's alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duolog_server.node.runtime.config import (
    SECTIONS,
    Config,
    ConfigError,
    Tree,
    clash,
    described,
    load,
)
from duolog_server.store.status import BrokerRole

PORT_STEP = 10
METRICS_STEP = 1  # of shard 0's port of metrics above that of all shards
OWN_ADDRESSES = ("listen", "advertise", "frames_listen")


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """One shard. flags: its settings over the file and the environment. config: all of them."""

    flags: Tree
    config: Config

    @property
    def metrics_port(self) -> int:
        """Its port on the loopback; 0: there are no metrics."""
        return int(self.config.metrics.listen.rpartition(":")[2] or 0)


def shards_of(config: Config, file: Path | None, flags: Tree, count: int) -> list[ShardSettings]:
    """The settings of each shard. config: what `load` made of the file and the flags.

    Raises ConfigError where they cannot all run, or clients would not find them all.
    """
    if config.store.broker_role is not BrokerRole.AUTO:
        raise ConfigError(
            f"--shards {count} needs nodes that elect their masters: set store.broker_role = AUTO "
            f"(--role) and registry.endpoints (--registry). With {config.store.broker_role.value} "
            "the groups of the shards do not know each other, and a client finds one of them alone"
        )
    if config.metrics.tls:
        raise ConfigError(
            f"--shards {count} serves the metrics of all shards without TLS: leave metrics.tls "
            "out, and let metrics.listen be reached by Prometheus alone"
        )
    if config.metrics.listen.endswith(":0"):
        raise ConfigError(
            f"metrics.listen = {config.metrics.listen}: with --shards {count} the port must be "
            "named, as the shards have theirs above it"
        )
    found = []
    for shard in range(count):
        own = {section: {**flags.get(section, {})} for section in {*flags, "node"}}
        for section, key, value in _settings_of(config, shard):
            own.setdefault(section, {})[key] = value
        found.append(ShardSettings(own, load(file, own)[0]))
    _check_ports(config, found)
    return found


def _settings_of(config: Config, shard: int) -> Iterator[tuple[str, str, str]]:
    """Section, key and value of what a shard has of its own."""
    node = config.node
    yield "node", "name", f"{node.name}-{shard}"
    yield "node", "group", f"{node.group}-{shard}"
    yield "node", "data", str(node.data / f"shard-{shard}")
    yield "node", "log_name", "true"
    if config.audit.file is not None:
        file = config.audit.file
        yield "audit", "file", str(file.with_stem(f"{file.stem}-{shard}"))
    for section in SECTIONS:
        part = getattr(config, section)
        for key in described(type(part)):
            if key in OWN_ADDRESSES and section not in ("metrics", "console"):
                yield section, key, _above(getattr(part, key), PORT_STEP * shard)
    if config.metrics.listen:
        port = config.metrics.listen.rpartition(":")[2]
        yield "metrics", "listen", _above(f"127.0.0.1:{port}", METRICS_STEP + PORT_STEP * shard)
    if shard and config.console.listen:
        yield from (("console", "listen", ""), ("console", "tls", "false"), ("console", "url", ""))


def _above(address: str, ports: int) -> str:
    """An address so many ports higher. Without a port, or with a free one, it stays.

    Raises ConfigError.
    """
    host, _, port = address.rpartition(":")
    if not int(port if port.isdecimal() else 0):
        return address
    if int(port) + ports > 65535:
        raise ConfigError(f"{address}: there is no port {ports} above it for the last shards")
    return f"{host}:{int(port) + ports}"


def _check_ports(config: Config, shards: list[ShardSettings]) -> None:
    """Raise ConfigError where two shards would have the same port."""
    taken: dict[str, list[tuple[str, str]]] = {}  # by port: whose it is, and the address
    listen = config.metrics.listen
    everybody = [("metrics.listen", listen)] if listen else []
    for owner, addresses in [
        ("all shards", everybody),
        *((f"shard {number}", _ports_of(shard.config)) for number, shard in enumerate(shards)),
    ]:
        for key, address in addresses:
            others = taken.setdefault(address.rpartition(":")[2], [])
            for whose, other in others:
                if clash(address, other) and not whose.startswith(f"{owner}:"):
                    raise ConfigError(
                        f"{owner}: {key} = {address} and {whose} = {other} are the same port: "
                        f"ports of a shard are {PORT_STEP} above those of the one before; "
                        f"choose ports whose last digits differ"
                    )
            others.append((f"{owner}: {key}", address))


def _ports_of(config: Config) -> list[tuple[str, str]]:
    vip = ("the VIP channel of remoting.listen", config.remoting_vip_address)
    return [(key, one) for key, one in (*config.own_ports().items(), vip) if one]
