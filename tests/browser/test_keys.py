"""What keys do, and the dialog that tells."""

import time

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Cluster, create
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

TOGETHER_SECONDS = 1.5  # two keys mean something together
TRIES = 20


PAGES = {
    **{"c": "/", "t": "/topics", "g": "/groups"},
    **{"m": "/messages", "w": "/waiting", "d": "/doctor"},
}


def test_g_and_a_letter_go_to_a_page(site: Cluster, window: Window) -> None:
    window.open("/audit")
    for key, path in PAGES.items():
        for _ in range(TRIES):
            began = time.monotonic()
            window.page.keyboard.type(f"g{key}")
            if time.monotonic() - began < TOGETHER_SECONDS:
                break  # a machine that stands still in between may press them too slowly
        window.page.wait_for_url(f"{site.url}{path}")


def test_a_slash_goes_to_the_search_and_letters_in_it_are_letters(
    site: Cluster, open_window: Open
) -> None:
    window = open_window(site.url)
    window.open("/topics")
    window.page.keyboard.press("/")
    window.page.keyboard.type("gt/?")
    assert window.page.locator("#q").input_value() == "gt/?"
    assert window.page.locator("#keys").is_hidden()
    window.shows("“gt/?”")


def test_a_question_mark_shows_the_keys(site: Cluster, open_window: Open) -> None:
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


def test_the_keys_are_all_listed(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/groups")
    window.page.keyboard.press("?")
    listed = window.page.locator("#keys dt").all_inner_texts()
    links = window.page.locator("nav a").all()
    letters = [f"g {link.get_attribute('data-key')}" for link in links]
    assert listed == ["/", *letters, "j k", "Enter", "?", "Esc"]
    assert len(set(letters)) == len(letters)


def test_j_and_k_go_through_the_rows_and_enter_opens(site: Cluster, window: Window) -> None:
    window.open("/topics?q=sensor-00")
    focused = "document.activeElement.textContent"
    for keys, name in (("j", "sensor-000"), ("jj", "sensor-002"), ("k", "sensor-001")):
        window.page.keyboard.type(keys)
        assert window.ask(focused) == name
    window.page.keyboard.type("kk")
    assert window.ask(focused) == "sensor-000", "there is none before it"
    window.page.keyboard.press("j")
    window.page.keyboard.press("Enter")
    window.page.wait_for_url(f"{site.url}/topics/sensor-001")
    window.open("/topics?q=sensor-00")
    window.page.keyboard.press("/")
    window.page.keyboard.type("jk")
    assert window.page.locator("#q").input_value() == "jk", "in a text, keys are letters"


FOLDED = """
<ul class="findings"><li><details><summary>many</summary>
<ul class="findings"><li><a href="/groups">one</a></li></ul></details></li>
<li><a href="/topics">last</a></li></ul>
"""


def test_j_passes_over_rows_that_are_folded(window: Window) -> None:
    window.open("/messages")
    window.page.evaluate("rows => { document.getElementById('main').innerHTML = rows }", FOLDED)
    seen = []
    for key in ("j", "j", "k", "Enter", "j", "j"):
        window.page.keyboard.press(key)
        seen.append(window.ask("document.activeElement.textContent.slice(0, 4)"))
    assert seen == ["many", "last", "many", "many", "one", "last"]


def test_the_first_key_skips_to_the_content(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/groups")
    window.page.keyboard.press("Tab")
    link = window.page.get_by_role("link", name="Skip to content")
    box = link.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert window.ask("document.activeElement.className") == "skip"
    window.page.keyboard.press("Enter")
    assert window.ask("document.activeElement.id") == "main"


OUTLINE = "getComputedStyle(document.activeElement).outlineStyle"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_focus_is_visible_everywhere(site: Cluster, open_window: Open, scheme: str) -> None:
    window = open_window(site.url)
    window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    window.open("/topics")
    seen = 0
    for _ in range(20):
        window.page.keyboard.press("Tab")
        assert window.ask(OUTLINE) == "solid", window.ask("document.activeElement.outerHTML")
        seen += 1
    assert seen == 20


def test_the_focus_stays_with_its_row_when_rows_move(site: Cluster, open_window: Open) -> None:
    with site.client() as client, client.producer() as producer:
        create(client, "moving", 2)
        producer.send_batch("moving", [b"x"] * 3, queue_id=0)
        client.admin.commit("mover", {("moving", "broker-a", 0): 0, ("moving", "broker-a", 1): 0})
        window = open_window(site.url)
        window.open("/groups/mover")
        window.until(lambda: window.streams)
        rows = window.page.locator("tbody tr")
        link = rows.first.get_by_role("link")
        assert rows.first.get_attribute("id") == "queue-broker-a-moving-0"
        link.focus()
        producer.send_batch("moving", [b"x"] * 9, queue_id=1)
        window.until(lambda: rows.first.get_attribute("id") == "queue-broker-a-moving-1")
    focused = "document.activeElement.closest('tr').id"
    window.until(lambda: window.ask("document.activeElement.tagName") == "A")
    assert window.ask(focused) == "queue-broker-a-moving-0"
