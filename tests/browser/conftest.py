"""A real browser before the console of real nodes.

The cluster lives from the first test of this folder to the last: tests that change what it holds
have topics and groups of their own.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import need_chromium
from tests.browser.site import Cluster
from tests.browser.window import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Open = Callable[..., Window]
FOLDER = Path(__file__).parent
running: list[Cluster] = []


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
def site(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster: three nodes and one, with users, topics, groups and messages."""
    if not running:
        made = Cluster(tmp_path_factory.mktemp("site"))
        running.append(made)  # it is stopped also where its start fails
        made.start()
    return running[0]


def stop_cluster() -> None:
    """Stop it where it runs."""
    while running:
        running.pop().stop()


@pytest.hookimpl(trylast=True)  # windows are closed: those that follow would complain
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of this folder, other tests have the machine."""
    if nextitem is None or FOLDER not in nextitem.path.parents:
        stop_cluster()


def pytest_sessionfinish() -> None:
    """A run that is broken off leaves no process behind."""
    stop_cluster()


@pytest.fixture
def open_window(browser: "Browser") -> Iterator[Open]:
    """Opens a tab at a console, each in a profile of its own; none of them may complain.

    At the cluster's console a super user is logged in, if not told otherwise.
    """
    contexts, windows = [], []

    def opened(
        url: str, *, zone: str = "UTC", logged_in: bool = True, scripts: bool = True
    ) -> Window:
        context = browser.new_context(
            base_url=url, timezone_id=zone, locale="en-GB", java_script_enabled=scripts
        )
        contexts.append(context)
        for cluster in running:
            if logged_in and cluster.url == url:
                name, value = cluster.cookie
                context.add_cookies(
                    [{"name": name, "value": value, "url": url, "sameSite": "Strict"}]
                )
        windows.append(Window(context.new_page()))
        return windows[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [one for window in windows for one in window.complaints] == []


@pytest.fixture
def window(site: Cluster, open_window: Open) -> Window:
    """A tab at the cluster's console."""
    return open_window(site.url)
