"""Many moves of a real broker, with cut-overs that are killed: by hand, and for minutes.

Run: python -m tests.conformance.cutovers COUNT [VERSION]. Prints a line of JSON for each, and their
sum; ends with status 1 where a message was lost or came twice.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.conformance.migrated import Move


async def main(count: int, version: str) -> int:
    """Move so many times; how many of them went wrong."""
    wrong = acknowledged = 0
    gap = 0.0
    for seed in range(count):
        with tempfile.TemporaryDirectory() as root:
            found = await Move(Path(root), version, 100).run(seed)
        bad = found.missing or found.twice or not found.same
        wrong += bool(bad)
        acknowledged += found.acknowledged
        gap = max(gap, found.gap_seconds)
        row = {
            "seed": seed,
            "cut": found.cut,
            "acknowledged": found.acknowledged,
            "missing": found.missing,
            "twice": found.twice,
            "same": found.same,
            "gap_seconds": round(found.gap_seconds, 1),
        }
        print(json.dumps(row), flush=True)
    print(
        json.dumps(
            {"moves": count, "wrong": wrong, "acknowledged": acknowledged, "gap": round(gap, 1)}
        )
    )
    return wrong


if __name__ == "__main__":
    sys.exit(bool(asyncio.run(main(int(sys.argv[1]), (sys.argv[2:] or ["4.9.7"])[0]))))
