"""A directory that follows a hand-written master."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.follower import Follower, store_of
from duolog_server.compat.migration.rocketmqbroker import OldBroker
from duolog_server.compat.migration.state import Following
from duolog_server.node.runtime.config import Config
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.master import HandMaster, written
from tests.support import SMALL

WAIT_SECONDS = 60.0


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """More than three segments."""
    return written(tmp_path_factory.mktemp("log"), 120)


def config_of(data: Path, group: str = "broker-a") -> Config:
    """Of the node to be."""
    store = {name: getattr(SMALL, name) for name in SMALL.__slots__}
    node = {"data": data, "group": group}
    return Config.model_validate({"node": node, "store": store})


def sizes() -> dict[str, int]:
    """Of the files, for a node that is started on a copy."""
    names = (
        "mapped_file_size_commit_log",
        "mapped_file_size_consume_queue",
        "max_hash_slot_num",
        "max_index_num",
        "max_message_size",
    )
    return {name: getattr(SMALL, name) for name in names}


Opened = Callable[..., AbstractAsyncContextManager[Follower]]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens the follower of a master."""
    monkeypatch.setattr("duolog_server.compat.migration.follower.PAUSE_SECONDS_MIN", 0.01)
    monkeypatch.setattr("duolog_server.compat.migration.follower.PAUSE_SECONDS_MAX", 0.01)
    monkeypatch.setattr("duolog_server.compat.migration.follower.TABLES_SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.compat.migration.follower.UNREAD_SECONDS", 0.02)

    @asynccontextmanager
    async def opened(master: HandMaster) -> AsyncIterator[Follower]:
        following = Following(master.address, master.ha, "broker-a")
        disk = OsDisk(tmp_path / "copy")
        store = store_of(config_of(tmp_path / "copy"), disk)
        follower = Follower(store, OldBroker(master.address), following)
        await follower.open(states.load(disk))
        follower.begin()
        try:
            yield follower
        finally:
            await follower.close()

    return opened
