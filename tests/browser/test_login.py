"""Who looks logs in, and is forgotten afterwards."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import PASSWORD, USER, Cluster
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]


def log_in(window: Window, password: str = PASSWORD) -> None:
    """Fill in the form and send it."""
    window.page.get_by_label("User").fill(USER)
    window.page.get_by_label("Password").fill(password)
    window.page.get_by_role("button", name="Log in").click()


def test_a_wrong_password_is_refused_and_a_right_one_goes_on(
    site: Cluster, open_window: Open
) -> None:
    window = open_window(site.url, logged_in=False)
    window.open("/topics?q=a")
    assert window.sentence == "Log in as a user of the nodes."
    assert window.page.get_by_role("navigation").count() == 0
    log_in(window, "wrong")
    window.shows("User or password is wrong.")
    window.refused(401)
    log_in(window)
    window.page.wait_for_url(f"{site.url}/topics?q=a")
    assert window.page.locator("#q").input_value() == "a"
    assert window.page.locator(".who").inner_text().startswith(USER)


def test_nothing_is_shown_after_the_log_out(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url, logged_in=False)
    window.open("/")
    log_in(window)
    window.shows("All 4 replicas")
    window.open("/topics")
    window.page.get_by_role("button", name="Log out").click()
    window.page.wait_for_url(f"{site.url}/login")
    for _ in range(2):
        window.page.go_back(wait_until="commit")  # a page that was kept loads again at once
        window.wait("location.pathname === '/login'")
        window.shows("Log in as a user of the nodes.")
        assert window.page.locator("table").count() == 0


def test_pages_that_follow_ask_for_a_login_once_their_user_has_logged_out(
    site: Cluster, open_window: Open
) -> None:
    window = open_window(site.url, logged_in=False)
    window.open("/")
    log_in(window)
    window.shows("All 4 replicas")
    window.until(lambda: window.streams)
    other = window.page.context.new_page()
    other.goto("/topics")
    other.get_by_role("button", name="Log out").click()
    window.shows("Log in as a user of the nodes.")
    assert window.page.url == f"{site.url}/login?next=%2F"


def test_a_link_on_another_site_opens_its_page(site: Cluster, open_window: Open) -> None:
    """The cookie is of this site alone, and does not come with the first request."""
    window = open_window(site.url)
    link = f'<a href="{site.url}/topics?q=sensor-01">the topics</a>'
    window.page.route(
        "http://chat.example/", lambda route: route.fulfill(body=link, content_type="text/html")
    )
    window.open("http://chat.example/")
    window.page.get_by_role("link").click()
    window.shows("10 topics whose names contain “sensor-01”.")
    assert window.page.url == f"{site.url}/topics?q=sensor-01"
