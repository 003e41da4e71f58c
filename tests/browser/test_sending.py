"""Messages are sent and sent again with a browser, as they were written."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import HOSTILE, Cluster
from tests.browser.test_pages import check_page
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]


def test_a_message_is_sent_and_its_page_follows(site: Cluster, window: Window) -> None:
    page = window.page
    window.open("/topics/sensor-100")
    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body").fill("first\nsecond <b>ü</b>")
    page.get_by_label("Key", exact=True).fill("k-1")
    page.get_by_label("Properties").fill("a=1\nb=2")
    page.get_by_label("Type sensor-100 to confirm").fill("sensor-100")
    page.get_by_role("button", name="Send").click()
    page.wait_for_url("**/topics/sensor-100/0/0?group=*")
    assert "Stored as sensor-100/0@0. Its unique key is" in page.locator(".told").inner_text()
    assert page.locator(".told code").inner_text().startswith("duolog msg send sensor-100 'first")
    assert page.locator("pre").first.inner_text() == "first\nsecond <b>ü</b>"
    with site.client() as client:
        (sent,) = client.pull("sensor-100", 0, 0)
    assert sent.body == "first\nsecond <b>ü</b>".encode()
    assert (sent.properties["a"], sent.properties["b"]) == ("1", "2")


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("sensor-101", b"\n\n two lines before, a tab\t, and one behind\n"),
        ("sensor-102", HOSTILE.encode()),
        ("sensor-103", b"\r\n\x00\xff"),
    ],
)
def test_a_message_is_sent_again_unchanged(
    site: Cluster, open_window: Open, topic: str, body: bytes
) -> None:
    with site.client() as client, client.producer() as producer:
        producer.send(topic, body, keys=["k"], tags="t", properties={"note": HOSTILE})
    window = open_window(site.url)
    page = window.page
    window.open(f"/topics/{topic}/0/0")
    page.get_by_role("link", name="Send again").click()
    assert "A new message is stored" in window.sentence
    page.get_by_label(f"Type {topic} to confirm").fill(topic)
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(f"**/topics/{topic}/0/1?group=*")
    assert window.ask("window.hit") is None
    with site.client() as client:
        first, copy = client.pull(topic, 0, 0)
    assert copy.body == first.body == body
    assert copy.properties["note"] == HOSTILE


def test_what_is_wrong_is_said_and_what_was_typed_is_kept(window: Window) -> None:
    page = window.page
    window.open("/topics/sensor-104/send")
    page.get_by_label("Body").fill("{")
    page.get_by_label("Format").select_option("json")
    page.get_by_label("Type sensor-104 to confirm").fill("sensor-104")
    page.get_by_role("button", name="Send").click()
    window.shows("the body is not JSON")
    window.refused(400)
    page.go_back()
    window.wait("document.querySelector('textarea')?.value === '{'")


@pytest.mark.parametrize("path", ["/topics/orders/send", "/topics/orders/0/0/again"])
def test_the_forms_are_accessible(window: Window, path: str) -> None:
    check_page(window, path, path.rpartition("/")[2])
