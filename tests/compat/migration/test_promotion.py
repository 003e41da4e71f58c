"""A node that waits for its directory to be promoted."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from duolog_server.compat.migration import promotion
from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.promotion import finish, wait_promoted
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.remoting.calling import ANYBODY
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import config_of
from tests.process.support import environment

GROUP = "broker-a"
CUTTING = Following("b:1", "b:2", GROUP).becomes(State.CUTTING)
FROZEN = CUTTING.becomes(State.CUTTING, saved={"brokerRole": "ASYNC_MASTER"})
PROMOTED = CUTTING.becomes(State.PROMOTED, cut=7)


@pytest.mark.parametrize("following", [None, CUTTING, CUTTING.becomes(State.FOLLOWING)])
def test_what_is_not_promoted_is_waited_for_so_long(
    tmp_path: Path, following: Following | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.001)
    if following is not None:
        states.save(OsDisk(tmp_path), following)
    with pytest.raises(TimeoutError, match="was not promoted within"):
        wait_promoted(tmp_path, GROUP, 0.01)


@pytest.mark.parametrize("following", [CUTTING, PROMOTED])
def test_a_node_of_another_name_is_refused_before_it_waits(
    tmp_path: Path, following: Following
) -> None:
    states.save(OsDisk(tmp_path), following)
    with pytest.raises(BadStoreDirectory, match=r"node\.group is 'other'"):
        wait_promoted(tmp_path, "other", 60.0)


def test_a_cutover_that_did_not_end_before_the_wait_is_told(tmp_path: Path) -> None:
    states.save(OsDisk(tmp_path), FROZEN)
    with (
        capture_logs() as lines,
        pytest.raises(TimeoutError, match=r"within 0 s: an earlier cut-over .* migrate abort"),
    ):
        wait_promoted(tmp_path, GROUP, 0, lambda _: None)
    (told,) = (line for line in lines if line["log_level"] == "warning")
    assert "duolog migrate cutover" in told["reason"]


def test_what_was_promoted_is_not_waited_for(tmp_path: Path) -> None:
    states.save(OsDisk(tmp_path), PROMOTED)
    wait_promoted(tmp_path, GROUP, 0)
    wait_promoted(tmp_path, GROUP, 0)  # at the next start as well: nothing is left locked


LOCKS = """
import sys
from duolog_server.store.osdisk import OsDisk
disk = OsDisk(sys.argv[1])
disk.lock("lock")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released at each look into the file."""
    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.001)
    looks, loaded = threading.Semaphore(0), states.load

    def load(disk: OsDisk) -> Following | None:
        looks.release()
        return loaded(disk)

    monkeypatch.setattr(states, "load", load)
    return looks


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another process uses a directory, until it is killed at the end."""
    command, pipe = [sys.executable, "-c", LOCKS, str(directory)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment()) as cutover:
        assert cutover.stdout is not None
        assert cutover.stdout.readline() == b"locked\n"
        yield
        cutover.kill()


def _seen(looks: threading.Semaphore) -> None:
    """Three more looks: what was there at the second one has had its effect."""
    while looks.acquire(blocking=False):
        pass
    for _ in range(3):
        assert looks.acquire(timeout=60)


def test_the_end_of_the_cutover_is_waited_for(tmp_path: Path, looked: threading.Semaphore) -> None:
    """It has noted the promotion, and closes the directory then."""
    with locked(tmp_path):
        states.save(OsDisk(tmp_path), PROMOTED)
        waiting = threading.Thread(target=wait_promoted, args=(tmp_path, GROUP, 60.0))
        waiting.start()
        _seen(looked)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_promotion_while_its_state_is_read_is_no_attempt_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, load, loads, finished = OsDisk(tmp_path), states.load, list[int](), list[int]()
    states.save(disk, FROZEN)

    def promoted_meanwhile(disk: OsDisk) -> Any:
        found = load(disk)
        loads.append(1)
        if len(loads) == 2:  # the first one after the wait began
            states.save(disk, PROMOTED)
        return found

    monkeypatch.setattr(states, "load", promoted_meanwhile)
    wait_promoted(tmp_path, GROUP, 60.0, lambda _: finished.append(1))
    assert not finished


def test_a_cutover_that_is_killed_is_finished(tmp_path: Path, looked: threading.Semaphore) -> None:
    """Not one that was killed before the wait; and once for each attempt."""
    disk, finished = OsDisk(tmp_path), list[int]()
    states.save(disk, FROZEN)
    waiting = threading.Thread(
        target=wait_promoted, args=(tmp_path, GROUP, 60.0, lambda _: finished.append(1))
    )
    waiting.start()
    _seen(looked)
    assert not finished, "an operator may have given it up"
    for attempt in (1, 2):
        with locked(tmp_path):
            states.save(disk, FROZEN)
            _seen(looked)
            assert len(finished) == attempt - 1, "it is under way"
        _seen(looked)
        assert len(finished) == attempt
    states.save(disk, PROMOTED)
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(finished) == 2


@pytest.mark.parametrize(
    "following", [CUTTING, FROZEN.becomes(State.CUTTING, reason="is being aborted")]
)
def test_what_has_not_changed_the_broker_or_is_aborted_is_not_finished(
    tmp_path: Path, looked: threading.Semaphore, following: Following
) -> None:
    disk, finished = OsDisk(tmp_path), list[int]()
    waiting = threading.Thread(
        target=wait_promoted, args=(tmp_path, GROUP, 60.0, lambda _: finished.append(1))
    )
    waiting.start()
    _seen(looked)
    states.save(disk, following)
    _seen(looked)
    states.save(disk, PROMOTED)
    waiting.join(60)
    assert not waiting.is_alive()
    assert not finished


def test_what_was_given_up_meanwhile_is_not_cut_over(tmp_path: Path) -> None:
    """By a command that an operator ran between the node's look and its lock."""
    disk, following = OsDisk(tmp_path), Following("127.0.0.1:1", "127.0.0.1:1", "broker-a")
    left = following.becomes(State.CUTTING, saved={"brokerRole": "ASYNC_MASTER"})
    states.save(disk, following)
    with capture_logs() as lines:
        finish(config_of(tmp_path), ANYBODY, left)
    assert "another command has changed it meanwhile" in lines[-1]["reason"]
    assert states.load(disk) == following
