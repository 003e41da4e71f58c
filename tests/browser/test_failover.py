"""A browser watches three elected nodes while their master dies."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import duolog.sync
import pytest

from demo.childprocess import ChildProcess
from demo.ports import free_endpoint
from demo.registryserver import RegistryServer
from tests.browser.conftest import Open
from tests.browser.window import Window
from tests.process.support import NodeProcess, environment

pytestmark = [pytest.mark.process, pytest.mark.browser]

NAMES = ("a", "b", "c")
LEASE = ("--set", "registry.lease_seconds=2", "--set", "node.log_level=warning")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, NodeProcess]]:
    registry = RegistryServer()
    registry.start()
    flags = (*LEASE, "--role", "AUTO", "--registry", registry.endpoint, "--ha-listen")
    made = {name: NodeProcess(tmp_path / name, *flags, free_endpoint()) for name in NAMES}
    for node in made.values():
        super(NodeProcess, node).start()
    with duolog.sync.Client([node.endpoint for node in made.values()], timeout=30) as client:
        client.admin.create_topic("orders", 1)  # once one of them leads
    yield made
    for node in made.values():
        node.stop()
    registry.stop()


@pytest.fixture
def console(nodes: dict[str, NodeProcess], tmp_path: Path) -> Iterator[str]:
    """The URL of `duolog console` beside the nodes."""
    listen = free_endpoint()
    endpoints = ",".join(node.endpoint for node in nodes.values())
    command = [sys.executable, "-m", "node.cli.main", "console", "--listen", listen]
    process = ChildProcess(
        "console",
        [*command, "--endpoints", endpoints],
        tmp_path / "console.log",
        environment=environment(),
    )
    process.start()
    process.wait_listening(listen)
    yield f"http://{listen}"
    process.stop()


def leader(window: Window) -> str:
    """The node that the page says leads, while all are in sync."""
    found = re.fullmatch(r"All 3 replicas in sync\. (\w) leads epoch \d+\.", window.sentence)
    return found[1] if found else ""


def test_a_failover_is_told_while_it_happens(
    nodes: dict[str, NodeProcess], console: str, open_window: Open
) -> None:
    window = open_window(console)
    window.open("/")
    window.until(lambda: leader(window))
    first = leader(window)
    title = window.page.locator("h1").element_handle()
    nodes[first].kill()
    window.wait("document.querySelector('.sentence').classList.contains('alarm')")
    told = re.compile(rf"\b({'|'.join(set(NAMES) - {first})}) leads epoch")
    gone = window.page.locator(f"tr[id$='-{first}']")
    # Its row says that it is away, and another one's that it leads.
    window.until(lambda: "does not answer" in gone.inner_text())
    masters = window.page.locator("tbody tr", has_text="master")
    window.until(
        lambda: (
            [row.split()[0] for row in masters.all_inner_texts() if "does not" not in row]
            in [[name] for name in NAMES if name != first]
        )
    )
    window.until(
        lambda: (
            told.search(window.sentence)
            and f"{nodes[first].endpoint} does not answer." in window.sentence
        )
    )
    assert "All" not in window.sentence
    window.picture("failover")
    nodes[first].start()
    window.until(lambda: told.search(window.sentence) and leader(window))
    assert leader(window) != first
    assert title.evaluate("(node) => node.isConnected")
    assert len(window.streams) == 1
