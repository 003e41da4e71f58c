"""The changes of `duolog acl import`: what fails half-way is taken back, or told."""

import json
from dataclasses import dataclass, field

import pytest
import typer
from duolog import Access, BadRequest, Unavailable, User

from duolog_server.node.identity.access.users import USERS_MAX
from duolog_server.node.identity.rights.plainacl import Imported, ImportedUser
from duolog_server.node.identity.rights.policies import Acl, Entry, Match, Pattern
from duolog_server.node.identity.rights.resources import Action, Kind
from duolog_server.ops.cli.aclimport import import_all


@dataclass
class Cluster(Access):
    """Users and rights; from one change on, all fail or one does.

    Attributes:
        passwords, texts: by user.
        fails_at: number of the change that fails, from 1; 0: none.
        stays: whether those behind it fail as well.
    """

    passwords: dict[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    own: str = "root"
    fails_at: int = 0
    stays: bool = False
    made: int = 0

    def _change(self) -> None:
        self.made += 1
        if self.made == self.fails_at or (self.stays and 0 < self.fails_at < self.made):
            raise Unavailable("no master")

    async def who_am_i(self) -> User:
        return User(self.own, True)

    async def users(self) -> list[User]:
        return [User(name) for name in self.passwords]

    async def rights(self, name: str) -> str:
        return self.texts.get(name, "")

    async def set_rights(self, name: str, rights: str, *, expected: str | None = None) -> str:
        self._change()
        if expected is not None and expected != self.texts.get(name, ""):
            raise BadRequest("changed meanwhile")
        self.texts[name] = rights
        return rights

    async def alter_user(self, name: str, *, password: str | None = None, **_: object) -> User:
        self._change()
        self.passwords[name] = password or ""
        return User(name)

    async def delete_user(self, name: str) -> None:
        self._change()
        if name not in self.passwords:
            raise BadRequest("there is no such user")
        del self.passwords[name]
        self.texts.pop(name, None)


def acl(user: str, topic: str = "t") -> Acl:
    pattern = Pattern(Kind.TOPIC, Match.LITERAL, topic)
    return Acl(user, (Entry(pattern, frozenset([Action.PUB])),))


def text(user: str, topic: str = "t") -> str:
    return json.dumps(acl(user, topic).to_json())


FILE = Imported(
    (ImportedUser("old", "new-secret"), ImportedUser("a", "sa"), ImportedUser("b", "sb")),
    (acl("old"), acl("a")),
)
# Changes: users a and b, rights of old and a, the secret of old.


def cluster(**given: int | bool) -> Cluster:
    return Cluster({"root": "r", "old": "its-secret"}, {"old": text("old", "before")}, **given)  # type: ignore[arg-type]


async def test_everything_is_imported() -> None:
    found = cluster()
    await import_all(found, FILE, "file")
    assert found.passwords == {"root": "r", "old": "new-secret", "a": "sa", "b": "sb"}
    assert found.texts == {"old": text("old"), "a": text("a")}


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_what_fails_half_way_is_taken_back(
    at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, before = cluster(fails_at=at), cluster()
    with pytest.raises(Unavailable):
        await import_all(found, FILE, "file")
    assert (found.passwords, found.texts) == (before.passwords, before.texts)
    assert "nothing is imported" in capsys.readouterr().err


async def test_rights_that_others_changed_meanwhile_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster(fails_at=4)
    set_rights = found.set_rights

    async def others(name: str, rights: str, *, expected: str | None = None) -> str:
        if name == "a":
            found.texts["old"] = text("old", "others")
        return await set_rights(name, rights, expected=expected)

    monkeypatch.setattr(found, "set_rights", others)
    with pytest.raises(Unavailable):
        await import_all(found, FILE, "file")
    assert found.texts == {"old": text("old", "others")}
    assert "a" not in found.passwords


async def test_what_cannot_be_taken_back_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = cluster(fails_at=4, stays=True)
    with pytest.raises(Unavailable):
        await import_all(found, FILE, "file")
    said = capsys.readouterr().err
    assert "cannot be taken back: user a, user b, rights of old (no master" in said
    assert "repeat the import" in said
    found = cluster(fails_at=5)
    with pytest.raises(Unavailable):
        await import_all(found, FILE, "file")
    assert found.passwords["old"] == "its-secret"
    assert found.texts == {"old": text("old"), "a": text("a")}
    assert "users old may have their new secrets" in capsys.readouterr().err
    found.fails_at = 0
    await import_all(found, FILE, "file")
    assert found.passwords["old"] == "new-secret"


@pytest.mark.parametrize(
    ("imported", "own", "said"),
    [
        (FILE, "a", "who runs this import"),
        (FILE, "first", "counts only until a user is created"),
        (Imported(acls=(acl("nobody"),)), "root", "users that do not exist: nobody"),
        (
            Imported(tuple(ImportedUser(f"u{k}", "s") for k in range(USERS_MAX))),
            "root",
            "that a cluster may have",
        ),
    ],
)
async def test_what_can_be_known_before_is_refused_before(
    imported: Imported, own: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = cluster()
    found.own = own
    with pytest.raises(typer.Exit):
        await import_all(found, imported, "file")
    assert said in capsys.readouterr().err
    assert not found.made


async def test_rights_that_are_too_long_are_refused_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("duolog_server.ops.cli.aclimport.RIGHTS_TEXT_MAX", 10)
    found = cluster()
    with pytest.raises(typer.Exit):
        await import_all(found, FILE, "file")
    assert "longer than 10 characters" in capsys.readouterr().err
    assert not found.made
