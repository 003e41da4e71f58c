"""What a fork waits for, and what it holds meanwhile."""

import os
import threading
from pathlib import Path

import duolog
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


@pytest.mark.parametrize(
    ("polls", "runs", "carries", "lost"),
    [
        (False, False, "0", False),
        (False, True, "0", True),
        (False, True, "1", False),
        (True, False, "0", True),
        (True, True, "1", True),
    ],
)
def test_grpc_works_in_a_child_if_none_of_its_threads_ran_or_it_begins_them_again(
    polls: bool, runs: bool, carries: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(_forks.grpc.aio, "init_grpc_aio", lambda: begun.append(True))
    monkeypatch.setitem(os.environ, _forks.SWITCH, carries)
    monkeypatch.setattr(_forks, "_threads", lambda: (polls, runs))
    forks = _Grpc()
    monkeypatch.setattr(_forks, "_grpc", forks)
    channel = threading.Event()  # anything that can be referred to weakly
    _forks.grpc_opened(channel)
    forks.before_fork()
    forks.in_child()
    assert (forks.lost, bool(begun)) == (lost, polls)
    assert (forks.used, len(forks.channels), forks.opening.locked()) == (False, 0, False)
    if lost:
        with pytest.raises(duolog.WrongProcess, match="gRPC was running"):
            _forks.opening_grpc()
    else:
        assert _forks.opening_grpc() is forks.opening


def test_threads_of_grpc_are_known_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_forks, "_TASKS", tmp_path)
    monkeypatch.setattr(threading, "enumerate", lambda: [])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("python\n")
    (tmp_path / "2").mkdir()  # it has ended since
    assert _forks._threads() == (False, False)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "comm").write_text("grpc_global_tim\n")
    assert _forks._threads() == (False, True)
    monkeypatch.setattr(_forks, "_TASKS", tmp_path / "none")
    poller = threading.Thread(name="Thread-1 (_poll_wrapper)")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.Thread(name="x"), poller])
    assert _forks._threads() == (True, False), "not Linux"


async def test_a_child_is_told_when_it_makes_something_of_its_parents_client() -> None:
    async with duolog.Client("127.0.0.1:1") as client:
        client._router.note_fork()
        for make in (client.producer, lambda: client.consumer("g", "T")):
            with pytest.raises(duolog.WrongProcess, match="was made in the process"):
                make()
        client._router.forked = False
