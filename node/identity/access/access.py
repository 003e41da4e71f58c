"""Users of a node, made from its configuration: the gate and the seal."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from duolog_server.node.identity.access.accesstokens import AccessTokens
from duolog_server.node.identity.access.frameskeys import FramesKeys, UserKeys
from duolog_server.node.identity.access.gate import Gate
from duolog_server.node.identity.access.recovery import Recovery
from duolog_server.node.identity.access.secrets import (
    BadKeyFile,
    Seal,
    derived,
    hash_password,
    read_key,
)
from duolog_server.node.identity.access.users import User, check_password, check_user_name
from duolog_server.node.identity.access.vouching import CONSOLE, Viewers, Vouching
from duolog_server.node.runtime.config import AccessSection, ConfigError
from duolog_server.store.accesstables import AccessTables
from duolog_server.store.errors import BadMessage

FORWARDED = b"duolog forwarded calls v1"
REPLICATION = b"duolog replication v1"
MOVES = b"duolog moves v1"


@dataclass(frozen=True, slots=True)
class Access:
    """What a node with users has."""

    gate: Gate
    seal: Seal
    keys: FramesKeys
    vouching: Vouching
    replication: Vouching  # between the nodes of a replica group
    moves: Vouching  # between the masters of replica groups
    viewers: Viewers
    console_key: bytes  # for the console that this node starts
    tokens: AccessTokens
    recovery: Recovery
    thread: Executor  # of its own: logins must not hold up the disk

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown(wait=False, cancel_futures=True)


def first_user(path: Path) -> User:
    """The super user that counts while there are no others. Raises ConfigError."""
    try:
        name, _, password = path.read_text(encoding="utf-8").rstrip("\r\n").partition(":")
        check_user_name(name)
        check_password(password)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"access.first_user_file: cannot read {path}: {error}") from None
    except BadMessage as error:
        raise ConfigError(
            f"access.first_user_file: {path} must hold NAME:PASSWORD: {error.reason}"
        ) from None
    return User(name, is_super=True, password=hash_password(password))


def access_of(
    section: AccessSection,
    tables: Callable[[], AccessTables],
    knows: Callable[[], bool],
    wall_ms: Callable[[], int],
) -> Access | None:
    """As configured; None where there are no users. Raises ConfigError.

    knows: whether this node has the newest users.
    """
    if section.key_file is None:
        return None
    try:
        key = read_key(section.key_file)
    except BadKeyFile as error:
        raise ConfigError(f"access.key_file: {error}") from None
    first = first_user(section.first_user_file) if section.first_user_file else None
    return access_with(key, first, tables, knows, wall_ms)


def access_with(
    key: bytes,
    first: User | None,
    tables: Callable[[], AccessTables],
    knows: Callable[[], bool],
    wall_ms: Callable[[], int],
) -> Access:
    """With the key of a key file, and the user that counts while there are no others."""
    seal = Seal(key)

    def first_of(name: str) -> User | None:
        """Not on a node that may only lack the users that there are."""
        return first if first is not None and first.name == name and knows() else None

    tokens = AccessTokens(key, wall_ms)
    thread = ThreadPoolExecutor(1, "logins")
    gate = Gate(tables, seal, tokens, first_of, thread)
    gate.knows = knows
    forwarded, replication = Vouching(key, FORWARDED), Vouching(key, REPLICATION)
    moves = Vouching(key, MOVES)
    recovery = Recovery(key)
    console_key = derived(key, CONSOLE)
    viewers = Viewers(Vouching(console_key))
    return Access(
        gate,
        seal,
        UserKeys(),
        forwarded,
        replication,
        moves,
        viewers,
        console_key,
        tokens,
        recovery,
        thread,
    )
