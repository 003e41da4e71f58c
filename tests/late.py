"""Programs that do not end in time: what they printed until then."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

TAIL = 3000  # characters


@contextmanager
def told_where_late() -> Iterator[None]:
    """Have a `subprocess.TimeoutExpired` say what the program printed last."""
    try:
        yield
    except subprocess.TimeoutExpired as late:
        for name, printed in (("stdout", late.stdout), ("stderr", late.stderr)):
            text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
            late.add_note(f"{name}: ...{text[-TAIL:]}" if text else f"{name}: nothing")
        raise


__all__ = ["told_where_late"]
