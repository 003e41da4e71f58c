"""Delayed messages in a browser: pages, the path of one, and its recall."""

import pytest

from tests.browser.site import DELAYED, Cluster
from tests.browser.test_hostile import ELEMENTS
from tests.browser.test_pages import check_accessible, violations
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_one_is_found_and_recalled(site: Cluster, window: Window) -> None:
    page = window.page
    with site.client() as client:
        window.until(lambda: client.admin.delayed_page().waiting == DELAYED + 1)
        window.open("/")
        page.get_by_role("link", name="Delayed").click()
        window.shows(f"{DELAYED + 1} messages wait for their time.")
        assert window.ask(ELEMENTS) == 0
        assert window.ask("window.hit") is None
        page.get_by_role("link", name="Next page").click()
        page.get_by_role("link", name="First page").wait_for()
        row = page.get_by_role("row").filter(has_text=f"later-{DELAYED - 1}")
        key = row.get_by_role("link").nth(1).inner_text()
        row.get_by_role("link", name=key, exact=True).click()
        window.shows("1 message with this key.")
        assert "not due yet" in page.locator("main").inner_text()
        assert violations(window) == []
        page.go_back()
        row.get_by_role("link", name="Recall").click()
        window.shows("It is never delivered, and cannot be brought back.")
        check_accessible(window)
        page.get_by_label("Type parcels-late to confirm").fill("parcels-late")
        page.get_by_role("button", name="Recall").click()
        page.wait_for_url(f"{site.url}/waiting")
        assert page.locator(".told").inner_text() == f"Message {key} was recalled."
        window.shows(f"{DELAYED} messages wait for their time.")
        assert client.admin.delayed_page().waiting == DELAYED
