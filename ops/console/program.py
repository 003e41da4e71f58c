"""The program of the console: its clients, its certificate, and how it ends."""

import asyncio
import signal
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
from duolog import Client, Tls
from duolog._login import Login
from duolog._runtime import MACHINE

from duolog_server.node.identity.access.vouching import Viewers, Vouching
from duolog_server.node.runtime.certificates import CertificateFiles, Pem, Renewed
from duolog_server.node.runtime.consoleprocess import ConsoleOptions
from duolog_server.node.runtime.logs import configure_logging
from duolog_server.node.runtime.tls import renewing_context, server_context
from duolog_server.ops.console.app import Console
from duolog_server.ops.console.http import security
from duolog_server.ops.console.http.serving import Server
from duolog_server.ops.console.masking.masks import Masks
from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.sessions.viewers import Settings
from duolog_server.ops.inspection.messages.protobodies import ProtoTypes

CALL_SECONDS = 5.0  # that a page waits for the nodes
log = structlog.get_logger("duolog.console")


def run(options: ConsoleOptions, sockets: Sequence[socket.socket]) -> None:
    """Serve on sockets that listen, until the process is interrupted.

    Raises BadCertificate, BadMask and BadDescriptors. A file of descriptors that cannot be used is
    logged; the pages of its messages say so.
    """
    configure_logging("warning", options.log_json)
    port, seeing = sockets[0].getsockname()[1], seeing_of(options)
    for wrong in seeing.types.wrong:
        log.error("bodies cannot be shown as Protobuf", reason=wrong)
    settings = replace(settings_of(options, port), seeing=seeing)
    app = Console(settings, partial(client_of, options)).app()
    context = context_of(options)

    async def work() -> None:
        loop, server = asyncio.get_running_loop(), Server(app, context)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end)
        await server.serve(list(sockets))

    asyncio.run(work())


def settings_of(options: ConsoleOptions, port: int) -> Settings:
    """How browsers reach the console. Behind a proxy, they are not on this machine."""
    origins = options.origins
    loopback = is_loopback(options.host) and not origins
    secured = bool(options.cert) or any(one.startswith("https:") for one in origins)
    return Settings(options.endpoints, loopback, port, secured, origins)


def client_of(options: ConsoleOptions, user: str, password: str) -> Client:
    """A client of the nodes as a user. Raises BadRequest."""
    tls = Tls(options.ca or None) if options.tls else None
    client = partial(Client, options.endpoints, tls=tls, timeout=CALL_SECONDS)
    if not options.vouching or not user:
        return client(user=user, password=password)
    viewers = Viewers(Vouching(bytes.fromhex(options.vouching)))

    def told() -> list[tuple[str, str]]:
        address = security.VIEWER.get()
        return viewers.told(user, address) if address else []

    # Frames name no viewers: their calls would count as the console's.
    return client(runtime=replace(MACHINE, frames=False, login=Login(user, password, told)))


def seeing_of(options: ConsoleOptions) -> Seeing:
    """How messages are shown. Raises BadMask and BadDescriptors for an invalid rule."""
    return Seeing(ProtoTypes.of(options.protobuf), Masks.of(options.mask))


def context_of(options: ConsoleOptions) -> ssl.SSLContext | None:
    """TLS of the console's port, always with the newest files. Raises BadCertificate."""
    if not options.cert:
        return None
    files = CertificateFiles(None, Path(options.cert), Path(options.key))
    return renewing_context(Renewed(files, _served).now)


def _served(pem: Pem) -> ssl.SSLContext:
    return server_context(pem, ssl.CERT_NONE)


def is_loopback(host: str) -> bool:
    """Whether a host that is listened on is reached from its own machine only."""
    return security.is_loopback(host.strip("[]"))
