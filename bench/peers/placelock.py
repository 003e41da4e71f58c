"""A lock of a place: of several processes that would make the same thing there, one does."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1


@contextmanager
def locked(place: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a place, which is a file beside it; it ends with the process, too.

    Raises TimeoutError where another process holds it for so long.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with place.with_name(f"{place.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"another process has been making {place} for {seconds:g} s"
                    ) from None
                time.sleep(POLL_SECONDS)
        yield
