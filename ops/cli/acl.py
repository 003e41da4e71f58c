"""`duolog acl`: show, grant, revoke, test the rights of users, and who has one."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duolog import Client

    from duolog_server.node.identity.rights.plainacl import Imported
    from duolog_server.node.identity.rights.policies import Acl, Entry

app = typer.Typer(no_args_is_help=True)

EXIT_DENIED = 3
User = typer.Argument(metavar="USER")
Resource = typer.Argument(help="Topic:NAME, Topic:PREFIX*, Topic:*, Group:…, Namespace:…, or *.")
AsDefault = typer.Option("--default", help="In the Default policy, asked where no Custom entry is.")


def _rows(acl: "Acl") -> list[dict[str, object]]:
    return [
        {
            "policy": policy,
            "decision": "Allow" if entry.allow else "Deny",
            "entry": entry.text,
        }
        for policy, entries in acl.policies
        for entry in entries
    ]


def _read(user: str, text: str) -> "Acl":
    from duolog_server.node.identity.rights.policies import Acl

    return Acl.from_json(json.loads(text)) if text else Acl(user)


def _show(user: str, text: str) -> None:
    if output.wants_json():
        output.print_json(json.loads(text) if text else {})
        return
    output.print_rows(_rows(_read(user, text)), ["policy", "decision", "entry"], False)


@calls(app)
def show(
    name: Annotated[str, User],
) -> None:
    """Show the rights of a user; --json as `set` reads them."""
    _show(name, asked(lambda client: client.access.rights(name)))


@calls(app, "set")
def set_(
    name: Annotated[str, User],
    file: Annotated[Path, typer.Argument(help="JSON as RocketMQ 5 has it; - is stdin.")],
) -> None:
    """Replace all rights of a user."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        output.fail(f"cannot read {file}: {error}")
    if not text.strip():
        output.fail(
            f"{file} is empty: this would revoke all rights; to do that, pass {{}}",
            output.help_of(),
        )

    _show(
        name,
        asked(lambda client: client.access.set_rights(name, text)),
    )


def _change(name: str, change: "Callable[[Acl], Acl]") -> None:
    async def ask(client: "Client") -> str:
        before = await client.access.rights(name)
        acl = change(_read(name, before))
        empty = not (acl.custom or acl.default)
        rights = "" if empty else json.dumps(acl.to_json())
        return await client.access.set_rights(name, rights, expected=before)

    _show(name, asked(ask))


def _with(acl: "Acl", entries: "tuple[Entry, ...]", default: bool) -> "Acl":
    return replace(acl, default=entries) if default else replace(acl, custom=entries)


def _entry(resource: str, actions: str, sources: list[str], allow: bool) -> "Entry":
    from duolog_server.node.identity.rights.policies import BadAcl, Entry

    row: dict[str, Any] = {
        "resource": resource,
        "actions": actions.split(","),
        "decision": "Allow" if allow else "Deny",
    }
    if sources:
        row["sourceIps"] = sources
    try:
        return Entry.from_json(row)
    except BadAcl as error:
        output.fail(str(error), "duolog acl grant --help")


def granted(before: "Iterable[Entry]", entry: "Entry") -> "tuple[Entry, ...]":
    """Entries with one more: of the same resource and sources, it takes its actions from those
    that decide otherwise, and adds its actions to those that decide alike.
    """
    kept, actions = [], entry.actions
    for one in before:
        if (one.pattern, one.sources) != (entry.pattern, entry.sources):
            kept.append(one)
        elif one.allow == entry.allow:
            actions |= one.actions
        elif one.actions - entry.actions:
            kept.append(replace(one, actions=one.actions - entry.actions))
    return (*kept, replace(entry, actions=actions))


@calls(app)
def grant(
    name: Annotated[str, User],
    resource: Annotated[str, Resource],
    actions: Annotated[
        str, typer.Argument(help="Pub,Sub,Create,Update,Delete,Get,List, or All; with commas.")
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Deny it instead.")] = False,
    source: Annotated[
        list[str] | None, typer.Option(help="Limit it to this address or network (repeatable).")
    ] = None,
    default: Annotated[bool, AsDefault] = False,
) -> None:
    """Allow a user something, or --deny it. It replaces what was said of these actions there."""
    entry = _entry(resource, actions, source or [], not deny)

    def change(acl: "Acl") -> "Acl":
        return _with(acl, granted(acl.default if default else acl.custom, entry), default)

    _change(name, change)


@calls(app)
def revoke(
    name: Annotated[str, User],
    resource: Annotated[str, Resource],
    default: Annotated[bool, AsDefault] = False,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Remove a user's entries for a resource, as `show` names it."""
    pattern = _entry(resource, "All", [], True).pattern
    output.confirm(f"Remove the entries of {name} for {pattern.text}?", yes)

    def change(acl: "Acl") -> "Acl":
        before = acl.default if default else acl.custom
        kept = tuple(one for one in before if one.pattern != pattern)
        if len(kept) == len(before):
            output.fail(f"user {name} has no entry for {pattern.text}", f"duolog acl show {name}")
        return _with(acl, kept, default)

    _change(name, change)


@calls(app, "test")
def ask_whether(
    name: Annotated[str, User],
    action: Annotated[str, typer.Argument(help="Pub, Sub, Create, Update, Delete, Get or List.")],
    resource: Annotated[str, typer.Argument(help="Topic:NAME, Group:NAME or Cluster:NAME.")],
    source: Annotated[
        str, typer.Option(help="Address that the user calls from; default: yours.")
    ] = "",
) -> None:
    """Say whether a user may do something, and which entry decides. Exit status 3: it may not."""
    found = asked(lambda client: client.access.test(action, resource, user=name, source=source))
    facts = {"allowed": found.allowed, "entry": found.entry, "reason": found.reason}
    if output.wants_json():
        output.print_json(facts)
    else:
        output.print_facts(
            {"allowed": "yes" if found.allowed else "no", "reason": found.reason}, False
        )
    if not found.allowed:
        raise typer.Exit(EXIT_DENIED)


@calls(app, "who")
def who_may(
    action: Annotated[str, typer.Argument(help="Pub, Sub, Create, Update, Delete, Get or List.")],
    resource: Annotated[str, typer.Argument(help="Topic:NAME, Group:NAME or Cluster:NAME.")],
    source: Annotated[
        str, typer.Option(help="Address that the users call from; default: yours.")
    ] = "",
    limit: Annotated[int | None, output.Limit] = None,
    after: Annotated[str, output.After] = "",
) -> None:
    """List the users who may do something, and which entry decides."""
    page = asked(
        lambda client: client.access.who_may(
            action, resource, source=source, after=after, limit=limit or 0
        )
    )
    rows = [
        {
            "user": row.user.name,
            "entry": row.decision.entry,
            "reason": row.decision.reason,
        }
        for row in page.rows
    ]
    output.print_rows(rows, ["user", "reason"])
    output.say_next(page)


@calls(app, "import")
def import_(
    file: Annotated[Path, typer.Argument(help="plain_acl.yml; or the output of mqadmin.")],
    kind: Annotated[
        str,
        typer.Option(
            "--from", help="plain_acl (RocketMQ 4), users or acls (mqadmin listUser, listAcl)."
        ),
    ] = "plain_acl",
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Create RocketMQ's users here, with the secrets they sign with, and set their rights.

    A user that exists gets that secret and those rights. An import that fails is taken back as far
    as it can be, and says what is left. May be repeated.
    """
    from duolog_server.ops.cli.aclimport import import_all

    imported = _imported(file, kind)
    for warning in imported.warnings:
        output.say(f"warning: {warning}")
    if not imported.users and not imported.acls:
        output.fail(f"{file} names no user: nothing to import", "duolog acl import --help")
    what = f"{len(imported.users)} users, and the rights of {len(imported.acls)}"
    output.confirm(f"Import {what}?", yes)

    asked(lambda client: import_all(client.access, imported, str(file)))
    counts = {"users": len(imported.users), "rights": len(imported.acls)}
    output.told(counts, f"imported {what}")


def _imported(file: Path, kind: str) -> "Imported":
    from duolog_server.node.identity.access.users import check_password, check_user_name
    from duolog_server.node.identity.rights.mqadmin import read_acls, read_users
    from duolog_server.node.identity.rights.plainacl import read_plain_acl
    from duolog_server.node.identity.rights.policies import BadAcl
    from duolog_server.store.errors import BadMessage

    readers = {"plain_acl": read_plain_acl, "users": read_users, "acls": read_acls}
    if kind not in readers:
        output.fail(f"--from {kind}: it is not one of {', '.join(readers)}")
    try:
        imported = readers[kind](file.read_text(encoding="utf-8"))
        for user in imported.users:
            check_user_name(user.name)
            check_password(user.secret)
        return imported
    except (OSError, UnicodeDecodeError) as error:
        output.fail(f"cannot read {file}: {error}")
    except BadAcl as error:
        output.fail(f"{file}: {error}")
    except BadMessage as error:
        output.fail(f"{file}: {error.reason}")
