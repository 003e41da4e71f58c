"""Compile the kernels into their on-disk cache.

A cache entry is only checked against its own file, so when any kernel file is newer than an entry,
all entries are thrown away first.
"""

import importlib
import sys
import time
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "duolog_server" / "store" / "kernels"
MODULES = (
    "crc", "memory", "ordered", "text", "encode", "batch", "scan", "queue", "index", "decode",
    "choose",
)  # fmt: skip


def drop_stale() -> None:
    """Remove cached machine code older than the newest kernel source."""
    newest = max(source.stat().st_mtime for source in KERNELS.glob("*.py"))
    cached = list((KERNELS / "__pycache__").glob("*.nb?"))
    if any(entry.stat().st_mtime < newest for entry in cached):
        for entry in cached:
            entry.unlink()


def main() -> None:
    """Compile one module after the other."""
    sys.path.insert(0, str(KERNELS.parent.parent.parent))
    drop_stale()
    began = time.monotonic()
    for module in MODULES:
        importlib.import_module(f"duolog_server.store.kernels.{module}")
    print(f"kernels compiled in {time.monotonic() - began:.1f} s          ", file=sys.stderr)


if __name__ == "__main__":
    main()
