"""Messages are searched in a browser: results come in place, Stop stops, the link is shared."""

from collections.abc import Iterator

import pytest

from tests.browser.conftest import Open
from tests.browser.site import HOSTILE, Cluster, create
from tests.browser.test_pages import check_accessible, violations
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

ROWS = "document.querySelectorAll('#list tbody tr').length"
SHOWN = (
    "[document.querySelector('.sentence').innerText,"
    " document.querySelector('form.progress button').innerText]"
)
TRIES = 20
LONG = 100  # messages of a large topic
SIZE = 1 << 20


@pytest.fixture(scope="module")
def large(site: Cluster) -> Iterator[None]:
    """A topic whose search takes seconds: reads are paced."""
    with site.client() as client:
        create(client, "large", 2)
        with client.producer() as producer:
            for n in range(LONG):
                producer.send("large", b"needle %d " % n + bytes(SIZE), queue_id=n % 2)
    yield
    with site.client() as client:
        client.admin.delete_topic("large")


def test_messages_are_found_by_a_text_and_the_link_is_shared(
    site: Cluster, open_window: Open
) -> None:
    window = open_window(site.url)
    page = window.page
    window.open("/topics/orders")
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Value").fill("DUCK")
    page.get_by_label("Match case").select_option("any")
    page.get_by_role("button", name="Search").click()
    window.shows("messages found among")
    assert window.ask(ROWS) >= 20
    shared = open_window(site.url)
    shared.open(page.url)
    shared.shows("messages found among")
    assert shared.ask(ROWS) == window.ask(ROWS)
    assert shared.page.get_by_label("Match case").input_value() == "any"
    assert shared.ask("document.querySelector('progress').position") == 1


def test_the_range_is_asked_for_where_it_is_used(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/messages")
    since = window.page.get_by_label("from", exact=True)
    assert not since.is_visible()
    window.page.locator("#by").select_option("sql")
    assert since.is_visible()
    assert since.input_value() == "1h"
    window.page.locator("#by").select_option("key")
    assert not since.is_visible()
    window.page.get_by_label("Topic").fill("orders")
    window.page.get_by_label("Value").fill("order-1007")
    window.page.get_by_role("button", name="Search").click()
    window.shows("1 message found.")
    assert "since" not in window.page.url


def test_what_is_wrong_is_said(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/messages?topic=orders&by=sql&value=a+%3E")
    assert "expected" in window.sentence or "SQL92" in window.sentence
    window.refused(400)


def stop(window: Window) -> None:
    """Stop a search that goes on, and has found something.

    One that is over before the browser has come to that is begun again: a browser may stand still
    for longer than the search takes.
    """
    for _ in range(TRIES):
        window.wait(f"{ROWS} > 0")
        sentence, button = window.ask(SHOWN)
        if button == "Stop":
            assert "found so far" in sentence
        with window.page.expect_navigation():
            window.page.locator("form.progress button").click()
        if "It was stopped." in window.sentence:
            return
    raise AssertionError(f"the search was over {TRIES} times: {window.sentence}")


@pytest.mark.usefixtures("large")
def test_results_come_while_it_goes_on_and_it_is_stopped(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/messages?topic=large&by=text&value=needle&order=oldest")
    stop(window)
    assert window.page.locator(".told").inner_text() == "The search was stopped."
    assert 0 < window.ask(ROWS) < LONG
    assert not window.streams
    window.page.get_by_role("button", name="New search").click()
    window.page.get_by_text("The search began again.").wait_for()
    window.until(lambda: window.streams or "found among" in window.sentence)
    # It goes on while the tab is hidden, and the stream ends with it.
    window.ask(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true}),"
        "void document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert violations(window) == []
    window.shows(f"{LONG} messages found among")
    window.until(lambda: not window.streams)


def test_a_search_is_accessible_and_its_results_are_text(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/messages?topic=hostile&by=text&value=script")
    window.shows("1 message found")
    check_accessible(window, "found")
    assert HOSTILE in window.page.locator("#list").inner_text()
    assert window.ask("window.hit") is None
