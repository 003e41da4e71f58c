"""A node that waits for its directory to be promoted."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.following import promotion
from node.following import state as states
from node.following.promotion import wait_promoted
from node.following.state import Following, State
from store.errors import BadStoreDirectory
from store.osdisk import OsDisk
from tests.process.support import environment

GROUP = "broker-a"
CUTTING = Following("b:1", "b:2", GROUP).becomes(State.CUTTING)
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


def test_what_was_promoted_is_not_waited_for(tmp_path: Path) -> None:
    states.save(OsDisk(tmp_path), PROMOTED)
    wait_promoted(tmp_path, GROUP, 0)
    wait_promoted(tmp_path, GROUP, 0)  # at the next start as well: nothing is left locked


LOCKS = """
import sys
from store.osdisk import OsDisk
disk = OsDisk(sys.argv[1])
disk.lock("lock")
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_end_of_the_cutover_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has noted the promotion, and closes the directory then."""
    monkeypatch.setattr(promotion, "LOOK_SECONDS", 0.001)
    looked, loaded = threading.Semaphore(0), states.load

    def load(disk: OsDisk) -> Following | None:
        looked.release()
        return loaded(disk)

    monkeypatch.setattr(states, "load", load)
    command, pipe = [sys.executable, "-c", LOCKS, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment()) as cutover:
        assert cutover.stdout is not None
        assert cutover.stdout.readline() == b"locked\n"
        states.save(OsDisk(tmp_path), PROMOTED)
        waiting = threading.Thread(target=wait_promoted, args=(tmp_path, GROUP, 60.0))
        waiting.start()
        for _ in range(3):
            assert looked.acquire(timeout=60)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()
