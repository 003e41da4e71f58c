"""Dead letters in a browser: pages, selections, copies that are sent again, and files."""

import json
from pathlib import Path

import pytest

from tests.browser.site import HOSTILE, LETTERS, Cluster
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_some_of_a_page_are_selected_and_sent_again(site: Cluster, window: Window) -> None:
    page = window.page
    window.open("/groups/shipping")
    page.get_by_role("link", name=f"{LETTERS} dead letters").click()
    window.shows(f"{LETTERS} dead letters; 1 to 50 are shown.")
    page.get_by_role("link", name="Next page").click()
    window.shows(f"51 to {LETTERS} are shown.")
    page.get_by_label("All", exact=True).check()
    page.get_by_label("Select broker-a/0/50", exact=True).uncheck()
    page.get_by_role("button", name="Redeliver selected").click()
    window.shows(f"{LETTERS - 51} dead letters to 1 topic")
    row = page.get_by_role("region", name="Preview").get_by_role("row").nth(1)
    assert row.inner_text().split() == ["parcels-lost", str(LETTERS - 51), "yes"]
    page.get_by_label("Type shipping to confirm").fill("shipping")
    page.get_by_role("button", name="Redeliver").click()
    page.wait_for_url(f"{site.url}/groups/shipping/dead")
    assert page.locator(".told").inner_text() == f"{LETTERS - 51} dead letters sent again."
    window.open(f"/messages?topic=parcels-lost&by=key&value=parcel-{LETTERS - 1}")
    window.shows("2 messages found.")
    window.open(f"/topics/parcels-lost/0/{LETTERS}")
    assert "shipping/broker-a/0/51" in page.locator("main").inner_text()


def test_a_selection_and_all_are_kept_as_files(
    site: Cluster, window: Window, tmp_path: Path
) -> None:
    page = window.page
    window.open("/groups/shipping/dead")
    page.get_by_label("Select broker-a/0/0", exact=True).check()
    for click, count in (
        (page.get_by_role("button", name="Export selected"), 1),
        (page.get_by_role("link", name="Export all"), LETTERS),
    ):
        with page.expect_download() as told:
            click.click()
        assert told.value.suggested_filename == "dead-letters-shipping.jsonl"
        told.value.save_as(tmp_path / "file")
        lines = (tmp_path / "file").read_text().splitlines()
        assert len(lines) == count
        assert json.loads(lines[0])["body"] == HOSTILE
    assert page.url == f"{site.url}/groups/shipping/dead", "nothing of it is shown"
