"""How tasks set up the Python process that Spark runs them in."""

import subprocess
import sys

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
