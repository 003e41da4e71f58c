"""A real browser before the console of a real node. What one module's tests share lives as long as
they do.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import duolog.sync
import pytest

from tests.browser.chromium import need_chromium
from tests.browser.site import Site, fill
from tests.browser.window import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Open = Callable[..., Window]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, without a window of this machine's."""
    program = need_chromium()
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        # Pages that are gone back to come from its cache, as in a browser that people use.
        made = playwright.chromium.launch(
            executable_path=program,
            args=flags,
            ignore_default_args=["--disable-back-forward-cache"],
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def site(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node without users, with some topics, groups and messages."""
    node = Site(tmp_path_factory.mktemp("site") / "node-a")
    node.start()
    try:
        with duolog.sync.Client(node.endpoint, timeout=30) as client:
            fill(client)
        yield node
    finally:
        node.stop()


@pytest.fixture
def open_window(browser: "Browser") -> Iterator[Open]:
    """Opens a tab at a console, each in a profile of its own; none of them may complain."""
    contexts, windows = [], []

    def opened(url: str, *, zone: str = "UTC") -> Window:
        context = browser.new_context(base_url=url, timezone_id=zone, locale="en-GB")
        contexts.append(context)
        windows.append(Window(context.new_page()))
        return windows[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [one for window in windows for one in window.complaints] == []
