"""`duolog context`: named connection settings, one of which is in use."""

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import DEFAULT_ENDPOINTS, asked_password, prints, tls_of_settings
from duolog_server.ops.cli.contexts import (
    Context,
    ContextError,
    Contexts,
    load_contexts,
    save_contexts,
)

app = typer.Typer(no_args_is_help=True)
Name = typer.Argument(help="Name of the context.", metavar="NAME")
LIST = "duolog context list"


@app.callback()
def _group() -> None:
    """Manage named connection settings."""


def _refuse(text: str, hint: str = LIST) -> NoReturn:
    output.fail(text, hint, output.USAGE)


def _load() -> Contexts:
    try:
        return load_contexts()
    except ContextError as error:
        _refuse(str(error), "duolog context --help")


def _save(contexts: Contexts) -> None:
    try:
        save_contexts(contexts)
    except ContextError as error:
        output.fail(str(error))


@app.command()
def add(
    name: Annotated[str, Name],
    nodes: Annotated[
        str, typer.Option("--endpoints", "-e", help="HOST:PORT[,HOST:PORT...] of nodes.")
    ] = DEFAULT_ENDPOINTS,
    user: Annotated[str, typer.Option(help="User to call as.")] = "",
    password_file: Annotated[
        str, typer.Option(help="File with the user's password, read for each command.")
    ] = "",
    store_password: Annotated[
        bool,
        typer.Option("--store-password", help="Ask for the password, or read stdin, and keep it."),
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    tls_ca: Annotated[
        str, typer.Option(help="File with the CA of the nodes; default: the system's.")
    ] = "",
    tls_cert: Annotated[str, typer.Option(help="File with the client's certificate.")] = "",
    tls_key: Annotated[str, typer.Option(help="File with the key of --tls-cert.")] = "",
    tls_port: Annotated[
        str, typer.Option(help="TLS port of every node, where routes name another.")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace one that exists.")] = False,
) -> None:
    """Add a context. It is used once `duolog context use` or --context names it."""
    contexts = _load()
    if name in contexts.known and not replace:
        _refuse(f"context {name!r} exists", f"duolog context add {name} --replace ...")
    if (password_file or store_password) and not user:
        _refuse("a password was given without a user", "--user NAME")
    if password_file and store_password:
        _refuse("give --password-file or --store-password, not both", "duolog context add --help")
    secured = {
        "tls": "on" if tls else "",
        "tls_ca": _absolute(tls_ca),
        "tls_cert": _absolute(tls_cert),
        "tls_key": _absolute(tls_key),
        "tls_port": tls_port,
    }
    if tls_of_settings(secured) is not None:
        secured["tls"] = "on"
    _check(nodes, user)
    context = Context(
        endpoints=nodes,
        user=user,
        password_file=_absolute(password_file),
        **secured,
        password=asked_password("Password") if store_password else "",
    )
    try:
        _save(contexts.having(name, context))
    except ContextError as error:
        _refuse(str(error))
    output.say(f"added {name}; duolog context use {name} makes it the current one")


def _check(nodes: str, user: str) -> None:
    """Refuse what no client takes."""
    from duolog import BadRequest
    from duolog._client import parse_endpoints
    from duolog._login import login_of

    try:
        parse_endpoints(nodes)
        login_of(user, "any" if user else "")
    except BadRequest as error:
        _refuse(str(error), "duolog context add --help")


def _absolute(path: str) -> str:
    """Commands run in any directory."""
    return os.path.abspath(Path(path).expanduser()) if path else ""


@app.command()
def use(name: Annotated[str, Name]) -> None:
    """Make a context the current one."""
    try:
        _save(_load().using(name))
    except ContextError as error:
        _refuse(str(error))
    output.say(f"{name} is the current context")


@prints(app, "list")
def list_() -> None:
    """List contexts. The current one is marked with *: that of DUOLOG_CONTEXT, if it is set."""
    contexts = _load()
    current = os.environ.get("DUOLOG_CONTEXT") or contexts.current
    rows = [
        {
            "current": name == current if output.wants_json() else "*" if name == current else "",
            "name": name,
            "endpoints": context.endpoints,
            "user": context.user,
            "tls": bool(context.tls) if output.wants_json() else "yes" if context.tls else "no",
        }
        for name, context in sorted(contexts.known.items())
    ]
    output.print_rows(rows, ["current", "name", "endpoints", "user", "tls"])


@prints(app)
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the context; default: the current one.")
    ] = "",
) -> None:
    """Show a context, but not its password."""
    contexts = _load()
    name = name or os.environ.get("DUOLOG_CONTEXT") or contexts.current
    if not name:
        _refuse("no context is in use", "duolog context use NAME")
    try:
        context = contexts.get(name)
    except ContextError as error:
        _refuse(str(error))
    password = f"read from {context.password_file}" if context.password_file else ""
    facts = {
        "name": name,
        **context.settings(),
        "password": "stored" if context.password else password or "none",
    }
    facts.pop("password_file", None)
    output.print_facts(facts)


@app.command()
def remove(name: Annotated[str, Name]) -> None:
    """Remove a context, with its password if one is stored."""
    contexts = _load()
    try:
        left = contexts.without(name)
    except ContextError as error:
        _refuse(str(error))
    _save(left)
    output.say(
        f"removed {name}" + ("; no context is in use now" if contexts.current == name else "")
    )
