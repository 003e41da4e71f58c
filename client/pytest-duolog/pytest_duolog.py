"""The pytest plugin of `duolog.testing`: fixtures that start real nodes.

pytest loads plugins with every run, so this module imports nothing of duolog before a test asks for
a node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from duolog.testing import Cluster, Node


@pytest.fixture
def duolog_node() -> Iterator[Node]:
    """A node of this test, with an empty store."""
    from duolog.testing import Node

    with Node() as node:
        yield node


@pytest.fixture
def duolog_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, `duolog_cluster(3)`, which end with the test.

    Takes what `duolog.testing.Cluster` takes.
    """
    from duolog.testing import Cluster

    with ExitStack() as stack:
        yield lambda nodes=3, **options: stack.enter_context(Cluster(nodes, **options))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the node's log where a test that uses it fails."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    node: Node | None = arguments.get("duolog_node")
    if report.failed and node is not None:
        report.sections.append(("log of the duolog node", node.log_tail()))
    return report
