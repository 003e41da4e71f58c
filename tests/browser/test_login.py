"""Who looks logs in, and is forgotten afterwards."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Site
from tests.browser.window import Window
from tests.keyfiles import access_files

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.process, pytest.mark.browser]


@pytest.fixture(scope="module")
def guarded(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node with the user root."""
    directory = tmp_path_factory.mktemp("guarded")
    files = access_files(directory, "pw")
    flags = [word for key, value in files.items() for word in ("--set", f"access.{key}={value}")]
    node = Site(directory / "node-a", *flags)
    node.start(user="root", password="pw")
    yield node
    node.stop()


def log_in(window: Window, password: str = "pw") -> None:
    """Fill in the form and send it."""
    window.page.get_by_label("User").fill("root")
    window.page.get_by_label("Password").fill(password)
    window.page.get_by_role("button", name="Log in").click()


def test_a_wrong_password_is_refused_and_a_right_one_goes_on(
    guarded: Site, open_window: Open
) -> None:
    window = open_window(guarded.url)
    window.open("/topics?q=a")
    assert window.sentence == "Log in as a user of the nodes."
    assert window.page.get_by_role("navigation").count() == 0
    log_in(window, "wrong")
    window.shows("User or password is wrong.")
    assert "401" in window.complaints.pop()
    log_in(window)
    window.page.wait_for_url(f"{guarded.url}/topics?q=a")
    assert window.page.locator("#q").input_value() == "a"
    assert window.page.locator(".who").inner_text().startswith("root")


def test_nothing_is_shown_after_the_log_out(guarded: Site, open_window: Open) -> None:
    window = open_window(guarded.url)
    window.open("/")
    log_in(window)
    window.shows("One replica.")
    window.open("/topics")
    window.page.get_by_role("button", name="Log out").click()
    window.page.wait_for_url(f"{guarded.url}/login")
    for _ in range(2):
        window.page.go_back()
        window.wait("location.pathname === '/login'")
        window.shows("Log in as a user of the nodes.")
        assert window.page.locator("table").count() == 0


def test_pages_that_follow_ask_for_a_login_once_their_user_has_logged_out(
    guarded: Site, open_window: Open
) -> None:
    window = open_window(guarded.url)
    window.open("/")
    log_in(window)
    window.shows("One replica.")
    window.until(lambda: window.streams)
    other = window.page.context.new_page()
    other.goto("/topics")
    other.get_by_role("button", name="Log out").click()
    window.shows("Log in as a user of the nodes.")
    assert window.page.url == f"{guarded.url}/login?next=%2F"
