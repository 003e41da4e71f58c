"""The file that says whom a directory follows."""

import json
from pathlib import Path

import pytest

from duolog_server.compat.migration.state import (
    PATH,
    STATUS_PATH,
    Following,
    State,
    check_follows,
    check_served,
    check_unchanged,
    load,
    save,
)
from duolog_server.store.errors import BadStoreDirectory, BadStoreFile
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.master import written

MADE = Following("10.0.0.1:10911", "10.0.0.1:10912", "broker-a")


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(tmp_path)


def test_what_is_saved_is_loaded(disk: OsDisk) -> None:
    assert load(disk) is None
    cutting = save(disk, MADE).becomes(State.CUTTING, saved={"brokerRole": "ASYNC_MASTER"})
    assert load(disk) == MADE
    assert load(save_and(disk, cutting)) == cutting
    promoted = cutting.becomes(State.PROMOTED, cut=4711)
    assert load(save_and(disk, promoted)) == promoted


def save_and(disk: OsDisk, following: Following) -> OsDisk:
    save(disk, following)
    return disk


@pytest.mark.parametrize(
    ("state", "nexts"),
    [
        (State.FOLLOWING, "FOLLOWING STOPPED CUTTING"),
        (State.STOPPED, "FOLLOWING STOPPED"),
        (State.CUTTING, "CUTTING FOLLOWING PROMOTED"),
        (State.PROMOTED, ""),
    ],
)
def test_a_state_is_followed_by_some(state: State, nexts: str) -> None:
    made = Following("b", "h", "n", state, reason="why")
    for following in State:
        if following in nexts.split():
            assert made.becomes(following) == Following("b", "h", "n", following)
        else:
            with pytest.raises(AssertionError):
                made.becomes(following)


ROW = {"broker": "b", "ha": "h", "name": "n", "state": "FOLLOWING", "saved": {}}
BAD_ROWS: tuple[dict[str, object], ...] = (
    {"broker": 5},
    {"ha": None},
    {"cut": "7"},
    {"cut": True},
    {"cut": 7},
    {"state": "PROMOTED"},
    {"saved": []},
    {"other": 1},
)
BAD_TEXTS = ("", "[]", "{}", '{"state":"DONE","saved":{}}', '{"state":1}', "[" * 100_000)


@pytest.mark.parametrize("text", [*BAD_TEXTS, *(json.dumps({**ROW, **bad}) for bad in BAD_ROWS)])
def test_a_file_that_cannot_be_read_is_an_error(disk: OsDisk, text: str) -> None:
    disk.write(PATH, text.encode())
    with pytest.raises(BadStoreFile, match=r"following\.json"):
        load(disk)


def test_only_what_was_promoted_is_served(disk: OsDisk) -> None:
    check_served(disk, "d", "broker-a")
    for following in (MADE, MADE.becomes(State.STOPPED), MADE.becomes(State.CUTTING)):
        save(disk, following)
        with pytest.raises(BadStoreDirectory, match=r"follows broker broker-a at 10.0.0.1:10911"):
            check_served(disk, "d", "broker-a")
    save(disk, MADE.becomes(State.CUTTING).becomes(State.PROMOTED, cut=1))
    check_served(disk, "d", "broker-a")


def test_what_was_promoted_is_first_served_under_the_brokers_name(disk: OsDisk) -> None:
    save(disk, MADE.becomes(State.CUTTING).becomes(State.PROMOTED, cut=1))
    with pytest.raises(
        BadStoreDirectory, match=r"log of broker 'broker-a'.*node\.group is 'other'"
    ):
        check_served(disk, "d", "other")
    disk.write("config/replica.json", b"{}")  # what clients know by now is that of the node
    check_served(disk, "d", "other")


def test_what_was_promoted_follows_no_more(disk: OsDisk) -> None:
    assert check_follows(disk, "d") is None
    save(disk, MADE)
    assert check_follows(disk, "d") == MADE
    save(disk, MADE.becomes(State.CUTTING).becomes(State.PROMOTED, cut=4711))
    with pytest.raises(BadStoreDirectory, match="promoted at offset 4711"):
        check_follows(disk, "d")


def test_another_log_is_not_followed_into(tmp_path: Path) -> None:
    written(tmp_path, 1)
    with pytest.raises(BadStoreDirectory, match="empty directory"):
        check_follows(OsDisk(tmp_path), "d")


def test_an_older_copy_of_the_file_of_a_directory_that_was_served_is_not_believed(
    disk: OsDisk,
) -> None:
    disk.write("config/replica.json", b"{}")
    for following in (MADE, MADE.becomes(State.STOPPED), MADE.becomes(State.CUTTING)):
        save(disk, following)
        with pytest.raises(BadStoreDirectory, match=r"a node has served it.*older copy"):
            check_follows(disk, "d")
        with pytest.raises(BadStoreDirectory, match="follows broker broker-a"):
            check_served(disk, "d", "broker-a")


def test_a_copy_whose_file_is_lost_is_neither_served_nor_followed(tmp_path: Path) -> None:
    written(tmp_path, 1)
    disk = OsDisk(tmp_path)
    disk.write(STATUS_PATH, b"{}")
    with pytest.raises(BadStoreDirectory, match=r"following\.json is lost"):
        check_served(disk, "d", "broker-a")
    with pytest.raises(BadStoreDirectory, match="empty directory"):
        check_follows(disk, "d")
    disk.write("config/replica.json", b"{}")  # it was promoted and served, long ago
    check_served(disk, "d", "broker-a")


def test_what_another_command_changed_before_the_lock_is_seen(disk: OsDisk) -> None:
    check_unchanged(disk, None)
    cutting = save(disk, MADE.becomes(State.CUTTING))
    check_unchanged(disk, cutting)
    save(disk, cutting.becomes(State.PROMOTED, cut=1))
    for known in (cutting, None):
        with pytest.raises(BadStoreFile, match="changed it meanwhile"):
            check_unchanged(disk, known)
