"""A hash over a commit log's bytes, read from its files; by itself: `python logdigest.py DIR END`.

Only the standard library: it is run inside containers, too.
"""

import hashlib
import sys
from pathlib import Path

PIECE = 1 << 20


def digest(directory: Path, end: int) -> str:
    """Over [first segment's start, end); the first offset is part of it."""
    found = hashlib.blake2b(digest_size=16)
    for segment in sorted((directory / "commitlog").iterdir()):
        start = int(segment.name)
        left = min(segment.stat().st_size, end - start)
        if left <= 0:
            break
        found.update(segment.name.encode())
        with segment.open("rb") as source:
            while left > 0 and (piece := source.read(min(PIECE, left))):
                found.update(piece)
                left -= len(piece)
    return found.hexdigest()


if __name__ == "__main__":
    print(digest(Path(sys.argv[1]), int(sys.argv[2])))
