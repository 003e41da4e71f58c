"""python -m sim: run seeds, replay one, prove that planted bugs are caught.

python -m sim --seed 7            one run, twice: the same trace hash, or it is no simulation
python -m sim --seed 7 --trace    ... and everything that happened
python -m sim --seeds 500         fresh seeds (the kept regressions run first)
python -m sim --seeds 500 --base 1000 --jobs 2 --json
python -m sim --replay FILE       a kept failing run
python -m sim --moves --seed 7    two replica groups, between which queues move; so with all above
python -m sim --mutants           every planted bug must be caught
python -m sim --mutants --sample 7 --count 60   60 of them, drawn by a number
python -m sim --mutants --keep    ... and the seeds that did are noted, to be tried first
"""

import argparse
import json
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

from sim import cluster, faults, moverun
from sim.cluster import Outcome
from sim.faults import Fault
from sim.hunting import NOTES, Catch, hunt_named, read_notes, stale, write_notes
from sim.mutants import MUTANTS
from sim.shrink import shrink

REGRESSIONS = Path(__file__).parent / "regressions"
OF_MOVES = REGRESSIONS / "moves"
CHUNK = 20
# What a large number of runs must have met, or the simulator does not test what it should.
MUST_SEE = (
    "put_ok",
    "flush_slave_timeout",
    "flush_disk_timeout",
    "sends_weak",
    "slave_not_available",
    "in_sync_replicas_not_enough",
    "truncated",
    "switched",
    "power_cut",
    "killed",
    "sync_failed",
    "suspended",
    "double_connected",
    "link_cut",
    "segment_lost",
    "went_async",
    "elected",
    "failed_over",
    "order_done",
    "repeat_unknown",
    "registry_timeout",
    "registry_restored",
    "registry_wiped",
    "elected_by_hand",
    "disk_lost",
    "lease_revoked",
    "etcd_cut",
    "etcd_outage",
    "etcd_slow",
    "watch_lag",
    "older_copy_of_same_run",
    "older_copy_of_earlier_run",
    "found_older",
    "refused_as_older",
    "contradicted",
    "popped_again",
    "poisoned",
    "recalled",
    "half_messages_decided",
    "sdk_sent",
    "sdk_given_again",
    "sdk_takeovers",
    "sdk_published",
    "lite_sent",
    "lite_given_again",
    "lite_forgotten",
    "access_changed",
    "access_denied",
    "access_strangers",
    "quota_passed",
    "quota_throttled",
    "quota_waits_kept",
    "remade",
    "remade_delivered",
    "limits_lowered",
    "member_kill",
    "member_pause",
    "publisher_kill",
    "killed_at_step",
    "frames_flipped",
    "frames_mangled",
)


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one seed")
    what.add_argument("--seeds", type=int, help="run this number of seeds")
    what.add_argument("--replay", type=Path, help="replay a kept run")
    what.add_argument("--mutants", action="store_true", help="prove that planted bugs are caught")
    parser.add_argument(
        "--moves", action="store_true", help="two replica groups, between which queues move"
    )
    parser.add_argument("--base", type=int, help="first seed of --seeds; default: random")
    parser.add_argument("--sample", type=int, help="draws the planted bugs of --mutants")
    parser.add_argument("--count", type=int, default=60, help="number of planted bugs it draws")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep a failing run as a regression, or the seeds that catch planted bugs",
    )
    arguments = parser.parse_args()
    if arguments.sample is not None and (not arguments.mutants or arguments.keep):
        parser.error("--sample draws planted bugs: give --mutants with it, and no --keep")
    if arguments.moves and arguments.mutants:
        parser.error("--mutants plants the bugs of all kinds of runs: give no --moves with it")
    return arguments


def main() -> int:
    """Run; 0 where all is well, 1 for a violation, 2 for a simulator that is not one."""
    arguments = parse()
    if arguments.mutants:
        return prove_mutants(arguments)
    if arguments.seeds is not None:
        return run_many(arguments)
    if arguments.replay is not None:
        seed, planned, elected = faults.loads(arguments.replay.read_text())
        return run_one(seed, planned, elected, arguments)
    return run_one(arguments.seed, None, None, arguments)


def run_one(
    seed: int, planned: list[Fault] | None, elected: bool | None, arguments: argparse.Namespace
) -> int:
    """One run, and once more: the same seed must do the same."""
    run = runner(arguments.moves)
    outcome = run(seed, planned, arguments.trace, elected)
    if outcome.trace is not None:
        print("\n".join(outcome.trace))
    again = run(seed, planned, False, elected)
    print_result([outcome], 0.0, arguments.json)
    if again.digest != outcome.digest:
        print(f"seed {seed} is not deterministic: {outcome.digest}, {again.digest}")
        return 2
    if outcome.violation:
        report(outcome, arguments)
        return 1
    print(f"seed {seed}: {outcome.events} events, trace {outcome.digest}", file=sys.stderr)
    return 0


def report(outcome: Outcome, arguments: argparse.Namespace) -> None:
    """Say what failed, how to see it again, and with how few faults it still does."""
    kind = "--moves " if arguments.moves else ""
    print(f"VIOLATION seed {outcome.seed}: {outcome.violation}")
    print(f"replay: python -m sim {kind}--seed {outcome.seed} --trace")

    def fails(some: list[Fault]) -> str:
        found = runner(arguments.moves)(outcome.seed, some, False, outcome.elected)
        return found.violation if found.failed_in == outcome.failed_in else ""  # not another error

    fewest, why = shrink(outcome.faults, fails)
    print(f"{len(fewest)} of {len(outcome.faults)} faults are enough: {why}")
    for fault in fewest:
        print(f"  {fault}")
    if arguments.keep:
        where = OF_MOVES if arguments.moves else REGRESSIONS
        where.mkdir(exist_ok=True)
        path = where / f"seed_{outcome.seed}.json"
        path.write_text(faults.dumps(outcome.seed, fewest, why, outcome.elected))
        print(f"kept as {path}: python -m sim {kind}--replay {path}")


def runner(moves: bool) -> Callable[[int, list[Fault] | None, bool, bool | None], Outcome]:
    """What makes a run of a kind: of a seed, its faults, whether to trace it, whether elected."""
    return moverun.run if moves else cluster.run


# -- many ------------------------------------------------------------------------------------------


def run_kept(path: Path) -> Outcome:
    """A kept regression, in a process of a pool."""
    seed, planned, elected = faults.loads(path.read_text())
    return runner(path.parent == OF_MOVES)(seed, planned, False, elected)


def run_chunk(seeds: range, moves: bool) -> list[Outcome]:
    """Some seeds, in a process of a pool."""
    return [runner(moves)(seed, None, False, None) for seed in seeds]


def run_many(arguments: argparse.Namespace) -> int:
    """The kept regressions, then fresh seeds; stops at nothing, reports everything."""
    began = time.monotonic()
    base = secrets.randbits(32) if arguments.base is None else arguments.base
    chunks = [
        range(first, min(first + CHUNK, base + arguments.seeds))
        for first in range(base, base + arguments.seeds, CHUNK)
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        kept = OF_MOVES if arguments.moves else REGRESSIONS
        outcomes = list(pool.map(run_kept, sorted(kept.glob("*.json"))))
        began_seeds = time.monotonic()
        for done in pool.map(run_chunk, chunks, repeat(arguments.moves)):
            outcomes += done
    seconds = time.monotonic() - began_seeds
    failed = [outcome for outcome in outcomes if outcome.violation]
    print_result(outcomes, seconds, arguments.json, base, arguments.jobs)
    for outcome in failed[:3]:
        report(outcome, arguments)
    if len(failed) > 3:
        print(f"and {len(failed) - 3} more: {[outcome.seed for outcome in failed[3:50]]}")
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
    if failed:
        return 1
    must_see = moverun.MUST_SEE if arguments.moves else MUST_SEE
    missing = [mark for mark in must_see if not sum_counts(outcomes)[mark]]
    if missing and arguments.seeds >= 100:
        print(f"never seen: {', '.join(missing)}")
        return 2
    return 0


def sum_counts(outcomes: list[Outcome]) -> Counter[str]:
    """Counts of all runs."""
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome.counts)
    return total


def print_result(
    outcomes: list[Outcome],
    seconds: float,
    as_json: bool,
    base: int | None = None,
    jobs: int = 1,
) -> None:
    """Totals."""
    counts = sum_counts(outcomes)
    events = sum(outcome.events for outcome in outcomes)
    row: dict[str, Any] = {
        "seeds": len(outcomes),
        "base": base,
        "events": events,
        "violations": sum(1 for outcome in outcomes if outcome.violation),
        "seconds": round(seconds, 2),
        "seeds_per_second_per_core": round(len(outcomes) / seconds / jobs, 2) if seconds else None,
        "counts": dict(sorted(counts.items())),
    }
    if as_json:
        print(json.dumps(row))
    else:
        for name, value in {**row, **row.pop("counts")}.items():
            if value is not None and name != "counts":
                print(f"{name:30} {value}")


# -- mutants ---------------------------------------------------------------------------------------


def prove_mutants(arguments: argparse.Namespace) -> int:
    """Every planted bug must be caught by some of the first seeds."""
    began = time.monotonic()
    catches: list[Catch] = []
    names, noted = [mutant.name for mutant in MUTANTS], read_notes()
    if arguments.sample is not None:
        drawn = random.Random(arguments.sample).sample(names, min(arguments.count, len(names)))
        names = [name for name in names if name in drawn]
        noted = {name: seed for name, seed in noted.items() if name in drawn}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for catch in pool.map(hunt_named, names):
            catches.append(catch)
            told = f"seed {catch.seed}: " if catch.seed >= 0 else "NOT CAUGHT "
            print(f"{catch.name:24} {told}{catch.violation[:110]}", flush=True)
    caught = sum(catch.seed >= 0 for catch in catches)
    print(f"caught {caught} of {len(names)} planted bugs")
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
    if arguments.keep:
        write_notes(catches)
    elif old := stale(catches, noted):
        print(
            f"{NOTES.name} has another seed, or none, for {', '.join(old)}: their hunts take "
            "longer; python -m sim --mutants --keep notes the seeds anew",
            file=sys.stderr,
        )
    return 0 if caught == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
