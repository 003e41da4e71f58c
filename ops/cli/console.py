"""`duolog console`: the cluster in a browser."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from duolog_server.ops.cli.access import calls, connection_settings
from duolog_server.ops.cli.output import fail, help_of, say

app = typer.Typer(add_completion=False)

DEFAULT_LISTEN = "127.0.0.1:8090"


@calls(app, timeout=None, json=False)
def console(
    listen: Annotated[
        str, typer.Option(help="HOST:PORT that browsers reach; port 0: a free one.")
    ] = DEFAULT_LISTEN,
    cert: Annotated[str, typer.Option(help="Certificate of the console, to serve TLS.")] = "",
    key: Annotated[str, typer.Option(help="Its key.")] = "",
    url: Annotated[
        str,
        typer.Option(help="Its URL behind a proxy, such as https://HOST; several with commas."),
    ] = "",
    protobuf: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=FILE:TYPE", help="Show these bodies as Protobuf (repeatable)."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=FIELD,...",
            help="Do not show these fields, or the whole body (TOPIC=hidden; repeatable).",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="`access.key_file` of the nodes: with it the console vouches for the addresses of "
            "its viewers."
        ),
    ] = None,
) -> None:
    """Serve the console, until it is interrupted.

    Viewers log in as users of the nodes and see what these may see. Where the nodes have no users,
    the console serves loopback only.
    """
    from duolog import BadRequest
    from duolog._client import parse_endpoints

    from duolog_server.node.identity.access.secrets import BadKeyFile, derived, read_key
    from duolog_server.node.identity.access.vouching import CONSOLE
    from duolog_server.node.runtime.certificates import BadCertificate
    from duolog_server.node.runtime.consoleprocess import ConsoleOptions
    from duolog_server.node.runtime.origins import BadOrigin, origins_of
    from duolog_server.ops.console.masking.masks import BadMask
    from duolog_server.ops.console.program import context_of, is_loopback, run, seeing_of
    from duolog_server.ops.inspection.messages.protobodies import BadDescriptors

    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        fail(f"--listen {listen!r} is not HOST:PORT", help_of())
    if bool(cert) != bool(key):
        fail("--cert and --key go together", help_of())
    if cert and url.strip().startswith("http:"):
        fail(f"--url {url} is http, and with --cert browsers need https", help_of())
    settings = connection_settings()
    tls = settings.tls
    try:
        options = ConsoleOptions(
            parse_endpoints(settings.endpoints),
            host,
            tls=tls is not None,
            ca=str(tls.ca or "") if tls is not None else "",
            cert=cert,
            key=key,
            origins=origins_of(url),
            protobuf=tuple(protobuf or ()),
            mask=tuple(mask or ()),
            vouching=derived(read_key(key_file), CONSOLE).hex() if key_file is not None else "",
        )
        context_of(options)
        wrong = seeing_of(options).types.wrong
    except BadKeyFile as error:
        fail(f"--key-file: {error}", help_of())
    except (BadRequest, BadCertificate, BadDescriptors, BadMask, BadOrigin) as error:
        fail(str(error), help_of())
    if wrong:
        fail(f"--protobuf {wrong[0]}", help_of())
    made = _listening(listen)
    scheme, at = "https" if cert else "http", made.getsockname()[1]
    behind = f", which browsers see at {' and '.join(options.origins)}" if options.origins else ""
    say(f"console of {', '.join(options.endpoints)}: {scheme}://{host}:{at}/{behind}")
    if not is_loopback(host) and not cert:
        say("passwords are sent in clear text: give --cert and --key, or listen on loopback")
    with made:
        run(options, [made])


def _listening(listen: str) -> socket.socket:
    """A socket that listens on HOST:PORT; it fails the command where that cannot be."""
    host, _, port = listen.rpartition(":")
    both = host == "[::]" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        at = host.strip("[]"), int(port)
        return socket.create_server(at, family=family, dualstack_ipv6=both)
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror or error}", "--listen HOST:PORT")
