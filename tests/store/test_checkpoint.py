"""The checkpoint: its five fields, when they are written, and how a start reads its file."""

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.checkpoint import FILE_BYTES, NOTE_AT, PATH, StoreCheckpoint
from duolog_server.store.osdisk import OsDisk
from sim.disk import SimDisk
from tests.known import known


def new_checkpoint(path: Path) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(OsDisk(path))
    checkpoint.load()
    return checkpoint


def test_the_checkpoints_five_fields_are_where_rocketmq_has_them(tmp_path: Path) -> None:
    checkpoint = new_checkpoint(tmp_path)
    checkpoint.physic_msg_timestamp = 1
    checkpoint.logics_msg_timestamp = 2
    checkpoint.index_msg_timestamp = 3
    checkpoint.master_flushed_offset = 4
    checkpoint.confirm_phy_offset = 5
    checkpoint.flush()
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert struct.unpack(">5q", data[:40]) == (1, 2, 3, 4, 5)
    assert not any(data[40:])
    again = new_checkpoint(tmp_path)
    assert again.confirm_phy_offset == 5
    assert again.index_msg_timestamp == 3


def test_the_minimum_holds_three_seconds_back(tmp_path: Path) -> None:
    checkpoint = new_checkpoint(tmp_path)
    assert checkpoint.min_timestamp == 0
    checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp = 9000, 8000
    assert checkpoint.min_timestamp == 5000
    assert checkpoint.min_timestamp_index == 0
    checkpoint.index_msg_timestamp = 4000
    assert checkpoint.min_timestamp_index == 4000


@given(st.binary(max_size=5000))
def test_a_checkpoint_of_any_bytes_is_read_or_recreated(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "checkpoint").write_bytes(data)
    checkpoint = new_checkpoint(path)
    assert checkpoint.min_timestamp >= 0
    assert checkpoint.index_msg_timestamp >= 0
    assert (path / "checkpoint").stat().st_size == 4096
    checkpoint.close()


def new_disk() -> SimDisk:
    return SimDisk(random.Random(1), lambda: 0.0)


def loaded(disk: SimDisk, writable: bool = True) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(disk)
    checkpoint.load(writable)
    return checkpoint


def fields(checkpoint: StoreCheckpoint) -> tuple[int, ...]:
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
    )


def durable(disk: SimDisk) -> tuple[int, ...]:
    """The five fields as a power cut would leave them."""
    return struct.unpack(">5q", disk.inodes(durable=True)[PATH].durable[:40].tobytes())


def test_a_new_checkpoint_vouches_for_nothing_and_its_file_is_durable() -> None:
    disk = new_disk()
    nothing = StoreCheckpoint(disk)
    assert fields(nothing) == (0,) * 5
    nothing.flush()
    nothing.settle()
    nothing.close()
    assert disk.size(PATH) == -1, "it has no file yet"
    created: list[str] = []
    make = disk.create

    def create(path: str, size: int) -> Any:
        file = make(path, size)
        sync = file.sync

        def tell() -> None:
            created.append("sync")
            sync()

        file.sync = tell  # type: ignore[method-assign]
        return file

    disk.create = create  # type: ignore[method-assign,assignment]
    sync_dir = disk.sync_dir
    disk.sync_dir = lambda path: (created.append("name"), sync_dir(path))[1]  # type: ignore[method-assign,func-returns-value]
    checkpoint = loaded(disk)
    assert created == ["sync", "name"], "a name never comes before the bytes"
    assert fields(checkpoint) == (0,) * 5
    assert disk.inodes(durable=True).keys() == {PATH}


@pytest.mark.parametrize("writable", [True, False])
def test_a_checkpoint_of_another_size_is_recreated_by_a_writer(writable: bool) -> None:
    disk = new_disk()
    disk.write(PATH, b"\1" * 99)
    assert fields(loaded(disk, writable)) == (0,) * 5
    assert disk.size(PATH) == (FILE_BYTES if writable else 99)


def test_a_reader_creates_no_checkpoint() -> None:
    disk = new_disk()
    assert fields(loaded(disk, writable=False)) == (0,) * 5
    assert disk.size(PATH) == -1


def test_fields_that_cannot_be_right_count_as_zeros() -> None:
    disk = new_disk()
    disk.write(PATH, struct.pack(">5q", -1, 0, 1, -(1 << 63), 7).ljust(FILE_BYTES, b"\0"))
    assert fields(loaded(disk)) == (0, 0, 1, 0, 7)


def test_a_flush_makes_fields_and_note_durable() -> None:
    disk = new_disk()
    checkpoint = loaded(disk)
    checkpoint.confirm_phy_offset = 7
    checkpoint.note.settle("boot", 0, 9, abnormal=False)
    checkpoint.note.raise_to(9, 8)
    assert checkpoint.note.unsynced
    checkpoint.flush()
    assert not checkpoint.note.unsynced
    assert durable(disk) == (0, 0, 0, 0, 7)
    disk.power_cut()
    again = loaded(disk)
    assert (again.note.confirmed, again.note.durable) == (9, 8)
    assert disk.inodes(durable=True)[PATH].durable[NOTE_AT:].any()


def test_after_recovery_the_file_claims_no_more_than_the_log_holds() -> None:
    disk = new_disk()
    checkpoint = loaded(disk)
    checkpoint.physic_msg_timestamp = 5
    checkpoint.settle()
    assert durable(disk)[0] == 0, "a new file claims nothing"
    checkpoint.confirm_phy_offset = 70
    checkpoint.settle()
    assert durable(disk)[4] == 0, "more is claimed by a flush only"
    checkpoint.flush()
    checkpoint.physic_msg_timestamp = 6
    checkpoint.settle()
    assert durable(disk)[0] == 5, "the file claims as much already"
    again = loaded(disk)
    again.physic_msg_timestamp = 7
    again.settle()
    assert durable(disk)[0] == 5
    again.confirm_phy_offset = 60
    again.settle()
    assert durable(disk) == (7, 0, 0, 0, 60)
    again.physic_msg_timestamp = 8
    again.settle()
    assert durable(disk)[0] == 7


def test_a_flush_that_fails_leaves_the_file_with_the_claim_it_had() -> None:
    disk = new_disk()
    checkpoint = loaded(disk)
    checkpoint.confirm_phy_offset = 70
    checkpoint.flush()
    checkpoint.confirm_phy_offset = 60
    for _ in range(2):
        disk.syncs_to_fail = 1
        with pytest.raises(OSError, match="simulated"):
            checkpoint.settle()


def test_the_held_back_time_is_never_before_zero() -> None:
    checkpoint = StoreCheckpoint(new_disk())
    checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp = 2999, 9000
    checkpoint.index_msg_timestamp = 9000
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (0, 0)
    checkpoint.physic_msg_timestamp = 8000
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (5000, 5000)


def test_a_closed_checkpoint_releases_its_file_and_keeps_its_note_in_memory() -> None:
    disk = new_disk()
    checkpoint = loaded(disk)
    file = known(checkpoint._file)
    memory: np.ndarray[Any, Any] = file.memory
    checkpoint.note.raise_to(9, 8)
    before = memory.copy()
    checkpoint.close()
    assert not len(file.memory)
    checkpoint.close()
    checkpoint.flush()
    checkpoint.note.raise_to(11, 10)
    assert (memory == before).all()
    assert checkpoint.note.confirmed == 11
