"""Set-up of the Python process in which Spark runs tasks."""

import gc

TASKS = 2  # at the second one, what the first has imported is there too

_begun = 0


def task_begins() -> None:
    """Keep the garbage collector away from what is loaded, in a process's first tasks.

    PySpark collects after every task, before the process takes the next one: 90 ms over NumPy's,
    Numba's and Arrow's objects, which all live as long as the process. Only twice, so that it can
    never add up to a leak.
    """
    global _begun
    if _begun < TASKS:
        _begun += 1
        gc.freeze()
