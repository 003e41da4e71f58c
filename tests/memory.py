"""How much memory a test's own calls hold."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FRAMES = 25  # from an allocation back to the test


@contextmanager
def held_beneath(file: str) -> Iterator[Callable[[], int]]:
    """Bytes that are held of what was allocated beneath the functions of a file.

    What other threads allocate meanwhile, those of other tests' nodes or of pytest, counts for
    nothing.
    """
    ours = tracemalloc.Filter(True, file, all_frames=True)

    def held() -> int:
        found = tracemalloc.take_snapshot().filter_traces([ours])
        return sum(trace.size for trace in found.traces)

    tracemalloc.start(FRAMES)
    try:
        yield held
    finally:
        tracemalloc.stop()
