"""What a fork waits for, and what it holds meanwhile."""

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import duolog
import grpc.aio
import pytest
from duolog import _forks
from duolog._forks import _Grpc
from duolog._grpcswitch import SWITCH


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
    monkeypatch.setattr(grpc.aio, "init_grpc_aio", lambda: begun.append(True))
    monkeypatch.setitem(os.environ, SWITCH, carries)
    monkeypatch.setattr(_forks, "_threads", lambda: (polls, runs))
    forks = _Grpc()
    monkeypatch.setattr(_forks, "_grpc", forks)
    channel = threading.Event()  # anything that can be referred to weakly
    _forks.grpc_opened(channel)
    assert (forks.used, list(forks.channels)) == (True, [channel])
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


def test_a_lock_that_another_thread_holds_is_not_released_by_a_fork_that_had_it_before() -> None:
    forks = _Grpc()

    class Lock:
        """Another thread has it as soon as it is free."""

        def release(self) -> None:
            forks._holder = 7

    forks._holder = threading.get_ident()
    forks.opening = Lock()  # type: ignore[assignment]
    forks.after_fork()
    assert forks._holder == 7


def test_the_first_fork_of_all_may_wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_forks, "SHUTDOWN_SECONDS", 0.001)
    forks = _Grpc()
    with forks.opening:
        forks.before_fork()
        forks.after_fork()
        assert forks.opening.locked()


async def test_every_part_of_a_client_is_known_to_forks() -> None:
    async with duolog.Client("127.0.0.1:1") as client, client.producer() as producer:
        router = client._router
        for part in (router, router.seed, producer, client.consumer("g", "T")):
            assert part in _forks._owned


async def test_a_child_is_told_when_it_makes_something_of_its_parents_client() -> None:
    async with duolog.Client("127.0.0.1:1") as client:
        client._router.note_fork()
        for make in (client.producer, lambda: client.consumer("g", "T")):
            with pytest.raises(duolog.WrongProcess, match="was made in the process"):
                make()
        client._router.forked = False


@pytest.mark.parametrize(
    ("used", "open_channel", "threads", "looks"),
    [
        (True, False, [True, True, False], 4),
        (True, False, [False], 2),
        (True, True, [True], 1),
        (False, False, [True], 1),
    ],
)
def test_a_fork_waits_for_grpcs_threads_to_end_where_no_channel_is_open(
    used: bool,
    open_channel: bool,
    threads: list[bool],
    looks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    now = 100.0

    def look() -> tuple[bool, bool]:
        seen.append(threads.pop(0) if len(threads) > 1 else threads[0])
        return False, seen[-1]

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(_forks, "_threads", look)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    forks = _Grpc()
    forks.used = used
    channel = threading.Event()
    if open_channel:
        forks.channels.add(channel)
    forks.before_fork()
    assert len(seen) == looks, "the last one tells what runs at the fork"
    assert forks._runs is seen[-1]
    assert forks.used is (used and open_channel), "no other fork waits for it again"
    assert now == pytest.approx(100.0 + 0.001 * max(0, looks - 2))
    forks.after_fork()


def test_a_fork_waits_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 0.25

    monkeypatch.setattr(_forks, "_threads", lambda: (False, True))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    collected: list[bool] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
    forks = _Grpc()
    forks.used = True
    forks.before_fork()
    assert (now, forks._runs, collected) == (101.0, True, [True])
    forks.after_fork()
    assert forks._holder == 0
    assert not _Grpc().lost


def test_a_channel_that_is_closed_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = _Grpc()
    assert (forks.used, forks.lost, len(forks.channels)) == (False, False, 0)
    monkeypatch.setattr(_forks, "_grpc", forks)
    channel = threading.Event()
    _forks.grpc_opened(channel)
    _forks.grpc_closed(channel)
    assert (forks.used, len(forks.channels)) == (True, 0)


def test_everything_of_a_client_learns_of_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    forks, told = _Grpc(), list[bool]()
    monkeypatch.setattr(_forks, "_grpc", forks)
    monkeypatch.setattr(_forks, "_owned", weakref.WeakSet())
    monkeypatch.setattr(_forks, "_forks", 3)
    monkeypatch.setattr(forks, "in_child", lambda: told.append(True))
    part = _forks.Owned()
    part.check_process()
    _forks._in_child()
    assert (_forks.forks_before(), told, part.forked) == (4, [True], True)
    with pytest.raises(duolog.WrongProcess, match="was made in the process"):
        part.check_process()
