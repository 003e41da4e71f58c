"""Identity of a replica, kept in its directory: incarnation and promised epoch.

The incarnation changes whenever the directory may have lost bytes that it acknowledged: it is new
or empty, the machine went down while acknowledgements came from the page cache, its log ends before
what it knew to be confirmed, or the directory turned out to be an older copy. Counting by (node,
incarnation) then never counts lost bytes. For that reason the file has no backup: it would name the
replica that this directory was before.
"""

from dataclasses import dataclass, replace

from duolog_server.ha.crc32c import crc32c
from duolog_server.ha.epochs import NO_EPOCH, Epoch
from duolog_server.store import jsontext
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreFile

PATH = "config/replica.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """Content of config/replica.json.

    boot_id: of the system run the file was written in. confirmed_only: the master acknowledged only
    messages below its confirm offset, so readers of this copy see no more than those.
    """

    node: str
    incarnation: int
    promised_epoch: Epoch = NO_EPOCH
    boot_id: str = ""
    confirmed_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """Traces of the last run on a directory.

    log_empty: the log has no bytes. abnormal: the store was not shut down cleanly. acks_durable: no
    byte was ever acknowledged before it was on disk. lacks_confirmed: the log ends before what was
    confirmed, as where an older copy of it was restored beside newer files.
    """

    log_empty: bool
    abnormal: bool
    acks_durable: bool
    lacks_confirmed: bool = False

    @property
    def may_have_lost_bytes(self) -> bool:
        """Whether acknowledged bytes were in the page cache alone when it ended."""
        return self.abnormal and not self.acks_durable


def _crc(row: dict[str, object]) -> int:
    return crc32c(repr(sorted(row.items())).encode())


def save(disk: Disk, identity: Identity) -> None:
    """Replace the file, atomically and durably."""
    row: dict[str, object] = {
        "node": identity.node,
        "incarnation": f"{identity.incarnation:016x}",
        "promisedEpoch": identity.promised_epoch,
        "bootId": identity.boot_id,
        "confirmedOnly": identity.confirmed_only,
    }
    text = jsontext.dumps({**row, "crc32c": _crc(row)})
    jsontext.replace(disk, PATH, text.encode(), backup=False)


def load(disk: Disk) -> Identity | None:
    """Read the file, None if there is none; BadStoreFile if it cannot be trusted."""
    if disk.size(PATH) < 0:
        return None
    try:
        value = jsontext.loads(disk.read(PATH).decode())
        if value.pop("crc32c", None) != _crc(value):
            raise ValueError("its CRC does not match")
        return Identity(
            str(value["node"]),
            int(value["incarnation"], 16),
            Epoch(int(value["promisedEpoch"])),
            str(value["bootId"]),
            bool(value["confirmedOnly"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadStoreFile(PATH, str(error)) from error


def settle(disk: Disk, fresh: Identity, last: LastRun) -> Identity:
    """The identity to continue with, saved durably.

    fresh: the node's in this run of the system, with a random incarnation, which is taken where the
    old one may not be kept.
    """
    known = load(disk)
    if known is None or last.log_empty:
        identity = replace(fresh, promised_epoch=known.promised_epoch if known else NO_EPOCH)
    elif last.lacks_confirmed or (last.may_have_lost_bytes and known.boot_id != fresh.boot_id):
        identity = replace(
            known, incarnation=fresh.incarnation, node=fresh.node, boot_id=fresh.boot_id
        )
    else:
        identity = replace(known, node=fresh.node, boot_id=fresh.boot_id)
    if identity != known:
        save(disk, identity)
    else:
        disk.sync_dir("config")  # the last process may have ended before it synced the name
    return identity


def restored(disk: Disk, incarnation: int) -> None:
    """Make a restored directory a new replica, which refuses to lose what its backup knows to be
    confirmed: a master that has less does not have it truncated.
    """
    save(disk, Identity("", incarnation, confirmed_only=True))


def renew(disk: Disk, identity: Identity, incarnation: int) -> Identity:
    """Become another replica: this directory lacks bytes that it acknowledged."""
    renewed = replace(identity, incarnation=incarnation)
    save(disk, renewed)
    return renewed


def promise(disk: Disk, identity: Identity, epoch: Epoch) -> Identity:
    """Promise to accept nothing from epochs before this one; durable when it returns."""
    if epoch <= identity.promised_epoch:
        return identity
    promised = replace(identity, promised_epoch=epoch)
    save(disk, promised)
    return promised


def follow(disk: Disk, identity: Identity, confirmed_only: bool) -> Identity:
    """Record what kind of master the log is copied from."""
    if confirmed_only == identity.confirmed_only:
        return identity
    following = replace(identity, confirmed_only=confirmed_only)
    save(disk, following)
    return following
