"""Fixtures for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.messagestore import MessageStore
from tests.support import crash, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A small store, closed afterwards whatever the test did."""
    opened = open_store(tmp_path / "store")
    yield opened
    if not opened._closed:
        crash(opened)
