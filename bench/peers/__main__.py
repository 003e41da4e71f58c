"""Measure duolog beside its peers, in turns.

python -m bench.peers [--quick] [--rounds N] [--only NAME,...] [--rows NAME,...] [--docs FOLDER]

JSON and page go into bench/results; a full run writes docs/peers.md, too. The
exit status is 1 where duolog itself failed; what cannot be had of the others is skipped.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from bench.peers.jetstream import JetStream
from bench.peers.kafka import Kafka, KafkaTools
from bench.peers.limits import limits_of_round
from bench.peers.others import OthersTime
from bench.peers.ours import Duolog, OverRemoting
from bench.peers.page import Circumstances, Report, page, table
from bench.peers.peer import Peer
from bench.peers.redisstreams import RedisStreams
from bench.peers.rocketmq import RocketMq
from bench.peers.rounds import Rounds, say
from bench.peers.rows import FULL, QUICK, ROWS, Row
from bench.run import RESULTS, machine

ROOT = Path(__file__).parent.parent.parent
BUDGET_SECONDS = 30 * 60  # after it nothing new begins: the run ends within 33 minutes
PEERS: tuple[Peer, ...] = (
    Duolog(),
    Kafka(),
    KafkaTools(),
    RocketMq("4.9.7"),
    OverRemoting(RocketMq("4.9.7")),
    RocketMq("5.3.3"),
    JetStream(),
    RedisStreams(),
)


def _named(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def chosen_peers(text: str) -> list[Peer]:
    """The peers with these names, parted by commas; all for none. Raises ValueError."""
    known = {peer.name: peer for peer in PEERS}
    return [known[name] for name in _checked(_named(text), list(known))]


def chosen_rows(text: str) -> list[Row]:
    """The rows with these names, in the table's order; all for none. Raises ValueError."""
    names = _checked(_named(text), [row.name for row in ROWS])
    return [row for row in ROWS if row.name in names]


def _checked(names: Sequence[str], known: Sequence[str]) -> list[str]:
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return list(names) or list(known)


def write(report: Report, folder: Path) -> None:
    """The page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(page(report))
    say(f"written to {folder / 'peers.md'}")


def as_json(report: Report) -> str:
    """All samples, for programs."""
    outcome = report.outcome
    cells = [
        {"peer": peer, "row": row, **asdict(cell)} for (peer, row), cell in outcome.cells.items()
    ]
    facts = {
        "circumstances": asdict(report.circumstances),
        "scale": asdict(report.scale),
        "versions": outcome.versions,
        "skipped": outcome.skipped,
        "limits": outcome.limits,
        "cells": cells,
    }
    return json.dumps(facts, indent=1)


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[Peer], list[Row]]:
    parser = argparse.ArgumentParser("python -m bench.peers", description="duolog and its peers")
    parser.add_argument("--quick", action="store_true", help="one round, little of everything")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--only", default="", help="peers: NAME,...")
    parser.add_argument("--rows", default="", help="rows: NAME,...")
    parser.add_argument("--docs", type=Path, help="write the page there, whatever kind of run")
    found = parser.parse_args(words)
    try:
        return found, chosen_peers(found.only), chosen_rows(found.rows)
    except ValueError as error:
        parser.error(str(error))


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends it as Ctrl-C does: processes are stopped, directories removed."""
    raise KeyboardInterrupt


def main(words: Sequence[str] | None = None) -> int:
    """One run."""
    options, peers, rows = _parse(sys.argv[1:] if words is None else words)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(options, peers, rows)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(options: argparse.Namespace, peers: list[Peer], rows: list[Row]) -> int:
    scale, began = QUICK if options.quick else FULL, time.monotonic()
    machine_facts = machine()
    others = OthersTime()
    until = began + BUDGET_SECONDS
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    outcome = Rounds(peers, rows, scale, until, limits=limits_of_round).run()
    complete = len(peers) == len(PEERS) and len(rows) == len(ROWS)
    share = others.share(int(machine_facts["cores"]))
    where = Circumstances(machine_facts, share, time.monotonic() - began, complete)
    report = Report(peers, rows, scale, outcome, where)
    print(table(report))
    for name, reason in outcome.skipped.items():
        print(f"skipped {name}: {reason}")
    folder = RESULTS / time.strftime("peers-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    (folder / "peers.json").write_text(as_json(report))
    write(report, folder)
    if options.docs or (complete and scale == FULL):
        write(report, options.docs or ROOT / "docs")
    return int(outcome.failed("duolog"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("ended on request; nothing is left")
