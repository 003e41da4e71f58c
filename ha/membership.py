"""Which group a replica belongs to, kept in its directory: config/membership.json.

A registry that was wiped or restored from a backup knows another group, or an older state of this
one: then nobody is elected before an operator has looked. Data is never given up because the
registry does not know it.
"""

from dataclasses import dataclass

from ha.crc32c import crc32c
from store import jsontext
from store.disk import Disk
from store.errors import BadStoreFile

PATH = "config/membership.json"


@dataclass(frozen=True, slots=True)
class Membership:
    """group_id: empty for none yet. version: of the newest group state that was seen."""

    group_id: str = ""
    version: int = 0


def _crc(group_id: str, version: int) -> int:
    return crc32c(f"{group_id} {version}".encode())


def save(disk: Disk, membership: Membership) -> None:
    """Replace the file, atomically and durably."""
    crc = _crc(membership.group_id, membership.version)
    value = {"groupId": membership.group_id, "version": membership.version, "crc32c": crc}
    jsontext.save(disk, PATH, value)


def load(disk: Disk) -> Membership:
    """Read the file; of no group where there is none. Raises BadStoreFile."""
    value = jsontext.load(disk, PATH)
    if value is None:
        return Membership()
    try:
        found = Membership(str(value["groupId"]), int(value["version"]))
        if value["crc32c"] != _crc(found.group_id, found.version):
            raise ValueError("its CRC does not match")
    except (KeyError, TypeError, ValueError) as error:
        raise BadStoreFile(PATH, str(error)) from error
    return found
