"""Real nodes for the tests of programs that use duolog.

    with Node() as node, duolog.sync.Client(node.endpoint) as client:
        ...

The nodes run in child processes, by the installed package duolog-server. pytest has the fixtures
`duolog_node` and `duolog_cluster` of it, which load nothing before a test uses them.
"""

from duolog.testing._cluster import Cluster
from duolog.testing._node import ForkedNode, Node
from duolog.testing._process import ChildError
from duolog.testing._server import ServerMissing

__all__ = ["ChildError", "Cluster", "ForkedNode", "Node", "ServerMissing"]
