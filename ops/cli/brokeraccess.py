"""Credentials and TLS with which commands call RocketMQ's brokers.

Rules: each setting is taken from the flag, else the environment. A secret key is on no command line
and in no output. The options are added to every command of the class `CallsBrokers`, in one place.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from duolog_server.ops.cli.access import add_options, option
from duolog_server.ops.cli.output import USAGE, fail, help_of

if TYPE_CHECKING:
    from ssl import SSLContext

    from duolog._tls import Tls

    from duolog_server.compat.remoting.calling import Access

PANEL = "Brokers of RocketMQ"
SECRET_KEY = "DUOLOG_BROKER_SECRET_KEY"
_HINT = f"--broker-access-key KEY, and --broker-secret-key-file FILE or {SECRET_KEY}"
_KEPT = "duolog.brokeraccess"


def _noted(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    assert param.name is not None, "options have names"
    if value is not None:
        ctx.meta.setdefault(_KEPT, {})[param.name.removeprefix("broker_")] = value
    return value


def _option(flag: str, text: str) -> Any:
    return option(flag, text=text, keep=_noted, is_eager=True, rich_help_panel=PANEL)


def _shared(
    broker_access_key: Annotated[
        str | None, _option("--broker-access-key", "Access key (ACL) to call brokers with.")
    ] = None,
    broker_secret_key_file: Annotated[
        str | None,
        _option("--broker-secret-key-file", f"File with its secret key (or {SECRET_KEY})."),
    ] = None,
    broker_tls: Annotated[
        bool | None,
        _option("--broker-tls/--no-broker-tls", "Connect with TLS; not to the HA port."),
    ] = None,
    broker_tls_ca: Annotated[
        str | None,
        _option("--broker-tls-ca", "File with the CA of brokers; default: the system's."),
    ] = None,
    broker_tls_cert: Annotated[
        str | None, _option("--broker-tls-cert", "File with the client's certificate.")
    ] = None,
    broker_tls_key: Annotated[
        str | None, _option("--broker-tls-key", "File with the key of --broker-tls-cert.")
    ] = None,
    broker_tls_name: Annotated[
        str | None,
        _option("--broker-tls-name", "Name in their certificates; default: the host."),
    ] = None,
    broker_tls_unverified: Annotated[
        bool | None,
        _option("--broker-tls-unverified", "Accept any certificate, as RocketMQ's clients do."),
    ] = None,
) -> None:
    """Carries the options; never called."""


class CallsBrokers(TyperCommand):
    """A command that calls brokers or name servers of RocketMQ."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        add_options(self, _shared)


def broker_access(ctx: typer.Context) -> "Access":
    """Credentials from a command's options; exit if they do not fit."""
    from duolog_server.compat.remoting.calling import Access, signing

    given: Mapping[str, Any] = ctx.meta.get(_KEPT, {})
    key, secret = given.get("access_key", ""), _secret_key(given.get("secret_key_file", ""))
    if bool(key) != bool(secret):
        _refuse(
            "an access key needs its secret key: give --broker-access-key, and "
            f"--broker-secret-key-file or {SECRET_KEY}"
        )
    sign, name = signing(key, secret) if key else None, given.get("tls_name", "")
    unverified = bool(given.get("tls_unverified"))
    tls = _tls(given, asked=bool(name) or unverified)
    if tls is None:
        return Access(sign)
    if unverified and (tls.ca or name):
        _refuse("--broker-tls-unverified takes any certificate: --broker-tls-ca and -name do not")
    return Access(sign, _contexts(tls, verify=not unverified), name)


def hint_for(error: Exception, usual: str = "") -> str:
    """The hint after a failed call. usual: if it was not denied."""
    from duolog_server.compat.remoting.calling import CallRefused

    return _HINT if isinstance(error, CallRefused) and error.is_denial else usual


def _refuse(text: str) -> NoReturn:
    fail(text, help_of(), USAGE)


def _secret_key(file: str) -> str:
    from duolog import BadRequest
    from duolog._login import password_in

    secret = os.environ.get(SECRET_KEY, "")
    if secret and file:
        _refuse(f"give the secret key as {SECRET_KEY} or in a file, not both")
    try:
        return password_in(file, "secret key") if file else secret
    except BadRequest as error:
        _refuse(str(error))


def _tls(given: Mapping[str, Any], *, asked: bool) -> "Tls | None":
    """Files and switch as they are given; None without TLS. asked: another option is of TLS."""
    from duolog import BadRequest
    from duolog._tls import TLS_SETTINGS, tls_in

    switch = given.get("tls", True if asked else None)
    texts = {name: str(given[name]) for name in TLS_SETTINGS if name != "tls" and name in given}
    spelled = {name: f"--broker-{name.replace('_', '-')}" for name in TLS_SETTINGS}
    try:
        return tls_in({**texts, "tls": "" if switch is None else str(switch)}, spelled)
    except BadRequest as error:
        _refuse(str(error))


def _contexts(tls: "Tls", *, verify: bool) -> "Callable[[], SSLContext]":
    """Makes the context of each connection, of the newest files."""
    from duolog_server.node.runtime.certificates import BadCertificate, CertificateFiles, Renewed
    from duolog_server.node.runtime.tls import client_context

    files = [Path(file) if file is not None else None for file in (tls.ca, tls.cert, tls.key)]
    try:
        return Renewed(CertificateFiles(*files), partial(client_context, verify=verify)).now
    except BadCertificate as error:
        _refuse(str(error))
