"""The observer's own readers of small files, against the code that writes them."""

import random

from duolog_server.ha import membership
from duolog_server.ha.membership import Membership
from duolog_server.ha.starts import Start
from duolog_server.store.checkpoint import StoreCheckpoint
from sim.disk import SimDisk
from sim.platter import Noted, marks_on, membership_on, noted_on


def new_disk() -> SimDisk:
    return SimDisk(random.Random(1), lambda: 0.0)


def test_the_newest_note_of_a_checkpoint_is_read_from_the_page_cache() -> None:
    disk = new_disk()
    assert noted_on(disk) == Noted()
    checkpoint = StoreCheckpoint(disk)
    checkpoint.load()
    for confirmed in (100, 300, 500):
        checkpoint.note.raise_to(confirmed, confirmed - 50)
        assert noted_on(disk) == Noted(confirmed, confirmed - 50)
    checkpoint.note.lower_to(200)
    assert noted_on(disk) == Noted(200, 200)


def test_a_torn_note_leaves_the_previous_one_valid() -> None:
    disk = new_disk()
    checkpoint = StoreCheckpoint(disk)
    checkpoint.load()
    checkpoint.note.raise_to(100, 100)
    checkpoint.note.raise_to(300, 200)
    disk.inodes(False)["checkpoint"].seen[1024 + 10] ^= 1  # the second one is in the first slot
    assert noted_on(disk) == Noted(100, 100)


def test_the_membership_that_a_power_cut_would_leave_names_group_version_and_starts() -> None:
    disk = new_disk()
    assert membership_on(disk) == ("", 0, 0)
    membership.save(disk, Membership("g", 3, 7))
    membership.save(disk, Membership("g", 4, 7))
    assert membership_on(disk) == ("g", 4, 7)
    assert marks_on(disk) == []
    disk.inodes(True)[membership.PATH].durable[:512] = 0  # the newest line is the second one
    assert membership_on(disk) == ("g", 4, 7)


def test_the_marks_of_starts_are_those_that_a_power_cut_would_leave() -> None:
    disk = new_disk()
    assert marks_on(disk) == []
    marked = Membership("g", 3, 7, (Start(5, "five"), Start(7, "seven")))
    membership.save(disk, marked)
    assert marks_on(disk) == [(5, "five"), (7, "seven")]
