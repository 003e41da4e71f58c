"""python -m duolog_server.chaos: inject faults into a cluster, check its clients' histories.

python -m duolog_server.chaos --target processes --kill 20
python -m duolog_server.chaos --target containers --kill 10 --pause 5 --disconnect 10
python -m duolog_server.chaos --disks 192 --flush SYNC_FLUSH --power-cut-all 50
python -m duolog_server.chaos --replay DIR/timeline.json

Exit status 0: no violation; 1: a guarantee was violated; 2: the run is invalid.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import duolog

from duolog_server.chaos import report
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.chaos.run import Result, Run
from duolog_server.chaos.target import Target, Unsupported
from duolog_server.chaos.timeline import KINDS, BadTimeline, Fault, dumps, loads, plan
from duolog_server.chaos.workload import Load

OPTIONS: tuple[tuple[str, type, object, str], ...] = (
    ("seed", int, 1, "seed of the order and the times of faults"),
    ("replay", Path, None, "repeat the faults of a timeline.json"),
    ("lasts", float, 0.5, "mean duration of a fault in seconds"),
    ("gap", float, 0.3, "mean seconds between faults"),
    ("quiet", float, 0.0, "seconds without faults at the end"),
    ("lease", int, 3, "processes: lease in seconds"),
    ("etcd", int, 1, "processes: members of etcd"),
    ("disks", int, 0, "processes: MiB of each node's disk"),
    ("flush", str, "ASYNC_FLUSH", "processes: flush_disk_type"),
    ("producers", int, 4, "producers of the load"),
    ("pause-ms", float, 2.0, "pause of a producer between sends"),
    ("least-ok", int, 100, "with fewer acknowledged sends the run is invalid"),
    ("out", Path, Path("chaos-results"), "folder for reports"),
    ("name", str, "", "name of this run's report"),
)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="python -m duolog_server.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--target", choices=("processes", "containers"), default="processes")
    for kind in KINDS:
        word = kind.replace("_", "-")
        told = f"number of {word} faults"
        parser.add_argument(f"--{word}", type=int, default=0, metavar="N", help=told)
    for name, of, default, told in OPTIONS:
        parser.add_argument(f"--{name}", type=of, default=default, help=told)
    return parser.parse_args(words)


def faults_of(arguments: argparse.Namespace) -> list[Fault]:
    """The planned faults. Raises BadTimeline, OSError."""
    if arguments.replay is not None:
        return loads(arguments.replay.read_text())
    counts = {kind: getattr(arguments, kind) for kind in KINDS if getattr(arguments, kind)}
    found = plan(counts, arguments.seed, arguments.lasts, arguments.gap, shuffle=True)
    # A stall is about as long as a lease, a little shorter or longer, whatever other faults last.
    share = arguments.lease / arguments.lasts if arguments.lasts else 1.0
    return [replace(f, lasts=f.lasts * share) if f.kind == "stall" else f for f in found]


def load_of(arguments: argparse.Namespace) -> Load:
    """Load of the clients."""
    return Load(
        producers=arguments.producers,
        pause=arguments.pause_ms / 1000,
        least_ok=arguments.least_ok,
    )


def target_of(arguments: argparse.Namespace, scratch: Path) -> Target:
    """The target. Raises ImportError where the package docker is missing, and what it raises."""
    if arguments.target == "containers":
        from duolog_server.chaos.containers import ContainerTarget

        return ContainerTarget()
    flags: tuple[str, ...] = ("--set", "node.log_level=warning")
    flags += ("--set", f"store.flush_disk_type={arguments.flush}")
    flags += ("--set", "transactions.check_interval_ms=1000")
    if arguments.disks:
        flags += ("--set", "store.mapped_file_size_commit_log=4194304")
        flags += ("--set", "store.mapped_file_size_consume_queue=300000")
        flags += ("--set", "store.max_hash_slot_num=50000", "--set", "store.max_index_num=200000")
    else:
        flags += ("--set", "store.mapped_file_size_commit_log=67108864")
    return ProcessTarget(
        scratch,
        etcd_members=arguments.etcd,
        lease_seconds=arguments.lease,
        disk_bytes=arguments.disks << 20,
        flags=flags,
    )


def main(words: list[str] | None = None) -> int:
    """Run the faults and write the report."""
    arguments = parse(words)
    try:
        faults = faults_of(arguments)
    except (BadTimeline, OSError) as error:
        print(f"error: cannot use the planned faults: {error}", file=sys.stderr)
        return 2
    try:
        load = load_of(arguments)
    except ValueError as error:
        print(f"error: cannot use these options: {error}", file=sys.stderr)
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="duolog-chaos-"))
    name = arguments.name or f"{arguments.target}-{time.strftime('%Y%m%d-%H%M%S')}"
    out: Path = arguments.out / name
    try:
        target = target_of(arguments, scratch)
    except Exception as error:
        print(f"error: cannot start the target: {type(error).__name__}: {error}", file=sys.stderr)
        shutil.rmtree(scratch, ignore_errors=True)
        return 2
    try:
        target.prepare({fault.kind for fault in faults})
        out.mkdir(parents=True, exist_ok=True)
        run = Run(
            target,
            faults,
            load,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            quiet=arguments.quiet,
        )
        result = asyncio.run(run.carry_out())
        if not result.passed:
            target.collect(out)
    except duolog.DuologError:  # its Timeout is an OSError
        raise
    except (Unsupported, OSError) as error:
        print(f"error: no fault was injected: {error}", file=sys.stderr)
        return 2
    finally:
        target.stop()
        close = getattr(target, "close", None)
        if close is not None:
            close()
        shutil.rmtree(scratch, ignore_errors=True)
    summary = summary_of(result)
    (out / "timeline.json").write_text(dumps(result.faults, summary=summary))
    result.history.save(out / "history.jsonl")
    report.write(result, out / "report.html", f"duolog chaos: {name}")
    print(json.dumps(summary, indent=1))
    print(f"report: {out / 'report.html'}", file=sys.stderr)
    if result.findings:
        return 1
    return 2 if result.invalid else 0


def summary_of(result: Result) -> dict[str, object]:
    """The run's figures."""
    kinds = sorted({row.kind for row in result.failovers})
    return {
        "passed": result.passed,
        "invalid": result.invalid,
        "findings": [str(found) for found in result.findings],
        "sends": dict(result.history.outcomes()),
        **result.history.other_outcomes(),
        "faults": len(result.faults),
        "elections": len(result.epochs),
        "switches_ordered_again": len(result.refusals),
        "log_bytes": result.log_bytes,
        "seconds": round(result.seconds, 1),
        "longest_pause_seconds": round(result.longest_pause, 2),
        "first_answer_seconds": {
            kind: {
                "count": sum(1 for row in result.failovers if row.kind == kind),
                "p50": round(result.quantile((kind,), 0.5), 3),
                "p99": round(result.quantile((kind,), 0.99), 3),
                "max": round(result.quantile((kind,), 1.0), 3),
            }
            for kind in kinds
        },
    }


if __name__ == "__main__":
    sys.exit(main())
