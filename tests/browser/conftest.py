"""A real browser before the console of real nodes.

Both live from the first test of this folder to the last: tests that change what the cluster holds
have topics and groups of their own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import need_chromium
from tests.browser.site import Cluster
from tests.browser.window import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

Open = Callable[..., Window]
FOLDER = Path(__file__).parent
running: list[Cluster] = []
browsers: list["Browser"] = []
started = ExitStack()  # what ends with the last test of this folder


@pytest.fixture(scope="module")
def browser() -> "Browser":
    """Chromium, without a window of this machine's."""
    program = need_chromium()
    from playwright.sync_api import sync_playwright

    if not browsers:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        playwright = started.enter_context(sync_playwright())
        # Pages that are gone back to come from its cache, as in a browser that people use.
        made = playwright.chromium.launch(
            executable_path=program,
            args=flags,
            ignore_default_args=["--disable-back-forward-cache"],
        )
        started.callback(made.close)
        browsers.append(made)
    return browsers[0]


@pytest.fixture(scope="module")
def site(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster: three nodes and one, with users, topics, groups and messages."""
    if not running:
        made = Cluster(tmp_path_factory.mktemp("site"))
        running.append(made)
        started.callback(made.stop)  # also where its start fails
        made.start()
    return running[0]


def stop_all() -> None:
    """Stop the cluster and the browser where they run."""
    running.clear()
    browsers.clear()
    started.close()


@pytest.hookimpl(trylast=True)  # windows are closed: those that follow would complain
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of this folder, other tests have the machine."""
    if nextitem is None or FOLDER not in nextitem.path.parents:
        stop_all()


def pytest_sessionfinish() -> None:
    """A run that is broken off leaves no process behind."""
    stop_all()


class Profiles:
    """Profiles of a browser at consoles; at the cluster's, a super user is logged in."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._shared: dict[str, BrowserContext] = {}
        self._tabs: dict[str, Window] = {}

    def new(
        self, url: str, zone: str = "UTC", logged_in: bool = True, scripts: bool = True
    ) -> "BrowserContext":
        """A profile that nobody else has."""
        made = self._browser.new_context(
            base_url=url, timezone_id=zone, locale="en-GB", java_script_enabled=scripts
        )
        for cluster in running:
            if logged_in and cluster.url == url:
                name, value = cluster.cookie
                made.add_cookies([{"name": name, "value": value, "url": url, "sameSite": "Strict"}])
        return made

    def shared(self, url: str) -> "BrowserContext":
        """The profile of tests that stay logged in: a tab in a new one takes twice the time."""
        if url not in self._shared:
            self._shared[url] = self.new(url)
        return self._shared[url]

    def tab(self, url: str) -> Window:
        """The tab of tests that each open a page, and look at it: axe is compiled for it once."""
        if url not in self._tabs:
            self._tabs[url] = Window(self.shared(url).new_page())
        self._tabs[url].complaints.clear()
        return self._tabs[url]

    def close(self) -> None:
        """Close what is shared."""
        for one in self._shared.values():
            one.close()


@pytest.fixture(scope="module")
def profiles(browser: "Browser") -> Iterator[Profiles]:
    """The profiles of a module's tests."""
    made = Profiles(browser)
    yield made
    made.close()


@pytest.fixture
def open_window(profiles: Profiles) -> Iterator[Open]:
    """Opens a tab at a console; none of them may complain.

    At the cluster's console a super user is logged in, if not told otherwise.
    """
    contexts, windows = [], []

    def opened(
        url: str, *, zone: str = "UTC", logged_in: bool = True, scripts: bool = True
    ) -> Window:
        if logged_in and (zone, scripts) == ("UTC", True):
            context = profiles.shared(url)
        else:
            context = profiles.new(url, zone, logged_in, scripts)
            contexts.append(context)
        windows.append(Window(context.new_page()))
        return windows[-1]

    yield opened
    for window in windows:
        window.page.close()
    for context in contexts:
        context.close()
    assert [one for window in windows for one in window.complaints] == []


@pytest.fixture
def window(site: Cluster, open_window: Open) -> Window:
    """A tab at the cluster's console."""
    return open_window(site.url)
