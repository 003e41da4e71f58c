"""Write docs/metrics.md from the table of metrics; with --check, compare."""

import sys
from pathlib import Path

from node.metrics.table import SCOPES, SECTIONS, WHERE, Metric

TARGET = Path(__file__).parent.parent / "docs" / "metrics.md"
HEAD = """# Metrics

Generated from the code's own table by `make docs`; do not edit.

A node with `metrics.listen` answers `GET /metrics` there in Prometheus' text format. By default
there is no such port, and no library for it is loaded.

```toml
[metrics]
listen = "127.0.0.1:5557"
```

The port has neither authentication nor TLS, and its answers name topics, groups and nodes: listen
on loopback, or on an address that only Prometheus reaches.

- **Cost.** Counters are plain numbers, kept per batch. State is read when it is asked for, in steps
  of a millisecond, and written by a thread. One scrape runs at a time, for at most 10 s: after
  that, the answer is status 503.
- **A scrape changes nothing.** It creates no topic and no group, and wakes no call that waits.
- **Counters** (`_total`) begin at 0 with each process, as Prometheus expects.
- **Cardinality.** `metrics.series_max` limits the series of topics, groups and clients. Those with
  the fewest messages are left out; `duolog_metrics_series_dropped` says how many series those are.
- **Labels of all series**, not repeated below: `duolog_` has {own}; `rocketmq_` has {native}, where
  `node_id` is the name of the node.
"""


def row(metric: Metric) -> str:
    """A row of a section's table."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    where = f" {WHERE[metric.where]}" if metric.where else ""
    return (
        f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.help}{where} |\n"
    )


def render() -> str:
    """The page."""
    names = {scope: ", ".join(f"`{one}`" for one in labels) for scope, labels in SCOPES.items()}
    parts = [HEAD.format(**names)]
    for title, metrics in SECTIONS.items():
        parts.append(
            f"\n## {title}\n\n| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n"
        )
        parts += [row(metric) for metric in metrics]
    return "".join(parts)


def main() -> None:
    """Write, or compare."""
    text = render()
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET} is out of date: run make docs", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
