"""Write docs/metrics.md from the table of metrics; with --check, compare."""

from duolog_server.node.metrics.table import SCOPES, SECTIONS, WHERE, Metric
from tools.generated import DOCS, write_or_compare

TARGET = DOCS / "metrics.md"
HEAD = """# Metrics

Generated from the code's own table by `make docs`; do not edit.

A node with `metrics.listen` answers `GET /metrics` there in Prometheus' text format. By default
there is no such port, and no library for it is loaded.

```toml
[metrics]
listen = "127.0.0.1:5557"
```

```yaml
scrape_configs:
  - job_name: duolog
    static_configs:
      - targets: ["127.0.0.1:5557"]  # every node of the cluster
```

Alert rules are in `cluster/prometheus/alerts.yml`, and what to do about each of them is in the
[runbooks](runbooks/README.md).

Where the node has users ([access](access.md)), Prometheus needs one: `basic_auth` with the name and
the password of a user that may Get the cluster. Otherwise the port answers anybody, and its answers
name topics, groups and nodes: listen on loopback, or on an address that only Prometheus reaches.

With `metrics.tls`, the port takes TLS only (1.3), with the certificate of `tls.cert`, which may be
replaced without a restart ([TLS on a node](connecting.md#tls-on-a-node)). Where `tls.client_certs`
requires certificates of clients, this port does, too; they do not take the place of the user.

```toml
[metrics]
listen = "0.0.0.0:5557"
tls = true

[tls]
cert = "/etc/duolog/node.pem"  # for n1.example
key = "/etc/duolog/node.key"
```

```yaml
scrape_configs:
  - job_name: duolog
    scheme: https
    tls_config:
      ca_file: /etc/prometheus/nodes-ca.pem
      cert_file: /etc/prometheus/prometheus.pem  # where the nodes require one
      key_file: /etc/prometheus/prometheus.key
    basic_auth:
      username: prometheus
      password_file: /etc/prometheus/duolog-password
    static_configs:
      - targets: ["n1.example:5557"]
```

- **Cost.** Counters are plain numbers, kept per batch and per call. State is read when it is asked
  for, in steps of a millisecond, and written by a thread. One reading runs at a time, for all who
  wait for it; the next one begins after a rest of four times the CPU that it took, at most 10 s.
- **Age.** If new figures are not ready after half of a request's time (Prometheus'
  `scrape_timeout`, at most 10 s), or if it comes more than a second before the end of that rest,
  it gets those of the last finished reading. `duolog_metrics_age_seconds` says how old they are.
  Until the first reading has finished, it gets only those under "The node".
- **Connections.** At most 16. One whose request has not come gives way to a new one.
- **A scrape changes nothing.** It creates no topic and no group, and wakes no call that waits.
- **Counters** (`_total`) begin at 0 with each process, as Prometheus expects.
- **Cardinality.** `metrics.series_max` limits the series of topics, groups, clients and methods.
  Those with the fewest messages, passed or waiting, or the fewest calls, are left out;
  `duolog_metrics_series_dropped` says how many series those are.
- **Labels of all series**, not repeated below. `node_id` is the name of the node, `broker` its
  replica group, and `brokerIP` its HOST:PORT for clients:

  | metrics | labels |
  |---|---|
  | `duolog_*` | {own} |
  | RocketMQ 5's | {native} |
  | the exporter's | {exported} |
  | `rocketmq_broker_tps`, `rocketmq_broker_qps` | {exported_broker} |
  | `rocketmq_brokeruntime_*` | {exported_runtime} |
"""

FOOT = """
## What differs from RocketMQ

- Of RocketMQ 5's metrics, `rocketmq_processor_watermark`, `rocketmq_pop_*` and
  `rocketmq_tiered_store_*` are missing: a node has no thread pools, no revive topics and no tiers
  of its own. `rocketmq_timing_messages` (by topic), `rocketmq_timer_enqueue_latency` and
  `rocketmq_delay_message_latency` are missing, too: of a message that waits, a node knows the time,
  and reads the rest when it is due. `duolog_timers_waiting` is the sum of the first.
  `rocketmq_*_create_execution_time` is in `duolog_call_seconds` of `Admin/CreateTopic`. There are
  no metrics of a proxy or a controller, which a node is as well: `duolog_role` and
  `duolog_elections_total` tell of elections.
- `rocketmq_rpc_latency` is of RocketMQ's gRPC API (`protocol_type="grpc"`), for which RocketMQ has
  no such metric: `request_code` is the method in RocketMQ's spelling of codes, such as
  `send_message`, and `response_code` the code of the answer, such as `ok`. A call that this node
  forwards to its master counts on both. Telemetry streams are not measured. By the remoting
  protocol, a code that a client chose, for an answer that the node passes on, is `other`.
- `rocketmq_message_size` counts each message by the size of its body. RocketMQ counts each batch
  once, by the average of its records.
- `rocketmq_timer_*` is of messages with a time of delivery. Those of RocketMQ's 18 levels of delay
  wait elsewhere, and are not among them.
- Histograms of topics, methods and transactions count as so many series, one for each of their
  bounds, for `metrics.series_max`.
- `rocketmq_consumer_inflight_messages` counts leases of POP. What members of the SDK have fetched
  ahead, a node does not know: it counts as ready.
- Lite topics have no figures of their own: messages count under their topic, and groups that read
  lite topics have no lag.
- On dashboard 10477 of rocketmq-exporter, all panels have data but two: thread pools
  (`*_headwait_timemills`) and "consume client info", which only clients of RocketMQ 4's protocol
  report. Of its runtime panel, the totals of this and the last morning are missing.
- The exporter's rates are over the last minute, or 10 s, as far as scrapes go back: over the time
  since the scrape that is at least so old, and since the start in the beginning.
- The exporter asks brokers once a minute; here, its figures are of the moment. Do not scrape both.
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
    return "".join([*parts, FOOT])


if __name__ == "__main__":
    write_or_compare(TARGET, render())
