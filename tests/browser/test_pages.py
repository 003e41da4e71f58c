"""Every page in a browser: nothing is refused or goes wrong, and everybody can use it."""

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Site
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

PAGES = {
    "cluster": "/",
    "topics": "/topics?q=sensor-00",
    "topic": "/topics/orders",
    "groups": "/groups",
    "group": "/groups/billing",
    "messages": "/messages?topic=orders&by=key&value=order-1007",
    "search": "/messages",
    "message": "/topics/orders/1/3",
    "doctor": "/doctor",
    "tail": "/topics/orders/tail",
    "create": "/create/topic",
    "reset": "/groups/billing/reset?to=latest&topic=orders",
    "delete": "/topics/orders/delete",
    "dead": "/groups/shipping/dead",
    "redeliver": "/groups/shipping/redeliver?letter:broker-a/0/0=on",
    "login": "/login",
}
WIDE, NARROW = (1280, 800), (390, 800)
SERIOUS = ("serious", "critical")


def violations(window: Window) -> list[str]:
    """What axe finds, of weight."""
    from axe_playwright_python.base import AXE_FILE_PATH

    if not window.ask("'axe' in window"):
        window.ask(AXE_FILE_PATH.read_text())
    found = window.ask("axe.run()")["violations"]
    return [
        f"{one['id']}: {node['html']}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_complaints_and_is_accessible(
    site: Site, open_window: Open, name: str
) -> None:
    window = open_window(site.url)
    for (width, height), schemes in ((WIDE, ("dark", "light")), (NARROW, ("light", "dark"))):
        window.page.set_viewport_size({"width": width, "height": height})
        window.open(PAGES[name])
        for scheme in schemes:
            window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            window.picture(f"{name}-{width}-{scheme}")
        assert violations(window) == []  # colours do not depend on the width
        # Tables scroll by themselves; the page does not.
        assert window.ask("document.documentElement.scrollWidth") <= width
    assert window.complaints == []


def test_an_unknown_page_says_so(site: Site, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/nowhere")
    assert window.sentence == "There is no such page."
    assert violations(window) == []
    assert len(window.complaints) == 1
    assert "404" in window.complaints.pop()


def test_axe_would_find_something(site: Site, open_window: Open) -> None:
    window = open_window(site.url)
    window.open("/groups")
    window.ask("document.querySelectorAll('label').forEach((label) => label.remove())")
    assert any(found.startswith("label") for found in violations(window))
