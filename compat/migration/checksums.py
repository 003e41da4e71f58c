"""Checksums of the segments of a log, to be compared with those of the broker's own files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

READ_BYTES = 1 << 20


def checksums_of(directory: Path, end: int) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of every full segment that was copied. Raises OSError.

    end: where the copied part of the log ends.
    """
    paths = sorted(path for path in (directory / "commitlog").iterdir() if path.name.isdecimal())
    for path in paths:
        if int(path.name) + path.stat().st_size > end:  # also one that is allocated ahead
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
        yield path.name, digest.hexdigest()
