"""What keys do, and the dialog that tells."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Site

pytestmark = [pytest.mark.process, pytest.mark.browser]


@pytest.mark.parametrize(
    ("key", "path"),
    [("c", "/"), ("t", "/topics"), ("g", "/groups"), ("m", "/messages"), ("d", "/doctor")],
)
def test_g_and_a_letter_go_to_a_page(site: Site, open_window: Open, key: str, path: str) -> None:
    window = open_window(site.url)
    window.open("/messages" if path != "/messages" else "/topics")
    window.page.keyboard.press("g")
    window.page.keyboard.press(key)
    window.page.wait_for_url(f"{site.url}{path}")


def test_a_slash_goes_to_the_search_and_letters_in_it_are_letters(
    site: Site, open_window: Open
) -> None:
    window = open_window(site.url)
    window.open("/topics")
    window.page.keyboard.press("/")
    window.page.keyboard.type("gt/?")
    assert window.page.locator("#q").input_value() == "gt/?"
    assert window.page.locator("#keys").is_hidden()
    window.shows("“gt/?”")


def test_a_question_mark_shows_the_keys(site: Site, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/groups")
    dialog = window.page.get_by_role("dialog", name="Keys")
    window.page.keyboard.press("?")
    dialog.wait_for()
    window.page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    window.page.get_by_role("button", name="Keys ?").click()
    dialog.wait_for()
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="hidden")
    assert window.page.url == f"{site.url}/groups"
