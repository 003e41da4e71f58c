"""The file that says whom a directory follows."""

from pathlib import Path

import pytest

from node.following.state import (
    PATH,
    Following,
    State,
    check_follows,
    check_served,
    load,
    save,
)
from store.errors import BadStoreDirectory, BadStoreFile
from store.osdisk import OsDisk
from tests.node.following.master import written

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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state":"DONE","saved":{}}', '{"state":1}'])
def test_a_file_that_cannot_be_read_is_an_error(disk: OsDisk, text: str) -> None:
    disk.write(PATH, text.encode())
    with pytest.raises(BadStoreFile, match=r"following\.json"):
        load(disk)


def test_only_what_was_promoted_is_served(disk: OsDisk) -> None:
    check_served(disk, "d")
    for following in (MADE, MADE.becomes(State.STOPPED), MADE.becomes(State.CUTTING)):
        save(disk, following)
        with pytest.raises(BadStoreDirectory, match=r"follows broker broker-a at 10.0.0.1:10911"):
            check_served(disk, "d")
    save(disk, MADE.becomes(State.CUTTING).becomes(State.PROMOTED, cut=1))
    check_served(disk, "d")


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
