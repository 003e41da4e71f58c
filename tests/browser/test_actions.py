"""What is changed with a browser: forms, previews, names that are typed, what is taken back."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Cluster

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_a_topic_is_created_and_deleted(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    page = window.page
    window.open("/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name").fill("parcels")
    page.get_by_label("Queues").fill("3")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url(f"{site.url}/topics/parcels")
    assert page.locator(".told").inner_text() == "Topic parcels was created with 3 queues."
    page.get_by_role("link", name="Alter").click()
    page.get_by_label("Queues").fill("4")
    page.get_by_label("Clients may").select_option("receive only")
    page.get_by_role("button", name="Alter").click()
    page.wait_for_url(f"{site.url}/topics/parcels")
    told = page.locator(".told").inner_text()
    assert told == "Topic parcels has 4 queues now. Clients may receive only."
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Delete").click()
    page.get_by_label("Type parcels to confirm").fill("parcel")
    page.get_by_role("button", name="Delete").click()
    window.shows("type parcels to confirm")
    window.refused(400)
    page.go_back()
    page.get_by_label("Type parcels to confirm").fill("parcels")
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{site.url}/topics")
    assert page.locator(".told").inner_text() == "Topic parcels was deleted."


def test_a_reset_is_previewed_and_taken_back(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    page = window.page
    window.open("/groups/billing")
    before = page.locator(".sentence").inner_text()
    assert "19 messages behind" in before
    page.get_by_role("link", name="Reset").click()
    assert page.get_by_role("button", name="Reset").count() == 0, "the preview comes first"
    page.get_by_label("Resume at").select_option("latest")
    page.get_by_role("button", name="Preview").click()
    window.shows("Skips 19 messages, repeats 0 messages.")
    page.get_by_label("Type billing to confirm").fill("billing")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_url(f"{site.url}/groups/billing")
    window.shows("It has consumed all")
    page.get_by_role("button", name="Undo").click()
    window.shows("19 messages behind")
    assert (
        page.locator(".told").inner_text() == "Group billing resumes where it was before the reset."
    )
    assert page.get_by_role("button", name="Undo").count() == 0
