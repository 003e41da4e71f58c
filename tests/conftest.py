"""Fixtures for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from store.messagestore import MessageStore
from tests.support import crash, open_store

# This machine is shared: how long one example takes says nothing.
settings.register_profile(
    "duolog", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("duolog")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A small store, closed afterwards whatever the test did."""
    opened = open_store(tmp_path / "store")
    yield opened
    if not opened._closed:
        crash(opened)
