"""Contexts: named connection settings, kept in one file of the user's configuration.

Rules: the file is the user's alone (mode 0600), and is replaced as a whole. A file that others may
read and that holds a password is refused: that password is known.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ContextError(Exception):
    """The contexts cannot be used as they are; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Context:
    """Connection settings with a name; empty: not set. tls: `on`, `off`. tls_port: a number."""

    endpoints: str = ""
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_port: str = ""

    def __repr__(self) -> str:
        return f"Context({self.endpoints!r}, user={self.user!r})"

    def settings(self) -> dict[str, str]:
        """The settings that are set."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value}


KEYS = tuple(field.name for field in fields(Context))


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of a user's contexts, and the one in use, if there is one."""

    known: dict[str, Context]
    current: str = ""

    def get(self, name: str) -> Context:
        """One of them. Raises ContextError."""
        if name not in self.known:
            have = f"known: {', '.join(sorted(self.known))}" if self.known else "no context exists"
            raise ContextError(f"context {name!r} does not exist; {have}")
        return self.known[name]

    def having(self, name: str, context: Context) -> "Contexts":
        """Add or replace a context. Raises ContextError."""
        if not NAME.fullmatch(name):
            raise ContextError(
                f"context name {name!r}: use up to 64 letters, digits, '.', '_' and '-', "
                "and begin with a letter or a digit"
            )
        return Contexts({**self.known, name: context}, self.current)

    def without(self, name: str) -> "Contexts":
        """Less one. Raises ContextError."""
        self.get(name)
        known = {one: context for one, context in self.known.items() if one != name}
        return Contexts(known, "" if self.current == name else self.current)

    def using(self, name: str) -> "Contexts":
        """Switch to another context. Raises ContextError."""
        self.get(name)
        return Contexts(self.known, name)


def contexts_file() -> Path:
    """The path of the contexts' file. Raises ContextError for a user without a home."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(configured) if Path(configured).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise ContextError("this user has no home directory: set XDG_CONFIG_HOME") from None
    return home / "duolog" / "contexts.json"


def load_contexts() -> Contexts:
    """All contexts; none if the file is missing. Raises ContextError."""
    try:
        file = contexts_file()
        file.stat()
    except (ContextError, FileNotFoundError, NotADirectoryError, PermissionError):
        return Contexts({})  # also in containers, in which a user may have another one's home
    try:
        with file.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read()
    except FileNotFoundError:
        return Contexts({})
    except (OSError, UnicodeDecodeError) as error:
        raise ContextError(f"cannot read {file}: {error}") from None
    found = _parse(text, file)
    if os.name == "posix" and mode & OTHERS and any(c.password for c in found.known.values()):
        raise ContextError(
            f"{file} holds a password and is open to other users (mode {stat.S_IMODE(mode):04o}): "
            f"run chmod 600 {file}, and change the password if others may have read it"
        )
    return found


def save_contexts(contexts: Contexts) -> None:
    """Replace the file. Raises ContextError."""
    file = contexts_file()
    made = {"current": contexts.current} if contexts.current else {}
    known = {name: contexts.known[name].settings() for name in sorted(contexts.known)}
    text = json.dumps({**made, "contexts": known}, indent=2, ensure_ascii=False) + "\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(file, text)
    except OSError as error:
        raise ContextError(f"cannot write {file}: {error}") from None


def _replace(file: Path, text: str) -> None:
    """Write a file whole or not at all; it is the user's alone from its first byte."""
    handle, name = tempfile.mkstemp(prefix=".contexts-", dir=file.parent)  # its mode is 0600
    try:
        with open(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _parse(text: str, file: Path) -> Contexts:
    """Raises ContextError; its text shows nothing of what is in the file but names."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ContextError(f"{file} is not JSON{where}: repair it, or remove it") from None
    known = whole.get("contexts", {}) if isinstance(whole, dict) else None
    current = whole.get("current", "") if isinstance(whole, dict) else None
    if not isinstance(known, dict) or not isinstance(current, str):
        raise ContextError(f"{file} has no table of contexts: repair it, or remove it")
    found = {name: _context(name, settings, file) for name, settings in known.items()}
    return Contexts(found, current)


def _context(name: str, settings: object, file: Path) -> Context:
    if not isinstance(settings, dict):
        raise ContextError(f"{file}: context {name!r} is not a table")
    for key, value in settings.items():
        if key not in KEYS:
            raise ContextError(
                f"{file}: context {name!r} has the unknown key {key!r}; known: {', '.join(KEYS)}"
            )
        if not isinstance(value, str):
            raise ContextError(f"{file}: {key} of context {name!r} must be a string")
    return Context(**settings)
