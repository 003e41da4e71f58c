"""Half messages in a browser: pages, and decisions that are typed twice."""

import pytest

from tests.browser.site import HALVES, Cluster
from tests.browser.test_pages import check_accessible
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_one_is_committed_and_one_rolled_back(site: Cluster, window: Window) -> None:
    page = window.page
    with site.client() as client:
        window.until(lambda: client.admin.halves_page().waiting == HALVES)
        before = len(client.pull("parcels-late", 0, 0))
        window.open("/waiting")
        page.get_by_role("link", name="Transactions").click()
        window.shows(f"{HALVES} half messages wait for a decision.")
        page.get_by_role("link", name="Next page").click()
        page.get_by_role("link", name="First page").wait_for()
        page.get_by_role("link", name=f"Commit {HALVES - 1}").click()
        window.shows("It is stored in its topic, and every group there gets it.")
        check_accessible(window)
        page.get_by_label("Type parcels-late to confirm").fill("parcels-late")
        page.get_by_role("button", name="Commit").click()
        window.shows(f"{HALVES - 1} half messages wait for a decision.")
        assert page.locator(".told").inner_text().endswith("of parcels-late was committed.")
        assert len(client.pull("parcels-late", 0, 0)) == before + 1
        page.get_by_role("link", name="Roll back 0", exact=True).click()
        window.shows("No consumer ever gets it.")
        page.get_by_label("Type parcels-late to confirm").fill("parcels-late")
        page.get_by_role("button", name="Roll back").click()
        window.shows(f"{HALVES - 2} half messages wait for a decision.")
        assert len(client.pull("parcels-late", 0, 0)) == before + 1
