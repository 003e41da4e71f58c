"""Forked programs behave as those that are started anew, as far as tests of them look."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from duolog.testing._node import ChildNode

from tests.process.forks import NODES, Commands, Forked, _write, suits
from tests.process.support import ROOT, SMALL_FILES, NodeProcess, environment, run_cli

pytestmark = pytest.mark.process


@pytest.fixture
def forks() -> Iterator[Commands]:
    """With a nursery of their own."""
    made = Commands("duolog_server.ops.cli.output")
    assert suits(made, environment())
    yield made
    made.close()


@pytest.fixture
def endless(tmp_path: Path) -> tuple[str, ...]:
    """A command that waits: nobody writes its file."""
    file = tmp_path / "never.toml"
    os.mkfifo(file)
    return "config", "show", "--config", str(file)


def forked(forks: Commands, words: tuple[str, ...]) -> Forked:
    with open(os.devnull, "r+b") as nothing:
        return forks.fork(words, ROOT, (nothing.fileno(), nothing.fileno(), nothing.fileno()))


def test_output_errors_input_and_status_are_the_commands(forks: Commands, tmp_path: Path) -> None:
    (tmp_path / "duolog.toml").write_text('[node]\nname = "ü"\n')
    shown = forks.run(("config", "show"), tmp_path, "", 60)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "node.name\tü" in shown.stdout
    wrong = forks.run(("nonsense",), ROOT, "x" * 1_000_000, 60)  # more than a pipe holds
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nonsense" in wrong.stderr


def test_input_that_a_command_does_not_wait_for_is_lost() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    _write(writes, b"a line\n")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writes)


def test_a_command_that_ends_too_late_is_killed(forks: Commands, endless: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.TimeoutExpired, match=r"'config', 'show'.* timed out"):
        forks.run(endless, ROOT, "", 0.0)


def test_a_process_that_is_aborted_says_where_it_stands(
    forks: Commands, endless: tuple[str, ...], tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    with open(os.devnull, "r+b") as nothing, errors.open("wb") as told:
        files = nothing.fileno(), nothing.fileno(), told.fileno()
        waiting = forks.fork(endless, ROOT, files)
        with open(endless[-1], "wb"):  # once it reads
            waiting.send_signal(signal.SIGABRT)
            assert waiting.wait(60) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in errors.read_text()
    assert "node/runtime/config" in errors.read_text()


def test_a_fork_is_told_from_others_and_ends_by_its_own_signal(
    forks: Commands, endless: tuple[str, ...]
) -> None:
    first, second = forked(forks, endless), forked(forks, endless)
    assert first.pid != second.pid
    assert (first.poll(), second.poll()) == (None, None)
    second.kill()
    assert second.wait(60) == -signal.SIGKILL
    assert first.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.0)
    first.terminate()
    assert first.wait(60) == first.poll() == -signal.SIGTERM
    first.kill()  # nothing


def test_what_was_forked_ends_with_its_nursery(forks: Commands, endless: tuple[str, ...]) -> None:
    left = forked(forks, endless)
    forks.close()
    assert left.wait(60) == -signal.SIGKILL


def test_what_a_session_of_spark_sets_is_no_other_environment(forks: Commands) -> None:
    spark = {"SPARK_BUFFER_SIZE": "1", "PYSPARK_PYTHON": "python3"}
    assert suits(forks, {**environment(), **spark})
    assert not suits(forks, {**environment(), "OF_THIS_NODE": "1"})


def test_a_node_is_forked_and_one_with_another_environment_is_started(tmp_path: Path) -> None:
    usual = NodeProcess(tmp_path / "usual")
    other = ChildNode(tmp_path / "other", *SMALL_FILES)
    other.environment = {**environment(), "OF_THIS_NODE": "1"}
    assert not suits(NODES, other.environment)
    try:
        usual.start()
        other.start()
        other.wait_port()
        assert isinstance(usual.process, Forked)
        assert isinstance(other.process, subprocess.Popen)
    finally:
        assert [usual.stop(), other.stop()] == [0, 0]


def test_a_command_does_not_see_the_variables_of_duolog(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_cli("config", "show")
    monkeypatch.setenv("DUOLOG_NODE__NAME", "another")
    assert run_cli("config", "show").stdout == before.stdout
