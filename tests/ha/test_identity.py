import random
from pathlib import Path
from unittest import mock

import pytest

from duolog_server.ha import identity
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.identity import Identity, LastRun
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.osdisk import OsDisk
from sim.disk import SimDisk
from tests.known import known


def settle(disk: Disk, fresh: int, boot: str = "b1", **how: bool) -> Identity:
    flags = {"log_empty": False, "abnormal": False, "acks_durable": False, **how}
    return identity.settle(disk, Identity("n", fresh, boot_id=boot), LastRun(**flags))


def test_the_incarnation_stays_as_long_as_nothing_can_be_lost(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    first = 0xFEDC_BA98_7654_3210
    assert settle(disk, first, log_empty=True).incarnation == first
    assert settle(disk, 2).incarnation == first
    assert settle(disk, 3, abnormal=True).incarnation == first, "a kill loses no page cache"
    assert settle(disk, 4, "b2").incarnation == first, "a clean stop loses nothing"
    assert settle(disk, 5, "b3", abnormal=True, acks_durable=True).incarnation == first
    assert settle(disk, 6, "b4", abnormal=True).incarnation == 6, "the machine went down"
    assert settle(disk, 7, "b4", log_empty=True).incarnation == 7, "the log is gone"
    lacks = {"acks_durable": True, "lacks_confirmed": True}
    assert settle(disk, 8, "b4", **lacks).incarnation == 8, "an older log was restored"


def test_a_promise_outlives_the_incarnation(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    who = identity.promise(disk, settle(disk, 1), Epoch(9))
    assert identity.promise(disk, who, Epoch(4)).promised_epoch == 9
    assert settle(disk, 2, log_empty=True).promised_epoch == 9


def test_a_new_directory_has_promised_nothing_and_believes_what_it_copies(tmp_path: Path) -> None:
    assert settle(OsDisk(tmp_path), 1) == Identity("n", 1, Epoch(0), "b1", confirmed_only=False)


def test_a_new_identity_is_read_at_the_next_start(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    who = identity.promise(disk, settle(disk, 1), Epoch(5))
    who = identity.renew(disk, identity.follow(disk, who, confirmed_only=True), 2)
    assert who == Identity("n", 2, Epoch(5), "b1", confirmed_only=True)
    assert settle(disk, 3) == who
    assert not identity.follow(disk, who, confirmed_only=False).confirmed_only
    assert not settle(disk, 4).confirmed_only


def test_a_node_with_a_full_disk_still_follows_its_previous_master() -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    made = settle(disk, 1, log_empty=True, acks_durable=True)
    who = identity.follow(disk, identity.promise(disk, made, Epoch(7)), confirmed_only=True)
    disk.full = True
    assert identity.follow(disk, identity.promise(disk, who, Epoch(7)), confirmed_only=True) == who
    with pytest.raises(OSError, match="full disk"):
        identity.promise(disk, who, Epoch(8))


def test_a_damaged_file_is_named_and_not_trusted(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    settle(disk, 1)
    path = tmp_path / identity.PATH
    path.write_bytes(path.read_bytes().replace(b'"n"', b'"m"'))
    with pytest.raises(BadStoreFile, match=r"replica\.json"):
        identity.load(disk)


def test_an_identity_read_at_a_start_is_durable_before_it_counts() -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    made = settle(disk, 1, log_empty=True, acks_durable=True)
    with mock.patch.object(disk, "sync_dir"):  # killed between the rename and the sync
        identity.promise(disk, made, Epoch(7))
    again = settle(disk, 2, abnormal=True, acks_durable=True)
    assert again.promised_epoch == 7
    for _ in range(20):
        disk.power_cut()
        found = known(identity.load(disk))
        assert found.promised_epoch == 7


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", bytes(100), b"\xff"])
def test_a_damaged_file_does_not_bring_back_the_replica_that_this_directory_was(
    tmp_path: Path, damaged: bytes
) -> None:
    """It became another one because it lacks what the old one had acknowledged."""
    disk = OsDisk(tmp_path)
    was = settle(disk, 1)
    identity.renew(disk, was, 2)
    disk.write(identity.PATH, damaged)
    with pytest.raises(BadStoreFile):
        settle(disk, 3)
    (tmp_path / identity.PATH).unlink()
    assert settle(disk, 3).incarnation == 3, "nor does a lost one"
