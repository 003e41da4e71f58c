"""The sizes of an index, told by its files."""

from pathlib import Path

import pytest

from duolog_server.store.dump import check, segment_bytes
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.indexcheck import IndexSizes, as_found, found_sizes
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from tests.support import open_store, options, put_ok


def fill(path: Path, slots: int, entries: int, count: int) -> OsDisk:
    """A store with an index of some sizes and `count` keys in it."""
    store = open_store(path, options(max_hash_slot_num=slots, max_index_num=entries))
    for k in range(count):
        put_ok(store, [b"x"], properties=[f"KEYS\x01k{k}".encode()])
    store.shutdown()
    return OsDisk(path, read_only=True)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 99, 100, 230])
def test_index_files_tell_the_sizes_they_were_made_with(tmp_path: Path, count: int) -> None:
    """Whether filled a little, to the last entry, or more of them."""
    for number, (slots, entries) in enumerate([(50, 100), (55, 99), (1, 200), (500, 10)]):
        disk = fill(tmp_path / str(number), slots, entries, count)
        assert found_sizes(disk) == IndexSizes(slots, entries)
        sized = segment_bytes(disk, StoreOptions())
        assert (sized.max_hash_slot_num, sized.max_index_num) == (slots, entries)
        assert check(disk, StoreOptions())["problems"] == []


def test_an_index_of_other_sizes_than_named_is_refused(tmp_path: Path) -> None:
    """Made with them, the next start of the node would discard it."""
    disk = fill(tmp_path, 50, 100, 3)
    found = as_found(disk, StoreOptions(), False)
    assert as_found(disk, options(max_hash_slot_num=50, max_index_num=100), True) == options(
        max_hash_slot_num=50, max_index_num=100
    )
    for named in (options(max_hash_slot_num=55, max_index_num=99), StoreOptions()):
        with pytest.raises(BadStoreDirectory, match=r"have 50 slots and 100 entries, not .* leave"):
            as_found(disk, named, True)
    assert (found.max_hash_slot_num, found.max_index_num) == (50, 100)
    (path,) = (tmp_path / "index").iterdir()
    path.write_bytes(bytes(path.stat().st_size))  # it tells no more
    for given in (True, False):
        with pytest.raises(BadStoreDirectory, match="have 2,240 bytes, those with 5,000,000 slots"):
            as_found(disk, StoreOptions(), given)
    path.unlink()
    assert as_found(disk, StoreOptions(), False) == StoreOptions()


def test_what_a_killed_rebuild_left_goes_with_the_next_start(tmp_path: Path) -> None:
    fill(tmp_path, 50, 100, 1)
    (tmp_path / "rebuilding" / "old" / "index").mkdir(parents=True)
    (tmp_path / "rebuilding" / "x.npz").write_bytes(b"x")
    (tmp_path / "consumequeue" / ".rebuilding").mkdir()  # where a link leads elsewhere
    holder = OsDisk(tmp_path)
    holder.lock("lock")
    assert not (tmp_path / "rebuilding").exists()
    assert not (tmp_path / "consumequeue" / ".rebuilding").exists()
    holder.unlock()
