"""What producers send is shown, and never run."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import HOSTILE, Cluster

pytestmark = [pytest.mark.process, pytest.mark.browser]

ELEMENTS = "document.querySelectorAll('main script, main img, main svg').length"


@pytest.mark.parametrize(
    "path", ["/messages?topic=hostile&by=time", "/topics/hostile/0/0", "/groups/shipping/dead"]
)
def test_a_message_is_text(site: Cluster, open_window: Open, path: str) -> None:
    window = open_window(site.url)
    window.open(path)
    assert HOSTILE in window.page.locator("main").inner_text()
    assert window.ask(ELEMENTS) == 0
    assert window.ask("window.hit") is None


def test_a_search_is_text(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/topics")
    window.page.locator("#q").fill(HOSTILE)
    window.shows(HOSTILE)
    assert window.ask(ELEMENTS) == 0
    assert window.ask("window.hit") is None


def test_a_page_would_not_run_a_script_of_its_own(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/topics")
    window.ask(
        "{ const script = document.createElement('script'); script.textContent = 'window.hit = 1';"
        "document.body.append(script); }"
    )
    assert window.ask("window.hit") is None
    window.until(lambda: window.complaints)
    assert "Content Security Policy" in window.complaints.pop()
