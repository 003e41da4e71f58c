"""Preconditions on a broker's configuration for copying its log, and its addresses."""

from collections.abc import Mapping

from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.state import Following
from duolog_server.store.options import StoreOptions

_SEGMENT = "mappedFileSizeCommitLog"
_MASTER = "0"
# Logs of another form, and a port on which another protocol is spoken.
_FOREIGN = {
    "enableDLegerCommitLog": "its log is DLedger's, with another form of records",
    "enableControllerMode": "its HA port speaks the protocol of controllers",
}


def check_settings(settings: Mapping[str, str], options: StoreOptions) -> None:
    """Raise CannotFollow unless a broker's log can be copied into a store with these options."""
    for key, why in _FOREIGN.items():
        if settings.get(key) == "true":
            raise CannotFollow(f"the broker has {key}=true: {why}")
    theirs, ours = settings.get(_SEGMENT, ""), options.mapped_file_size_commit_log
    if theirs != str(ours):
        raise CannotFollow(
            f"the broker's segments have {theirs or 'an unknown number of'} bytes "
            f"({_SEGMENT}), this store's {ours}: set store.mapped_file_size_commit_log to the same"
        )


def check_name(settings: Mapping[str, str], group: str) -> None:
    """Raise CannotFollow unless a node's replica group has the broker's name."""
    name = settings.get("brokerName", "")
    if name != group:
        raise CannotFollow(
            f"the broker's name is {name!r}, the replica group's {group!r}: set node.group to the "
            "same. Clients know their queues, and where they are in them, by this name"
        )


def check_same(settings: Mapping[str, str], name: str, address: str) -> None:
    """Raise CannotFollow unless the broker at an address has this name."""
    found = settings.get("brokerName", "")
    if found != name:
        raise CannotFollow(f"{address} is broker {found!r}, not {name!r}")


def check_master(settings: Mapping[str, str], following: Following) -> None:
    """Raise CannotFollow unless settings are of the master that was followed: it may be changed.

    Brokers that copy each other have one name; a master's number is 0, whatever its role is now.
    """
    check_same(settings, following.name, following.broker)
    number = settings.get("brokerId", _MASTER)
    if number != _MASTER:
        raise CannotFollow(
            f"{following.broker} is broker {following.name!r} with brokerId={number}, "
            "not the master that was followed"
        )


def following_of(settings: Mapping[str, str], broker: str, ha: str) -> Following:
    """The source of a new directory. Raises CannotFollow.

    ha: HOST:PORT of the log; empty for the broker's host and its haListenPort.
    """
    host = broker.rpartition(":")[0]
    port = settings.get("haListenPort", "")
    if not ha and not port.isdecimal():
        raise CannotFollow("the broker does not report its haListenPort: give --ha HOST:PORT")
    return Following(broker, ha or f"{host}:{port}", settings.get("brokerName", ""))
