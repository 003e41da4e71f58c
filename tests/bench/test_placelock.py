"""What several processes make at one place is made once."""

from pathlib import Path

import pytest

from bench.peers.maven import locked


def test_a_place_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "new" / "folder"
    with locked(place, 60):
        with pytest.raises(TimeoutError, match="folder"), locked(place, 0):
            pass
        with locked(tmp_path / "new" / "other", 0):
            pass
    with locked(place, 0):
        assert not place.exists(), "the lock is beside it"
