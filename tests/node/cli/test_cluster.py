"""How a node is shown in the table of a cluster."""

from duolog import NodeStatus

from node.cli.cluster import row_of


def test_a_node_known_only_from_others_is_not_shown_as_serving() -> None:
    node = NodeStatus(name="x", role="SLAVE", listen="x:1", stale=True)
    row = row_of("c", node)
    assert (row["epoch"], row["state"], row["max_offset"]) == (None, "UNKNOWN", None)
    own = row_of("c", NodeStatus(name="x", role="ASYNC_MASTER"))
    assert (own["epoch"], own["state"]) == (0, "SERVING")
