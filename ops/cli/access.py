"""The connection settings of a command: its nodes, user and TLS, shared by all that call nodes.

Rules: each setting is taken from the flag, else the environment, else the context, else it is the
default; a context that a flag names comes before the environment. A context's password is for its
own user. A password is on no command line. What commands that call nodes share (--endpoints,
--timeout, --json and the connection's options) they get in one place: `calls`.
"""

import os
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from duolog import Client, Tls
    from duolog._caller import Caller

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# The tree of commands imports this module, also for --help: it imports others when it needs them.

DEFAULT_ENDPOINTS = "127.0.0.1:8081"
PANEL = "Nodes and user"
_PASSWORD = ("password", "password_file")
FLAGS, ENVIRONMENT = "duolog.access.flags", "duolog.access.environment"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A command's nodes, user and TLS. context: the one that it comes from, if any."""

    endpoints: str = DEFAULT_ENDPOINTS
    user: str = ""
    password: str = field(default="", repr=False)
    tls: "Tls | None" = None
    context: str = ""


_PLAIN = ConnectionSettings()
_current: ContextVar[ConnectionSettings] = ContextVar("connection_settings")
_seconds: ContextVar[float] = ContextVar("seconds", default=10.0)


def connection_settings() -> ConnectionSettings:
    """The connection settings of the running command."""
    return _current.get(_PLAIN)


def client_of(endpoints: str, timeout: float) -> "Client":
    """A client of some nodes, as the user that the command runs as."""
    from duolog import Client

    settings = connection_settings()
    return Client(
        endpoints, user=settings.user, password=settings.password, tls=settings.tls, timeout=timeout
    )


def asked(
    call: "Callable[[Client], Coroutine[object, None, T]]",
    hints: Mapping[str, str] | None = None,
) -> T:
    """The answer of the nodes that the command calls; ends it where that fails. hints: see `run`.

    call: what is asked of them; one call, or several.
    """
    from duolog_server.ops.cli.output import run

    async def ask() -> T:
        async with client_of(connection_settings().endpoints, call_seconds()) as client:
            return await call(client)

    return run(ask(), hints)


def call_seconds() -> float:
    """How long the calls of the running command may take."""
    return _seconds.get()


def caller() -> "Caller":
    """The command's credentials, for jobs."""
    from duolog._caller import Caller

    settings = connection_settings()
    return Caller(settings.user, settings.password, tls=settings.tls)


# -- the options -----------------------------------------------------------------------------------


def _noted(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Keep what was given, with where it was given, for `resolved`."""
    assert param.name is not None, "options have names"
    source = ctx.get_parameter_source(param.name)
    where = {"COMMANDLINE": FLAGS, "ENVIRONMENT": ENVIRONMENT}.get(source.name if source else "")
    if where is not None and value is not None:
        ctx.meta.setdefault(where, {})[param.name] = value
    return value


def _keep(ctx: typer.Context, kept: ContextVar[T], value: T) -> None:
    """Set a variable for as long as a command runs."""
    token = kept.set(value)
    ctx.call_on_close(lambda: kept.reset(token))


def _resolve(ctx: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """The endpoints of a command; and all that goes with them becomes the current settings."""
    _noted(ctx, param, value)
    if ctx.resilient_parsing:  # for completion
        return value
    settings = resolved(ctx.meta.get(FLAGS, {}), ctx.meta.get(ENVIRONMENT, {}))
    from duolog_server.ops.cli.output import context_in_use

    _keep(ctx, _current, settings)
    _keep(ctx, context_in_use, settings.context)
    return settings.endpoints


def _timed(ctx: typer.Context, param: typer.CallbackParam, value: float) -> float:
    _keep(ctx, _seconds, value)
    return value


def _printed(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> bool:
    from duolog_server.ops.cli.output import json_wanted

    _keep(ctx, json_wanted, value)
    return value


def option(*flags: str, text: str, keep: Callable[..., Any], **how: Any) -> Any:
    """An option that is kept by `keep`; the function of a command does not get it.

    It may be given by a variable, too, which is named after it: DUOLOG_TLS_CA for --tls-ca.
    """
    variable = flags[0].partition("/")[0].strip("-").replace("-", "_").upper()
    how.setdefault("envvar", f"DUOLOG_{variable}")
    return typer.Option(*flags, help=text, callback=keep, expose_value=False, **how)


def _option(flag: str, text: str) -> Any:
    return option(flag, text=text, keep=_noted, is_eager=True, rich_help_panel=PANEL)


def shared(
    endpoints: Annotated[
        str,
        option("--endpoints", "-e", text="HOST:PORT[,HOST:PORT...] of nodes.", keep=_resolve),
    ] = DEFAULT_ENDPOINTS,
    timeout: Annotated[
        float,
        option(
            "--timeout", text="Time limit of the whole call in seconds.", keep=_timed, envvar=None
        ),
    ] = 10.0,
    as_json: Annotated[
        bool, option("--json", text="Print JSON.", keep=_printed, envvar=None)
    ] = False,
    context: Annotated[str | None, _option("--context", "Context to use; '' for none.")] = None,
    user: Annotated[str | None, _option("--user", "User to call as.")] = None,
    password_file: Annotated[
        str | None,
        _option("--password-file", "File with the user's password (or DUOLOG_PASSWORD)."),
    ] = None,
    tls: Annotated[bool | None, _option("--tls/--no-tls", "Connect with TLS.")] = None,
    tls_ca: Annotated[
        str | None, _option("--tls-ca", "File with the CA of the nodes; default: the system's.")
    ] = None,
    tls_cert: Annotated[
        str | None, _option("--tls-cert", "File with the client's certificate.")
    ] = None,
    tls_key: Annotated[str | None, _option("--tls-key", "File with the key of --tls-cert.")] = None,
    tls_port: Annotated[
        str | None, _option("--tls-port", "TLS port of every node, if routes name another.")
    ] = None,
) -> None:
    """Carries the options that commands share; never called."""


_CALLING = ("endpoints", "timeout", "as_json")
CONNECTION = tuple(name for name in shared.__annotations__ if name not in (*_CALLING, "return"))


def add_options(
    command: TyperCommand | TyperGroup, sample: Callable[..., None], names: Collection[str] = ()
) -> None:
    """Give a command the options that a function is declared with, or those named of them."""
    app = typer.Typer(add_completion=False)
    app.command()(sample)
    made = typer.main.get_command(app).params
    command.params.extend(one for one in made if one.name in (names or sample.__annotations__))


def calls(
    app: typer.Typer,
    name: str | None = None,
    *,
    timeout: float | None = 10.0,
    json: bool = True,
    cls: type[TyperCommand] = TyperCommand,
) -> Callable[[F], F]:
    """Add a command that calls nodes: with --endpoints, --timeout and --json, and the options of
    its connection. timeout: by default, in seconds; None, False: without that option.
    """
    names = ["endpoints"]
    names += ["timeout"] if timeout is not None else []
    names += ["as_json"] if json else []

    class Calling(cls):  # type: ignore[valid-type, misc]
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            add_options(self, shared, [*names, *CONNECTION])
            for one in self.params:
                one.default = timeout if one.name == "timeout" else one.default

    return app.command(name, cls=Calling)


def prints(
    app: typer.Typer, name: str | None = None, *, cls: type[TyperCommand] = TyperCommand
) -> Callable[[F], F]:
    """Add a command that calls no node, and has --json."""

    class Printing(cls):  # type: ignore[valid-type, misc]
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            add_options(self, shared, ["as_json"])

    return app.command(name, cls=Printing)


# -- what they come to -----------------------------------------------------------------------------


def _refuse(text: str, hint: str = "") -> NoReturn:
    from duolog_server.ops.cli.output import refuse

    refuse(text, hint)


def resolved(flags: Mapping[str, Any], environment: Mapping[str, Any]) -> ConnectionSettings:
    """Resolve flags, environment and context; exit if they do not fit.

    environment: without DUOLOG_PASSWORD, which is read here.
    """
    name, context = _context(flags, environment)
    variables = {**environment}
    if os.environ.get("DUOLOG_PASSWORD"):
        variables["password"] = os.environ["DUOLOG_PASSWORD"]
    first, second = _texts(flags), _texts(variables)

    def levels() -> list[dict[str, str]]:
        return [first, context, second] if "context" in flags else [first, second, context]

    asked_for = "context" in flags or "user" in first
    if not asked_for and _elsewhere(_merged([first, second]), context):
        context = _without(context, "user", *_PASSWORD)
    user = _merged(levels()).get("user", "")
    if context.get("user", "") != user:
        context = _without(context, *_PASSWORD)
    found = _merged(levels())
    return ConnectionSettings(
        found.get("endpoints") or DEFAULT_ENDPOINTS,
        user,
        _password(user, levels()),
        _tls(found, levels()),
        name,
    )


def _merged(levels: list[dict[str, str]]) -> dict[str, str]:
    """Settings, the first level that has one first."""
    return {key: value for level in reversed(levels) for key, value in level.items()}


def _without(level: Mapping[str, str], *names: str) -> dict[str, str]:
    return {key: value for key, value in level.items() if key not in names}


def _elsewhere(said: Mapping[str, str], context: Mapping[str, str]) -> bool:
    """Whether other nodes are meant than those of the context, who must not see its password."""

    def nodes(settings: Mapping[str, str]) -> set[str]:
        return {word.strip() for word in settings.get("endpoints", "").split(",") if word.strip()}

    return bool(nodes(context)) and not nodes(said) <= nodes(context)


def _texts(level: Mapping[str, Any]) -> dict[str, str]:
    """Settings as contexts have them."""
    switch = {True: "on", False: "off"}
    return {
        name: switch[value] if isinstance(value, bool) else str(value)
        for name, value in level.items()
        if name != "context" and value != ""
    }


def _context(
    flags: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """The context in use, and what it says."""
    from duolog_server.ops.cli.contexts import ContextError, load_contexts

    named = flags.get("context", environment.get("context"))
    if named == "":
        return "", {}
    try:
        contexts = load_contexts()
        name = named or contexts.current
        return (name, contexts.get(name).settings()) if name else ("", {})
    except ContextError as error:
        _refuse(str(error), "duolog context list")


def _password(user: str, levels: list[dict[str, str]]) -> str:
    """The password of the first level that has one."""
    for level in levels:
        if "password" in level and "password_file" in level:
            _refuse("give the password as DUOLOG_PASSWORD or in a file, not both")
        if "password" in level:
            return _of_user(user, level["password"])
        if "password_file" in level:
            return _of_user(user, read_password(level["password_file"]))
    if user:
        _refuse(
            f"user {user!r} has no password",
            "--password-file FILE, DUOLOG_PASSWORD_FILE or DUOLOG_PASSWORD",
        )
    return ""


def _of_user(user: str, password: str) -> str:
    if not user:
        _refuse("a password was given without a user", "--user NAME, or DUOLOG_USER")
    return password


def read_password(file: str) -> str:
    """The password in a file; it fails the command where there is none."""
    from duolog import BadRequest
    from duolog._login import password_in

    try:
        return password_in(file)
    except BadRequest as error:
        _refuse(str(error))


def asked_password(question: str) -> str:
    """Read the password from a prompt, or from stdin if it is not a terminal; exit without it."""
    if sys.stdin.isatty():
        return str(typer.prompt(question, hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not password:
        _refuse("stdin has no password")
    return password


def _tls(found: Mapping[str, str], levels: list[dict[str, str]]) -> "Tls | None":
    """None without TLS. The first level that says anything about it decides: a file asks for it."""
    asked = "off"
    for level in reversed(levels):
        if any(name.startswith("tls") for name in level):
            asked = level.get("tls", "on")
    if asked == "off":  # whatever else is said, as by a level below
        return None
    return tls_of_settings({**found, "tls": asked})


def tls_of_settings(settings: Mapping[str, str]) -> "Tls | None":
    """TLS as options, variables or a context say; it fails the command where it cannot be."""
    from duolog import BadRequest
    from duolog._tls import TLS_SETTINGS, tls_in

    from duolog_server.ops.cli.output import help_of

    spelled = {name: f"--{name.replace('_', '-')}" for name in TLS_SETTINGS}
    try:
        return tls_in(settings, spelled)
    except BadRequest as error:
        _refuse(str(error), help_of())
