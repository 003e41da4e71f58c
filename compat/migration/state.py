"""State of a migration target, in a file of its directory.

| state | means | next |
|-------|-------|------|
| FOLLOWING | the broker's log is copied | STOPPED, CUTTING |
| STOPPED | it cannot be copied any further; `reason` says why | FOLLOWING |
| CUTTING | the broker is set to store nothing; `saved` undoes that | FOLLOWING, PROMOTED |
| PROMOTED | its log is duolog's own from `cut` on | |

Rules: every change is durable before anything is done because of it. A directory without the file
follows nobody. One that follows is served by no node, and one that was promoted follows no more.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from duolog_server.store import jsontext
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreDirectory, BadStoreFile

PATH = "config/following.json"
STATUS_PATH = "config/followingStatus.json"  # see `status`
_REPLICA = "config/replica.json"  # of a node
_TEXTS = ("broker", "ha", "name", "reason")
UNENDED = (
    "an earlier cut-over did not come to its end, and the broker may store no messages: run "
    "`duolog migrate cutover` again, or `duolog migrate abort`"
)


class State(enum.StrEnum):
    """See the module."""

    FOLLOWING = "FOLLOWING"
    STOPPED = "STOPPED"
    CUTTING = "CUTTING"
    PROMOTED = "PROMOTED"


_NEXT = {
    State.FOLLOWING: (State.FOLLOWING, State.STOPPED, State.CUTTING),
    State.STOPPED: (State.FOLLOWING, State.STOPPED),
    State.CUTTING: (State.CUTTING, State.FOLLOWING, State.PROMOTED),
    State.PROMOTED: (),
}


@dataclass(frozen=True, slots=True)
class Following:
    """A directory's migration: the broker that it follows, and the state of that.

    broker, ha: HOST:PORT for calls, and for the log. name: the broker's. cut: where the log ended
    at promotion; -1 before. saved: settings of the broker that a cut-over has changed.
    """

    broker: str
    ha: str
    name: str
    state: State = State.FOLLOWING
    reason: str = ""
    cut: int = -1
    saved: Mapping[str, str] = field(default_factory=dict)

    def becomes(self, state: State, **changes: object) -> "Following":
        """The next state; the reason is that of the change, empty where it has none."""
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        return replace(self, **{"state": state, "reason": "", **changes})  # type: ignore[arg-type]


def load(disk: Disk) -> Following | None:
    """Read the file, None if there is none. Raises BadStoreFile, OSError."""
    if disk.size(PATH) < 0:
        return None
    try:
        row = json.loads(disk.read(PATH))
        row["state"] = State(row["state"])
        row["saved"] = {str(key): str(value) for key, value in row["saved"].items()}
        return _checked(Following(**row))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise BadStoreFile(PATH, str(error)) from error


def _checked(read: Following) -> Following:
    """Raises TypeError, ValueError."""
    if not all(isinstance(getattr(read, name), str) for name in _TEXTS):
        raise TypeError(f"one of {', '.join(_TEXTS)} is not a text")
    if type(read.cut) is not int:
        raise TypeError("cut is not a number")
    if (read.state is State.PROMOTED) != (read.cut >= 0):
        raise ValueError(f"state {read.state} does not go with cut {read.cut}")
    return read


def save(disk: Disk, following: Following) -> Following:
    """Replace the file, atomically and durably. Raises OSError."""
    text = json.dumps({**asdict(following), "saved": dict(following.saved)}, indent=2)
    jsontext.replace(disk, PATH, text.encode(), backup=False)
    return following


def check_served(disk: Disk, directory: str, group: str) -> None:
    """Raise BadStoreDirectory where a directory follows: no node serves it.

    Nor does one of another replica group than the broker's name begin to serve what was promoted.
    """
    following = load(disk)
    if following is None and disk.size(STATUS_PATH) >= 0 and not _was_served(disk):
        raise BadStoreDirectory(
            directory,
            f"a broker was followed here, as {STATUS_PATH} shows, but {PATH} is lost. Restore it, "
            "or follow into an empty directory",
        )
    if following is not None and following.state is not State.PROMOTED:
        raise BadStoreDirectory(
            directory,
            f"follows broker {following.name} at {following.broker} ({following.state}): a node "
            "serves it after `duolog migrate cutover`",
        )
    if following is not None:
        check_named(disk, directory, following, group)


def check_named(disk: Disk, directory: str, following: Following, group: str) -> None:
    """Raise BadStoreDirectory where a node of another replica group would begin to serve it."""
    if following.name != group and not _was_served(disk):
        raise BadStoreDirectory(
            directory,
            f"holds the log of broker {following.name!r}, and node.group is {group!r}: set it to "
            "the broker's name. Clients know their queues, and where they are in them, by this "
            "name",
        )


def check_follows(disk: Disk, directory: str) -> Following | None:
    """The source of a directory; None for an empty one, which may get one.

    Raises BadStoreDirectory for any other, BadStoreFile, OSError.
    """
    following = load(disk)
    if following is not None and following.state is State.PROMOTED:
        raise BadStoreDirectory(
            directory,
            f"was promoted at offset {following.cut}: its log is its own now, and follows "
            f"{following.name} no more. To follow again, begin with an empty directory",
        )
    if following is None and (disk.look("commitlog").names or _was_served(disk)):
        raise BadStoreDirectory(
            directory, "holds a log that no broker was followed for: follow into an empty directory"
        )
    if following is not None and _was_served(disk):
        raise BadStoreDirectory(
            directory,
            f"a node has served it, so it was promoted: {PATH}, which says {following.state}, is "
            "an older copy of that file",
        )
    return following


def check_unchanged(disk: Disk, known: Following | None) -> None:
    """Raise BadStoreFile unless the file says what it said before the directory was locked.

    Another command may have ended between, and have promoted the directory.
    """
    if load(disk) != known:
        raise BadStoreFile(PATH, "another command has changed it meanwhile: run this one again")


def _was_served(disk: Disk) -> bool:
    return disk.size(_REPLICA) >= 0
