"""Many moves of a real broker, with cut-overs that are killed: by hand, and for minutes.

Run: python -m tests.conformance.cutovers COUNT [VERSION [FIRST]]. Prints a line of JSON for each,
and their sum; ends with status 1 where a message was lost or came twice, or a move failed. What a
move that went wrong has left is kept. FIRST: number of the first one, from which its kills follow.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance.migrated import Move, Moved

MESSAGES = 100  # between two kills


async def main(count: int, version: str, first: int) -> int:
    """Move so many times; how many of them went wrong."""
    wrong = acknowledged = 0
    for seed in range(first, first + count):
        root, began = Path(tempfile.mkdtemp(prefix=f"move-{seed}-")), time.monotonic()
        try:
            found = await Move(root, version, MESSAGES).run(seed)
        except Exception as error:
            row = {"seed": seed, "error": repr(error)[:1000], "root": str(root)}
            wrong += 1
        else:
            row, bad = _row(seed, found), found.missing or found.twice or not found.same
            wrong += bool(bad)
            acknowledged += found.acknowledged
            if not bad:
                shutil.rmtree(root)
        print(json.dumps({**row, "seconds": round(time.monotonic() - began)}), flush=True)
    print(json.dumps({"moves": count, "wrong": wrong, "acknowledged": acknowledged}))
    return wrong


def _row(seed: int, found: Moved) -> dict[str, object]:
    return {
        "seed": seed,
        "cut": found.cut,
        "acknowledged": found.acknowledged,
        "missing": found.missing,
        "twice": found.twice,
        "same": found.same,
        "gap_seconds": round(found.gap_seconds, 1),
        "steps": found.steps,
    }


if __name__ == "__main__":
    count, version, first = (*sys.argv[1:], *("", "4.9.7", "0")[len(sys.argv) - 1 :])
    sys.exit(bool(asyncio.run(main(int(count), version, int(first)))))
