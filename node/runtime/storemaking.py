"""The store of a node, or of a follower, as its configuration has it; its problems are logged."""

import structlog
from duolog._machine import boot_id

from duolog_server.node.runtime.config import Config
from duolog_server.store.disk import Disk
from duolog_server.store.messagestore import MessageStore, StoreEvents
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.record import Host

log = structlog.get_logger("duolog.node")


def disk_of(config: Config) -> OsDisk:
    """The directory of a node, with links to those of its directories that lie elsewhere.

    Raises BadStoreDirectory.
    """
    return OsDisk(config.node.data, paths=config.store.paths)


def _tell_of_space(reason: str) -> None:
    if reason:
        log.error("the disk is too full: puts are refused", reason=reason)
    else:
        log.info("the disk has room again: puts are taken")


def make_store(config: Config, disk: Disk, store_host: Host) -> MessageStore:
    """The store of a node; it is not started."""
    events = StoreEvents(
        problem=lambda text: log.error("problem in the store", reason=text),
        fenced=lambda text: log.error("fenced", reason=text),
        stuck=lambda text: log.error("puts are refused", reason=text),
        full=_tell_of_space,
        copied=lambda text: log.warning("the directory is a copy", reason=text),
    )
    return MessageStore(disk, config.store, events, store_host, boot_id())
