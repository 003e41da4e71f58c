"""The changes of `duolog acl import`: all of them, or none as far as they can be taken back.

Rules: what can be known before is refused before the first change. Users that are new, and rights,
come first: both are taken back where a later one fails. Secrets of users that exist come last, as
nobody can tell the ones before. Every change may be made twice: a client repeats what was not
answered.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from duolog_server.node.identity.access.users import USERS_MAX
from duolog_server.node.identity.rights.policies import RIGHTS_TEXT_MAX
from duolog_server.ops.cli.output import fail, say

if TYPE_CHECKING:
    from duolog import Access

    from duolog_server.node.identity.rights.plainacl import Imported, ImportedUser
    from duolog_server.node.identity.rights.policies import Acl

NAMED_MAX = 10


async def import_all(access: "Access", imported: "Imported", file: str) -> None:
    """Make the changes. file: as errors name it.

    Ends the command where one cannot be made; raises the error of one that failed, once the ones
    before are taken back, or are reported.
    """
    known = {user.name for user in await access.users()}
    _check(imported, known, (await access.who_am_i()).name, file)
    undo: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    changed: list[str] = []
    try:
        for user in imported.users:
            if user.name not in known:
                undo.append((f"user {user.name}", partial(access.delete_user, user.name)))
                await _put(access, user)
        for acl in imported.acls:
            rights = _text(acl)
            if acl.user in known:  # those of a new user go with it
                before = await access.rights(acl.user)
                back = partial(access.set_rights, acl.user, before, expected=rights)
                undo.append((f"rights of {acl.user}", back))
            await access.set_rights(acl.user, rights)
        for user in imported.users:
            if user.name in known:
                changed.append(user.name)
                await _put(access, user)
    except BaseException:  # also where the command is interrupted
        if changed:
            say(
                f"users {_named(changed)} may have their new secrets, and all rights are imported, "
                "which is not taken back: repeat the import"
            )
        else:
            await _take_back(undo)
        raise


def _check(imported: "Imported", known: set[str], own: str, file: str) -> None:
    """End the command where a change would be refused."""
    created = {user.name for user in imported.users}
    if own in created:
        fail(f"{file} has user {own}, who runs this import: run it as another super user")
    if own not in known:
        fail(
            f"user {own} counts only until a user is created, so the import would end half-way; "
            "nothing changed",
            f"duolog user create {own} --super, then import once more",
        )
    unknown = sorted({acl.user for acl in imported.acls} - known - created)
    if unknown:
        fail(
            f"{file} has rights of users that do not exist: {_named(unknown)}; nothing changed",
            "duolog acl import USERS --from users",
        )
    if len(known | created) > USERS_MAX:
        fail(
            f"with {file} there would be {len(known | created)} users, of {USERS_MAX:,} that a "
            "cluster may have; nothing changed"
        )
    long = sorted(acl.user for acl in imported.acls if len(_text(acl)) > RIGHTS_TEXT_MAX)
    if long:
        fail(
            f"the rights of {_named(long)} are longer than {RIGHTS_TEXT_MAX:,} characters; "
            "nothing changed"
        )


async def _put(access: "Access", user: "ImportedUser") -> None:
    await access.alter_user(
        user.name,
        password=user.secret,
        is_super=user.superuser,
        disabled=not user.enabled,
        signs=True,
    )


async def _take_back(undo: "list[tuple[str, Callable[[], Awaitable[object]]]]") -> None:
    """The last one first; up to one that cannot be, as where no node answers."""
    from duolog import BadRequest, DuologError

    while undo:
        try:
            await undo[-1][1]()
        except BadRequest:  # it was not made, or somebody else has changed it since
            pass
        except DuologError as error:
            left = _named(what for what, _ in undo)
            say(
                f"these were imported and cannot be taken back: {left} ({error}); repeat the import"
            )
            return
        undo.pop()
    say("the import failed and was rolled back: nothing is imported")


def _text(acl: "Acl") -> str:
    return json.dumps(acl.to_json())


def _named(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:NAMED_MAX]) + (", ..." if len(found) > NAMED_MAX else "")
