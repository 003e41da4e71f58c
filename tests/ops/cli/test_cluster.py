"""`duolog cluster`: a node in the table, and a drain that cannot end."""

import pytest
from duolog import Busy, NodeStatus, ReplicationStatus, RocketmqSlaveStatus
from duolog._admin import Admin
from typer.testing import CliRunner

from duolog_server.ops.cli import cluster
from duolog_server.ops.cli.cluster import row_of, rows_of


def test_a_node_known_only_from_others_is_not_shown_as_serving() -> None:
    node = NodeStatus(name="x", role="SLAVE", listen="x:1", stale=True)
    row = row_of("c", node)
    assert (row["epoch"], row["state"], row["max_offset"]) == (None, "UNKNOWN", None)
    own = row_of("c", NodeStatus(name="x", role="ASYNC_MASTER"))
    assert (own["epoch"], own["state"]) == (0, "SERVING")


def test_brokers_of_rocketmq_are_rows_below_the_node_that_they_copy() -> None:
    copies = (
        RocketmqSlaveStatus("10.0.0.7:4711", "TRANSFER", 1_700_000_000_000, 900, 100, 250),
        RocketmqSlaveStatus("10.0.0.8:4711", "SUSPEND", 0, reason="it is ahead"),
    )
    replication = ReplicationStatus(group="g", rocketmq_slaves=copies)
    node = NodeStatus(name="x", role="ASYNC_MASTER", replication=replication)
    master, one, other = rows_of("c", node)
    assert master == row_of("c", node)
    assert list(one) == list(master)
    shown = [one[key] for key in ("group", "node", "role", "max_offset", "lag_bytes")]
    assert shown == ["g", "10.0.0.7:4711", "ROCKETMQ_SLAVE", 900, 100]
    assert (one["lag_seconds"], one["state"]) == (0.25, "TRANSFER")
    assert str(one["reason"]).startswith("since 2023-11-14T22:13:20")
    assert (other["state"], other["reason"]) == ("SUSPEND", "it is ahead")


def test_a_node_that_is_drained_and_still_needed_is_looked_for_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drain(*_: object, **__: object) -> None:
        raise Busy("a is marked as drained and is still the master")

    monkeypatch.setattr(Admin, "drain", drain)
    done = CliRunner().invoke(cluster.app, ["drain", "a"])
    assert done.exit_code == 1
    assert done.stderr.endswith("still the master\n  try: duolog cluster status\n")
