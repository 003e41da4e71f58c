"""How tasks set up the Python process that Spark runs them in."""

import gc
import subprocess
import sys

import pytest
from duolog import _sparkworker

PROGRAM = """
import gc
from duolog._sparkworker import task_begins

task_begins()
first = gc.get_freeze_count()
made = [[] for _ in range(1000)]
task_begins()
second = gc.get_freeze_count()
more = [[] for _ in range(1000)]
task_begins()
assert first > 1000, "what is loaded is not looked at any more"
assert second >= first + 1000, "nor what the first task has loaded"
assert gc.get_freeze_count() <= second, "what later tasks make is collected as ever"
"""


def test_loaded_modules_are_frozen_and_objects_of_tasks_are_collected() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_only_the_first_tasks_of_a_process_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(_sparkworker, "_begun", 0)
    for count in (1, 2, 2):
        _sparkworker.task_begins()
        assert len(frozen) == count
