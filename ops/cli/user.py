"""`duolog user`: list, create, alter, delete users; the key that nodes share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import (
    asked,
    asked_password,
    call_seconds,
    calls,
    connection_settings,
    read_password,
)
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from duolog import Client, User

    from duolog_server.ops.cli.recovery import Recovered

app = typer.Typer(no_args_is_help=True)

NewPasswordFile = typer.Option(
    "--new-password-file",
    help="File with the user's password; not given: it is asked for, or read from a pipe.",
)
Signs = typer.Option(
    "--signs",
    help="RocketMQ's clients may sign with it: access key NAME, secret key PASSWORD. It is then "
    "stored encrypted, not hashed alone.",
)


def _row(user: "User") -> dict[str, object]:
    return {
        "user": user.name,
        "type": "super" if user.is_super else "normal",
        "status": "disabled" if user.disabled else "enabled",
        "signs": user.signs,
        "recovered": iso(user.recovered_ms) or "",
    }


def _new_password(file: str) -> str:
    """Read a new password from a file, a pipe or the prompt; exit without one."""
    return read_password(file) if file else asked_password("New password")


@calls(app, "list")
def list_(
    contains: Annotated[str, output.Contains] = "",
    limit: Annotated[int | None, output.Limit] = None,
    after: Annotated[str, output.After] = "",
) -> None:
    """List users by name: all of them, or a part."""
    page = asked(lambda client: client.access.users_page(contains, after=after, limit=limit or 0))
    output.print_rows(map(_row, page.rows), ["user", "type", "status", "signs", "recovered"])
    output.say_next(page)


@calls(app)
def whoami() -> None:
    """Show which user you are."""
    user = asked(lambda client: client.access.who_am_i())
    if not user.name:
        output.say("the node has no users: anybody may do anything (access.key_file is not set)")
    output.print_facts(_row(user))


@calls(app)
def create(
    name: str,
    is_super: Annotated[bool, typer.Option("--super", help="May do everything.")] = False,
    signs: Annotated[bool, Signs] = False,
    new_password_file: Annotated[str, NewPasswordFile] = "",
) -> None:
    """Create a user. The first one must be --super."""
    password = _new_password(new_password_file)

    made = asked(
        lambda client: client.access.create_user(name, password, is_super=is_super, signs=signs)
    )
    output.print_facts(_row(made))


@calls(app)
def alter(
    name: str,
    password: Annotated[bool, typer.Option("--password", help="Give it a new password.")] = False,
    new_password_file: Annotated[str, NewPasswordFile] = "",
    signs: Annotated[bool, Signs] = False,
    is_super: Annotated[
        bool | None,
        typer.Option("--super/--normal", help="May do everything, or only what its rights allow."),
    ] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Refuse all its calls, or accept them again."),
    ] = None,
) -> None:
    """Alter a user; what is not named stays as it is."""
    wants = password or bool(new_password_file)
    if signs and not wants:
        output.fail("--signs needs the password once more: add --password or --new-password-file")
    new = _new_password(new_password_file) if wants else None

    made = asked(
        lambda client: client.access.alter_user(
            name, password=new, signs=signs, is_super=is_super, disabled=disabled
        )
    )
    output.print_facts(_row(made))


@calls(app)
def delete(
    name: str,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Delete a user and its rights."""
    output.confirm(f"Delete user {name} and its rights?", yes)

    asked(lambda client: client.access.delete_user(name))
    output.told({"deleted": name}, f"deleted {name}")


@calls(app)
def token(
    name: Annotated[str, typer.Argument(help="The user; default: the one you call as.")] = "",
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until it expires.")] = 30,
) -> None:
    """Print a token, which a program gives in the place of the password."""
    issued = asked(lambda client: client.access.issue_token(days * 24 * 3600, user=name))
    if output.wants_json():
        output.print_json({"token": issued})
    else:
        print(issued)


@calls(app)
def recover(
    name: Annotated[str, typer.Argument(help="The super user; created if missing.")],
    key_file: Annotated[Path, typer.Option("--key-file", help="`access.key_file` of the nodes.")],
    new_password_file: Annotated[str, NewPasswordFile] = "",
) -> None:
    """Make a super user by the key file, where the passwords of all super users are lost."""
    from duolog._client import parse_endpoints, runtime_of

    from duolog_server.node.identity.access.recovery import Claims
    from duolog_server.node.identity.access.secrets import BadKeyFile, read_key
    from duolog_server.ops.cli.recovery import recover_everywhere
    from duolog_server.store.errors import BadMessage

    password = _new_password(new_password_file)
    try:
        claims = Claims(read_key(key_file), name, password)
    except BadKeyFile as error:
        output.fail(str(error))
    except BadMessage as error:
        output.fail(error.reason, output.help_of())

    nodes, seconds = parse_endpoints(connection_settings().endpoints), call_seconds()

    def ask(client: "Client") -> "Coroutine[object, None, list[Recovered]]":
        return recover_everywhere(nodes, runtime_of(client), claims, seconds)

    rows = [
        {
            "user": name,
            "group": one.place.group,
            "node": one.place.node,
            "result": "created" if one.created else "has a new password",
        }
        for one in asked(ask, {"Unauthenticated": "--key-file FILE, with the key of the nodes"})
    ]
    output.print_rows(rows, ["user", "group", "node", "result"])


@app.command()
def key(file: Path) -> None:
    """Write a new key for `access.key_file`. All nodes of a cluster need the same one."""
    from duolog_server.node.identity.access.secrets import new_key

    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as out:
            out.write(new_key())
    except FileExistsError:
        output.fail(f"{file} exists: another key would make the secrets of all users useless")
    except OSError as error:
        output.fail(f"cannot write {file}: {error.strerror}")
    output.say(f"wrote {file}")
