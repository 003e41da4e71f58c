"""Insecure settings: logged at a start, and shown by `duolog config check`."""

import ipaddress
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from duolog_server.node.runtime.certificates import CertificateFiles, read
from duolog_server.node.runtime.config import Config

_NOT_FOR_OTHERS = stat.S_IWGRP | stat.S_IRWXO  # a group may read, as of mounted secrets


def cautions(config: Config) -> list[str]:
    """Insecure settings, each with a fix. Reads files, which may be gone."""
    found = _plain_ports(config), _rocketmq_slaves(config), _key_files(config), _audit(config)
    return [text for texts in found for text in texts]


EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and the one reported instead


def unreached(config: Config) -> list[str]:
    """Addresses that clients get and cannot reach from other machines."""
    host, _, port = config.node.listen.rpartition(":")
    if config.node.advertise or host.strip("[]") not in EVERY_ADDRESS:
        return []
    told = EVERY_ADDRESS[host.strip("[]")]
    return [
        f"node.listen = {config.node.listen} and node.advertise is not set: clients and nodes "
        f"get {told} as its address, which leads other machines to themselves: set "
        f"node.advertise = HOST:{port}, where they reach it"
    ]


def untimely(config: Config, now: datetime) -> list[str]:
    """Certificates that are not valid at this time. Raises BadCertificate."""
    found = (read(files).invalid(now) for files in certificate_files(config))
    return [f"{reason}: replace it" for reason in found if reason]


def _plain_ports(config: Config) -> Iterator[str]:
    if config.access.key_file is not None and not config.tls.only:
        ports = {"node.listen": config.node.listen, "node.frames_listen": _frames_of(config)}
        for key, address in ports.items():
            if _is_reached(address):
                yield (
                    f"{key} = {address}: users call a port without TLS, where their passwords and "
                    "messages can be sniffed: set tls.only, or listen on loopback"
                )
    yield from _remoting(config)
    plain_metrics = _is_reached(config.metrics.listen) and not config.metrics.tls
    if config.access.key_file is not None and plain_metrics:
        yield (
            f"metrics.listen = {config.metrics.listen}: users give their passwords there without "
            "TLS: set metrics.tls, or listen on loopback"
        )
    if config.access.node_proof == "offered":
        yield (
            "access.node_proof = offered: nodes without the key still get the log: remove it as "
            "soon as all nodes of the group have access.key_file"
        )
    if _is_reached(config.ha.listen) and config.ha.tls_ca is None:
        yield (
            f"ha.listen = {config.ha.listen}: replication has no TLS, so {_who_reads(config)} "
            "can read all messages: set ha.tls_*, or listen where only the group's nodes are"
        )


def _remoting(config: Config) -> Iterator[str]:
    address = config.remoting.listen
    if not _is_reached(address):
        return
    if config.access.key_file is None and not config.rocketmq.access_key:
        yield (
            f"remoting.listen = {address}: without users, anyone who reaches this port may read or "
            "write all topics: set access.key_file, or listen on loopback"
        )
    elif not config.tls.only:
        yield (
            f"remoting.listen = {address}: it takes requests without TLS, and anyone who sniffs a "
            "signed one can replay it: set tls.only, or listen on loopback"
        )


def _rocketmq_slaves(config: Config) -> Iterator[str]:
    listen: str = config.rocketmq_slaves.listen
    if _is_reached(listen):
        yield (
            f"rocketmq_slaves.listen = {listen}: RocketMQ's protocol has no TLS and no passwords, "
            "so anyone with an allowed address, or who can sniff the network, can read all "
            "messages: listen where only the slaves are"
        )


def _who_reads(config: Config) -> str:
    """The readers of a log whose replication has no TLS."""
    if config.access.key_file is None or config.access.node_proof == "offered":
        return "anyone who reaches this port"
    return "anyone who can sniff the network"


def _audit(config: Config) -> Iterator[str]:
    if config.audit.topic and config.access.key_file is None:
        yield (
            "audit.topic = true: without users, anyone who reaches this node can read the log: "
            "set audit.file in its place, or access.key_file"
        )


def _frames_of(config: Config) -> str:
    """The port for frames, if configured separately."""
    frames: str = config.node.frames_address
    return "" if frames.endswith(":0") else frames


def _is_reached(address: str) -> bool:
    """Whether other machines may reach an address; empty: there is none."""
    host = address.rpartition(":")[0].strip("[]")
    if not host or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True  # a name


def certificate_files(config: Config) -> tuple[CertificateFiles, ...]:
    """The files of all certificates that a node uses."""
    parts = (config.ha_tls(), config.registry_tls())
    return (config.tls.files, *(part.files for part in parts if part is not None))


def _key_files(config: Config) -> Iterator[str]:
    keys = [files.key for files in certificate_files(config)]
    for path in dict.fromkeys([*keys, config.access.first_user_file]):
        if path is not None and _is_open(path):
            yield f"{path}: it is open to others than its owner: chmod 600 {path}"


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _NOT_FOR_OTHERS)
    except OSError:
        return False
