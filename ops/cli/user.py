"""`duolog user`: list, create, alter, delete users; the key that nodes share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import (
    DEFAULT_ENDPOINTS,
    Endpoints,
    asked,
    asked_password,
    client_of,
    read_password,
)
from duolog_server.ops.cli.output import (
    After,
    Contains,
    Json,
    Limit,
    Timeout,
    Yes,
    confirm,
    fail,
    help_of,
    print_facts,
    print_rows,
    run,
    say,
    say_next,
)
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import User

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


@app.command("list")
def list_(
    contains: Annotated[str, Contains] = "",
    limit: Annotated[int | None, Limit] = None,
    after: Annotated[str, After] = "",
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """List users by name: all of them, or a part."""
    page = asked(
        endpoints,
        timeout,
        lambda client: client.access.users_page(contains, after=after, limit=limit or 0),
    )
    print_rows(map(_row, page.rows), ["user", "type", "status", "signs", "recovered"], as_json)
    say_next(page)


@app.command()
def whoami(
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Show which user you are."""
    user = asked(endpoints, timeout, lambda client: client.access.who_am_i())
    if not user.name:
        say("the node has no users: anybody may do anything (access.key_file is not set)")
    print_facts(_row(user), as_json)


@app.command()
def create(
    name: str,
    is_super: Annotated[bool, typer.Option("--super", help="May do everything.")] = False,
    signs: Annotated[bool, Signs] = False,
    new_password_file: Annotated[str, NewPasswordFile] = "",
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Create a user. The first one must be --super."""
    password = _new_password(new_password_file)

    print_facts(
        _row(
            asked(
                endpoints,
                timeout,
                lambda client: client.access.create_user(
                    name, password, is_super=is_super, signs=signs
                ),
            )
        ),
        as_json,
    )


@app.command()
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
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Alter a user; what is not named stays as it is."""
    wants = password or bool(new_password_file)
    if signs and not wants:
        fail("--signs needs the password once more: add --password or --new-password-file")
    new = _new_password(new_password_file) if wants else None

    print_facts(
        _row(
            asked(
                endpoints,
                timeout,
                lambda client: client.access.alter_user(
                    name, password=new, signs=signs, is_super=is_super, disabled=disabled
                ),
            )
        ),
        as_json,
    )


@app.command()
def delete(
    name: str,
    yes: Annotated[bool, Yes] = False,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
) -> None:
    """Delete a user and its rights."""
    confirm(f"Delete user {name} and its rights?", yes)

    asked(endpoints, timeout, lambda client: client.access.delete_user(name))
    say(f"deleted {name}")


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="The user; default: the one you call as.")] = "",
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until it expires.")] = 30,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
) -> None:
    """Print a token, which a program gives in the place of the password."""
    print(
        asked(
            endpoints,
            timeout,
            lambda client: client.access.issue_token(days * 24 * 3600, user=name),
        )
    )


@app.command()
def recover(
    name: Annotated[str, typer.Argument(help="The super user; created if missing.")],
    key_file: Annotated[Path, typer.Option("--key-file", help="`access.key_file` of the nodes.")],
    new_password_file: Annotated[str, NewPasswordFile] = "",
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
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
        fail(str(error))
    except BadMessage as error:
        fail(error.reason, help_of())

    async def ask() -> "list[Recovered]":
        async with client_of(endpoints, timeout) as client:  # it calls nobody
            nodes = parse_endpoints(endpoints)
            return await recover_everywhere(nodes, runtime_of(client), claims, timeout)

    rows = [
        {
            "user": name,
            "group": one.place.group,
            "node": one.place.node,
            "result": "created" if one.created else "has a new password",
        }
        for one in run(ask(), {"Unauthenticated": "--key-file FILE, with the key of the nodes"})
    ]
    print_rows(rows, ["user", "group", "node", "result"], as_json)


@app.command()
def key(file: Path) -> None:
    """Write a new key for `access.key_file`. All nodes of a cluster need the same one."""
    from duolog_server.node.identity.access.secrets import new_key

    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as out:
            out.write(new_key())
    except FileExistsError:
        fail(f"{file} exists: another key would make the secrets of all users useless")
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}")
    say(f"wrote {file}")
