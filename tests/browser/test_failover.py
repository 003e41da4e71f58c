"""A browser watches three elected nodes while their master dies."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duolog.sync
import pytest
from duolog.testing._node import SmallNode
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from duolog_server.demo.registryserver import RegistryServer
from tests.browser.conftest import Open
from tests.browser.test_pages import NARROW, WIDE, violations
from tests.browser.window import Window
from tests.process.support import NodeProcess, environment
from tests.topics import create_topic

pytestmark = [pytest.mark.process, pytest.mark.browser]

NAMES = ("a", "b", "c")
LENGTH, UNITS = re.compile(r"([\d.]+)\u202f(ms|s|min)"), {"ms": 1e-3, "s": 1.0, "min": 60.0}
HEARD_SECONDS = 5.0  # before its death, a master was heard of for the last time
OVERLAPS = """
(() => {
  const texts = [...document.querySelectorAll(".times text")];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], k) => boxes.slice(k + 1)
    .filter(([_, b]) => a.left < b.right && b.left < a.right)
    .filter(([_, b]) => a.top + 2 < b.bottom && b.top + 2 < a.bottom)
    .map(([other]) => one + " on " + other));
})()
"""
# A line that is too wide shows its right end; the next event of the page mends what this changes.
NEWEST = """
(() => {
  const line = document.querySelector(".times");
  const width = line.firstElementChild.getAttribute("width");
  line.firstElementChild.setAttribute("width", "3000");
  const shown = line.firstElementChild.getBoundingClientRect().right <= innerWidth;
  line.firstElementChild.setAttribute("width", width);
  return shown;
})()
"""
# A master that stands still for a shorter time stays the master.
LEASE = ("--set", "registry.lease_seconds=4", "--set", "node.log_level=warning")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, NodeProcess]]:
    registry = RegistryServer()
    flags = (*LEASE, "--role", "AUTO", "--registry", registry.endpoint, "--ha-listen")
    made = {name: NodeProcess(tmp_path / name, *flags, free_endpoint()) for name in NAMES}
    registry.start()
    try:
        for node in made.values():
            super(SmallNode, node).start()
        with duolog.sync.Client([node.endpoint for node in made.values()], timeout=30) as client:
            create_topic(client, "orders", 1)  # once one of them leads
        yield made
    finally:
        for node in made.values():
            node.stop()
        registry.stop()


@pytest.fixture
def console(nodes: dict[str, NodeProcess], tmp_path: Path) -> Iterator[str]:
    """The URL of `duolog console` beside the nodes."""
    listen = free_endpoint()
    endpoints = ",".join(node.endpoint for node in nodes.values())
    command = [sys.executable, "-m", "duolog_server.ops.cli.main", "console", "--listen", listen]
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


def check_line(window: Window) -> None:
    """No text of the time-line is cut or lies on another one, and the newest is in sight."""
    for width, height in (WIDE, NARROW):
        window.page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            window.page.emulate_media(color_scheme=scheme)
            assert window.ask("document.documentElement.scrollWidth") <= width
            arrow = window.page.locator(".times .arrow").bounding_box()
            assert arrow is not None
            assert arrow["x"] + arrow["width"] <= width
            assert window.ask(OVERLAPS) == []
            assert window.ask(NEWEST)
            window.picture(f"time-line-{width}-{scheme}")


def unled_seconds(window: Window) -> float:
    """How long nobody led before the mastership that goes on, as the time-line has it."""
    told = window.page.locator(".gap text").all_text_contents()
    lengths = [found for text in told if (found := LENGTH.fullmatch(text))]
    return float(lengths[-1][1]) * UNITS[lengths[-1][2]]


def test_a_failover_is_told_while_it_happens(
    nodes: dict[str, NodeProcess], console: str, open_window: Open
) -> None:
    window = open_window(console)
    window.open("/")
    window.until(lambda: leader(window))
    first = leader(window)
    title = window.page.locator("h1").element_handle()
    before = open_window(console)  # its form is of the old master's time
    before.open("/topics/orders/send")
    began = time.monotonic()
    nodes[first].kill()
    window.wait("document.querySelector('.sentence').classList.contains('alarm')")
    told = re.compile(rf"\b({'|'.join(set(NAMES) - {first})}) leads epoch")
    gone = window.page.locator(f"tr[id$='-{first}']")
    # Its row says that it is away, and another one's that it leads.
    window.until(lambda: re.search("Unreachable|Down", gone.inner_text()))
    masters = window.page.locator("tr", has=window.page.locator("td:text-is('master')"))
    window.until(
        lambda: (
            [row.split()[0] for row in masters.all_inner_texts()]
            in [[name] for name in NAMES if name != first]
        )
    )
    window.until(lambda: told.search(window.sentence) and f"{first} is down." in window.sentence)
    assert "All" not in window.sentence
    measured = time.monotonic() - began
    cause = f"the lease of {first} ended"
    newest = window.page.get_by_role("table").last.locator("tbody tr").first
    window.until(lambda: "current" in newest.inner_text() and cause in newest.inner_text())
    assert 0 < unled_seconds(window) < measured + HEARD_SECONDS
    words = window.page.locator(".gap").last.locator(".quiet").all_text_contents()
    assert " ".join(words) == cause
    line = window.page.get_by_role("img", name="Time-line of masters")
    assert f": {cause}." in (line.get_attribute("aria-label") or "")
    assert violations(window) == []
    window.picture("failover")
    check_line(window)
    before.page.get_by_label("Body").fill("sent with a node away")
    before.page.get_by_label("Type orders to confirm").fill("orders")
    before.page.get_by_role("button", name="Send").click()
    before.page.wait_for_url("**/topics/orders/0/0?group=*")
    assert "Stored as orders/0@0." in before.page.locator(".told").inner_text()
    before.open("/topics")
    before.shows("1 topic.")
    nodes[first].start()
    window.until(lambda: told.search(window.sentence) and leader(window))
    assert leader(window) != first
    assert title.evaluate("(node) => node.isConnected")
    window.until(lambda: len(window.streams) == 1)
