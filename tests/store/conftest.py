"""Fixtures of the tests of a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inmemory import directory_in_memory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory: damage and kills are what these tests do to files, not what a disk does."""
    with directory_in_memory(tmp_path) as made:
        yield made
