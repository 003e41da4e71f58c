"""The end of a cut-over that was killed, by a node."""

from pathlib import Path

from structlog.testing import capture_logs

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.resume_cutover import finish
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.remoting.calling import ANYBODY
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import config_of


def test_what_was_given_up_meanwhile_is_not_cut_over(tmp_path: Path) -> None:
    """By a command that an operator ran between the node's look and its lock."""
    disk, following = OsDisk(tmp_path), Following("127.0.0.1:1", "127.0.0.1:1", "broker-a")
    left = following.becomes(State.CUTTING, saved={"brokerRole": "ASYNC_MASTER"})
    states.save(disk, following)
    with capture_logs() as lines:
        finish(config_of(tmp_path), ANYBODY, left)
    assert "another command has changed it meanwhile" in lines[-1]["reason"]
    assert states.load(disk) == following
