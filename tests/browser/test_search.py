"""Lists that are searched as one types, and forms that tell what they take."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Cluster
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

ROWS = "document.querySelectorAll('#list tbody tr').length"
BOX = "document.getElementById('q')"


def test_a_list_follows_what_is_typed_and_has_pages(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/topics")
    assert window.ask(ROWS) > 90, "a page, without system topics"
    box = window.page.locator("#q")
    box.click()
    window.ask(f"void (window.box = {BOX})")
    box.press_sequentially("sensr-01")
    window.shows("“sensr-01”")
    assert window.ask(ROWS) == 0
    for _ in range(4):
        box.press("ArrowLeft")
    box.press("o")
    window.shows("10 topics whose names contain “sensor-01”.")
    assert window.ask(ROWS) == 10
    assert window.ask(f"document.activeElement === window.box && window.box === {BOX}")
    assert window.ask("window.box.selectionStart") == len("senso")
    box.press("End")
    box.press("7")
    window.shows("1 topic whose names contain “sensor-017”.")
    assert box.input_value() == "sensor-017"
    address = window.page.url
    assert address == f"{site.url}/topics?q=sensor-017"

    shared = open_window(site.url)
    shared.open(address)
    assert shared.ask(ROWS) == 1
    assert shared.page.locator("#q").input_value() == "sensor-017"
    window.open("/topics?q=sensor")
    assert window.sentence == "130 topics whose names contain “sensor”."
    window.page.get_by_role("link", name="Next page").click()
    window.wait(f"{ROWS} === 30")
    assert window.page.locator("#q").input_value() == "sensor"
    window.page.get_by_role("link", name="First page").click()
    window.wait(f"{ROWS} === 100")


def test_each_way_to_find_a_message_has_an_example(window: Window) -> None:
    window.open("/messages")
    seen = set()
    for way in ("key", "unique_key", "id", "offset", "time", "text", "sql"):
        window.page.locator("#by").select_option(way)
        seen.add((window.ask(f"{BOX}.placeholder"), window.page.locator("#hint").inner_text()))
        example = window.ask(f"{BOX}.placeholder")
        window.open(f"/messages?by={way}")
        assert window.ask(f"{BOX}.placeholder") == example
    assert len(seen) == 7
    assert all(example and hint for example, hint in seen)
    window.open("/messages")
    window.page.get_by_label("Topic").fill("orders")
    window.page.get_by_label("Value").fill("order-1007")
    window.page.get_by_role("button", name="Search").click()
    window.shows("1 message found.")
    window.page.locator("#list tbody a").click()
    window.page.wait_for_url("**/topics/orders/1/3?group=broker-a")
    assert '"order": 7' in window.page.locator("pre").first.inner_text()


def test_a_command_is_copied_or_selected_without_a_clipboard(window: Window) -> None:
    window.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    window.open("/groups/billing")
    window.page.get_by_role("button", name="Copy").click()
    window.page.get_by_role("button", name="Copied").wait_for()
    assert window.ask("navigator.clipboard.readText()") == "duolog group explain billing"
    window.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    window.open("/groups/billing")
    window.page.get_by_role("button", name="Copy").click()
    window.page.get_by_role("button", name="Selected").wait_for()
    assert window.ask("getSelection().toString()") == "duolog group explain billing"
