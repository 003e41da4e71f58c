"""Write docs/configuration.md from the typed config; with --check, compare."""

from duolog_server.node.runtime.config import SECTIONS, Config, described
from tools.generated import DOCS, write_or_compare

TARGET = DOCS / "configuration.md"
HEAD = """# Configuration

Generated from the typed config by `make docs`; do not edit.

`duolog config show --origin` prints every value and where it comes from. Values are taken from
these sources; a later one overrides an earlier one:

1. the default;
2. a TOML file: `--config FILE`, else the file that `DUOLOG_CONFIG` names, else `./duolog.toml` if
   it exists;
3. the environment: `DUOLOG_<SECTION>__<KEY>`, as in `DUOLOG_STORE__FLUSH_DISK_TYPE=SYNC_FLUSH`;
4. flags: `--set SECTION.KEY=VALUE`.

A named file that does not exist is an error, and so is an unknown key. Other variables that begin
with `DUOLOG_` are ignored.
"""
ABOUT = {
    "node": "Who the node is and where it listens.",
    "tls": "TLS on the ports of clients ([TLS on a node](connecting.md#tls-on-a-node)).",
    "audit": "The [audit log](access.md#the-audit-log). Without `file` and `topic` there is none.",
    "access": "Users and their rights ([access](access.md)). Without `key_file` there are none.",
    "limits": "Limits on what clients may ask for and create. Sizes are in bytes, times in ms.",
    "transactions": "Checks of half messages that are neither committed nor rolled back.",
    "rocketmq": "RocketMQ's own API on the client port. Needs the extra `rocketmq`.",
    "remoting": "RocketMQ's classic remoting protocol, for clients of RocketMQ 4 "
    "([remoting](remoting.md)). Without `listen` it is not served.",
    "metrics": "Metrics for Prometheus ([metrics](metrics.md)). On a node with users, "
    "Prometheus must log in (HTTP Basic).",
    "console": "The cluster in a browser ([console](console.md)).",
    "traces": "Spans for OpenTelemetry ([tracing](tracing.md)).",
    "registry": "The etcd cluster in which nodes elect their masters (`store.broker_role = AUTO`).",
    "ha": "Replication. Sizes are in bytes, times in ms. `store.broker_role` sets a node's role.",
    "rocketmq_slaves": "Brokers of RocketMQ that copy this node's log as slaves "
    "([slaves of RocketMQ](rocketmq-slaves.md)). Without `listen` there are none.",
    "store": "The storage engine. Keys are RocketMQ's names in snake_case. Sizes are in bytes, "
    "times in ms, `file_reserved_time` in hours, ratios in percent.",
}


def render() -> str:
    """The page."""
    parts = [HEAD]
    config = Config()
    for section in SECTIONS:
        part = getattr(config, section)
        parts.append(
            f"\n## [{section}]\n\n{ABOUT[section]}\n\n| key | default | meaning |\n|---|---|---|\n"
        )
        for key, meaning in described(type(part)).items():
            default = "host name" if (section, key) == ("node", "name") else getattr(part, key)
            default = getattr(default, "value", default)
            default = list(default) if isinstance(default, tuple) else default
            parts.append(f"| `{key}` | `{default}` | {meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    write_or_compare(TARGET, render())
