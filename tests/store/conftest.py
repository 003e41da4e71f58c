"""Fixtures of the tests of a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog_server.store.messagestore import MessageStore
from sim.disk import SimDisk
from tests.inmemory import directory_in_memory
from tests.support import crash_what_is_open, open_store, sim_disk


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory: damage and kills are what these tests do to files, not what a disk does."""
    with directory_in_memory(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def stores_end_with_their_test(tmp_path: Path) -> Iterator[None]:
    """As a kill ends them, where the test does not end them itself."""
    yield
    crash_what_is_open()


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """A small store in the test's directory."""
    return open_store(tmp_path)


@pytest.fixture
def disk() -> SimDisk:
    return sim_disk()
