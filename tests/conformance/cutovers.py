"""Many moves of a real broker, with a kill of one side during each cut-over: by hand, for minutes.

Run: python -m tests.conformance.cutovers COUNT [VERSION [FIRST]] [--kill SIDE] [--at STEP]. Prints
a line of JSON for each, and their sum; ends with status 1 where a message was lost or came twice,
or a move failed. What a move that went wrong has left is kept. FIRST: number of the first one, from
which its kill follows, as far as options do not say it.
"""

import argparse
import asyncio
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance.cutting import STEPS, Kill, Side
from tests.conformance.migrated import Move, Moved

MESSAGES = 100  # between two kills


async def main(given: argparse.Namespace) -> int:
    """Move so many times; how many of them went wrong."""
    wrong = acknowledged = 0
    for seed in range(given.first, given.first + given.count):
        root, began = Path(tempfile.mkdtemp(prefix=f"move-{seed}-")), time.monotonic()
        kill = _kill(seed, given)
        row = {"seed": seed, "kill": kill.side, "at": kill.step, "delay": round(kill.delay, 3)}
        try:
            found = await Move(root, given.version, MESSAGES).run(kill)
        except Exception as error:
            row |= {"error": repr(error)[:1000], "root": str(root)}
            wrong += 1
        else:
            bad = found.missing or found.twice or not found.same
            row |= _row(found)
            wrong += bool(bad)
            acknowledged += found.acknowledged
            if bad or given.keep:
                row["root"] = str(root)
            else:
                shutil.rmtree(root)
        print(json.dumps({**row, "seconds": round(time.monotonic() - began)}), flush=True)
    print(json.dumps({"moves": given.count, "wrong": wrong, "acknowledged": acknowledged}))
    return wrong


def _kill(seed: int, given: argparse.Namespace) -> Kill:
    chosen = Kill.chosen(seed)
    if given.kill is not None:
        side = Side(given.kill)
        step = given.at or STEPS[side][seed % len(STEPS[side])]
        chosen = dataclasses.replace(chosen, side=side, step=step, abort=False)
    return chosen if given.delay is None else dataclasses.replace(chosen, delay=given.delay)


def _row(found: Moved) -> dict[str, object]:
    return {
        "cut": found.cut,
        "acknowledged": found.acknowledged,
        "missing": found.missing,
        "twice": found.twice,
        "same": found.same,
        "gaps": found.gaps,
        "steps": found.steps,
    }


def _given() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="python -m tests.conformance.cutovers")
    words.add_argument("count", type=int)
    words.add_argument("version", nargs="?", default="4.9.7")
    words.add_argument("first", nargs="?", type=int, default=0)
    words.add_argument("--kill", choices=list(Side), help="which side; default: by the number")
    words.add_argument("--at", help="the step after which it is killed, one of its side")
    words.add_argument("--delay", type=float, help="seconds after that step")
    words.add_argument("--keep", action="store_true", help="keep what every move has left")
    return words.parse_args()


if __name__ == "__main__":
    sys.exit(bool(asyncio.run(main(_given()))))
