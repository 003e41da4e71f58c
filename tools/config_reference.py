"""Write docs/configuration.md from the typed config; with --check, compare."""

import sys
from pathlib import Path

from node.config import SECTIONS, Config, described

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """# Configuration

Generated from the typed config by `make docs`; do not edit.

A value is taken from, the later ones winning: the default, the file (`--config FILE`, or the one
that the variable `DUOLOG_CONFIG` names, or `duolog.toml` where there is one), the environment
(`DUOLOG_<SECTION>__<KEY>`, as `DUOLOG_STORE__FLUSH_DISK_TYPE=SYNC_FLUSH`), flags
(`--set SECTION.KEY=VALUE`). A file that is named and missing, and keys that do not exist, are
errors. Other variables that begin with `DUOLOG_` are left alone. `duolog config show --origin`
prints every value and where it comes from.
"""
ABOUT = {
    "node": "Who the node is and where it listens.",
    "limits": "What one client may ask for.",
    "transactions": "Half messages that nobody decides on.",
    "rocketmq": "RocketMQ's own API on the client port; it needs the package's extra `rocketmq`.",
    "registry": "Where the nodes of a cluster agree on their masters (`broker_role = AUTO`).",
    "ha": "Replication. Sizes are bytes, times ms; a node's role is `store.broker_role`.",
    "store": "The engine, under RocketMQ's names in snake_case. Sizes are bytes, times ms, "
    "`file_reserved_time` hours, ratios percent.",
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
            parts.append(f"| `{key}` | `{default}` | {meaning} |\n")
    return "".join(parts)


def main() -> None:
    """Write, or compare."""
    text = render()
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET} is not what the config says: run make docs", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
