"""What a fork waits for, and what it holds meanwhile."""

import threading

import pytest
from duolog import _forks
from duolog._forks import _Grpc


def test_a_fork_that_waited_in_vain_for_another_one_leaves_its_lock_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_forks, "SHUTDOWN_SECONDS", 0.01)
    forks = _Grpc()

    def fork() -> None:
        forks.before_fork()
        forks.after_fork()

    forks.before_fork()
    other = threading.Thread(target=fork)
    other.start()
    other.join()
    assert forks.opening.locked()  # no channel is opened while this thread forks
    forks.after_fork()
    assert not forks.opening.locked()  # or no channel is ever opened again
