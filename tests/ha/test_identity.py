import random
from pathlib import Path
from unittest import mock

import pytest

from ha import identity
from ha.identity import Identity
from sim.disk import SimDisk
from store.errors import BadStoreFile
from store.osdisk import OsDisk


def settle(disk: OsDisk, fresh: int, boot: str = "b1", **how: bool) -> Identity:
    flags = {"log_empty": False, "abnormal": False, "acks_durable": False, **how}
    return identity.settle(disk, "n", fresh, boot, **flags)


def test_the_incarnation_stays_as_long_as_nothing_can_be_lost(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    assert settle(disk, 1, log_empty=True).incarnation == 1
    assert settle(disk, 2).incarnation == 1
    assert settle(disk, 3, abnormal=True).incarnation == 1, "a kill loses no page cache"
    assert settle(disk, 4, "b2").incarnation == 1, "a clean stop loses nothing"
    assert settle(disk, 5, "b3", abnormal=True, acks_durable=True).incarnation == 1
    assert settle(disk, 6, "b4", abnormal=True).incarnation == 6, "the machine went down"
    assert settle(disk, 7, "b4", log_empty=True).incarnation == 7, "the log is gone"


def test_a_promise_outlives_the_incarnation(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    who = identity.promise(disk, settle(disk, 1), 9)
    assert identity.promise(disk, who, 4).promised_epoch == 9
    assert settle(disk, 2, log_empty=True).promised_epoch == 9


def test_a_damaged_file_is_named_and_not_believed(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    settle(disk, 1)
    path = tmp_path / identity.PATH
    path.write_bytes(path.read_bytes().replace(b'"n"', b'"m"'))
    with pytest.raises(BadStoreFile, match=r"replica\.json"):
        identity.load(disk)


def test_what_was_read_at_a_start_is_durable_before_it_counts() -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    made = identity.settle(disk, "a", 1, "b1", log_empty=True, abnormal=False, acks_durable=True)
    with mock.patch.object(disk, "sync_dir"):  # killed between the rename and the sync
        identity.promise(disk, made, 7)
    again = identity.settle(disk, "a", 2, "b1", log_empty=False, abnormal=True, acks_durable=True)
    assert again.promised_epoch == 7
    for _ in range(20):
        disk.power_cut()
        found = identity.load(disk)
        assert found is not None
        assert found.promised_epoch == 7
