"""Every page in a browser: nothing is refused or goes wrong, and everybody can use it.

A page that app.py has and no address here leads to fails a test.
"""

import re

import pytest

from duolog_server.ops.console.app import ACTIONS
from duolog_server.ops.console.app import PAGES as SERVED
from duolog_server.ops.console.view import addresses as at
from tests.browser.conftest import Open, Profiles
from tests.browser.site import MEMBERS, Cluster
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

# By the pattern that serves it; further states of a page have a word behind its pattern.
PAGES = {
    at.CLUSTER: "/",
    at.DOCTOR: "/doctor",
    at.TOPICS: "/topics?q=sensor-00",
    at.TOPIC: "/topics/orders",
    f"{at.TOPIC} wide": "/topics/wide",
    at.TAIL: "/topics/orders/tail",
    at.MESSAGE: "/topics/orders/1/3",
    at.GROUPS: "/groups",
    at.GROUP: "/groups/billing",
    f"{at.GROUP} wide": "/groups/spreading",
    at.DEAD: "/groups/shipping/dead",
    at.MESSAGES: "/messages",
    f"{at.MESSAGES} searched": "/messages?topic=orders&by=text&value=order-1007&since=",
    f"{at.MESSAGES} found": "/messages?topic=orders&by=key&value=order-1007",
    at.DELAYED: "/waiting?topic=parcels-late",
    at.HALVES: "/waiting/half?topic=parcels-late",
    at.RIGHTS: "/rights",
    f"{at.RIGHTS} who": "/rights?action=Pub&resource=orders",
    f"{at.RIGHTS} user": "/rights?user=alice&action=Sub&resource=orders&source=10.0.0.7",
    at.AUDIT: "/audit",
    f"{at.AUDIT} found": "/audit?action=putuser&decision=allowed",
    at.WAY: "/topics/orders/way?key=order-1007",
    at.SEARCH_STOP: "/messages/stop?topic=orders&by=text&value=order-1007",
    at.SEARCH_AGAIN: "/messages/again?topic=orders&by=text&value=order-1007",
    at.MESSAGE_SEND: "/topics/orders/send",
    at.MESSAGE_AGAIN: "/topics/orders/1/3/again",
    at.TOPIC_CREATE: "/create/topic",
    at.TOPIC_ALTER: "/topics/orders/alter",
    at.TOPIC_DELETE: "/topics/orders/delete",
    at.GROUP_RESET: "/groups/billing/reset?to=latest&topic=orders",
    at.GROUP_DELETE: "/groups/billing/delete",
    at.GROUP_REDELIVER: "/groups/shipping/redeliver",
    f"{at.GROUP_REDELIVER} selected": "/groups/shipping/redeliver?letter:broker-a/0/0=on",
}
# Behind the first link of that text on another page.
LINKED = {
    at.DELAYED_RECALL: ("/waiting?topic=parcels-late", "Recall"),
    at.HALF_DECIDE: ("/waiting/half?topic=parcels-late", "Commit"),
}
# Of nodes that elect their master.
ELECTED = {
    at.NODE_SWITCH: "/nodes/broker-a/{node}/switch",
    at.NODE_DRAIN: "/nodes/broker-a/{node}/drain",
    at.NODE_FORGET: "/nodes/broker-a/{node}/forget",
    at.NODE_UNDRAIN: "/nodes/broker-a/{node}/undrain",
}
UNNAMED = """
[...document.querySelectorAll("table")].filter((table) => {
  const label = document.getElementById(table.getAttribute("aria-labelledby"));
  return !(table.caption || table.ariaLabel || label && label.textContent.trim());
}).length
"""
WIDE, NARROW = (1280, 800), (390, 800)
SERIOUS = ("serious", "critical")
# What passes is not gathered, nor sent here: that would take longer than to find it. All rows of a
# table are of one loop.
VIOLATIONS = """
axe.run({exclude: [["tbody tr:nth-child(n+10)"]]}, {resultTypes: ["violations"]%s})
  .then((found) => found.violations)
"""
ALL_RULES, RULES_OF_COLOURS = "", ', runOnly: ["color-contrast", "link-in-text-block"]'


def violations(window: Window, rules: str = ALL_RULES) -> list[str]:
    """What axe finds, of weight."""
    from axe_playwright_python.base import AXE_FILE_PATH

    if not window.ask("'axe' in window"):
        window.ask(AXE_FILE_PATH.read_text())
    return [
        f"{one['id']}: {node['html']}"
        for one in window.ask(VIOLATIONS % rules)
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


def check_accessible(window: Window, name: str = "") -> None:
    """An open page at both widths and in both schemes. name: of its pictures; empty: none are
    taken. Width and scheme are for the style sheet alone: no script asks for them.
    """
    # A scheme changes nothing but colours, a width none of them.
    shown = ((WIDE, ("dark", ALL_RULES)), (WIDE, ("light", RULES_OF_COLOURS)))
    for (width, height), (scheme, rules) in (*shown, (NARROW, ("light", ALL_RULES))):
        window.page.set_viewport_size({"width": width, "height": height})
        window.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert violations(window, rules) == []
        if name:
            window.picture(f"{name}-{width}-{scheme}")
        # Tables scroll by themselves; the page does not.
        assert window.ask("document.documentElement.scrollWidth") <= width
        assert window.ask(UNNAMED) == 0
    assert window.complaints == []


def check_page(window: Window, path: str, name: str = "") -> None:
    """The same of a page that is opened."""
    window.open(path)
    check_accessible(window, name)


def test_every_page_is_walked() -> None:
    known = {name.partition(" ")[0] for name in PAGES} | LINKED.keys() | ELECTED.keys()
    assert known == SERVED.keys() | ACTIONS.keys()


@pytest.fixture
def tab(site: Cluster, profiles: Profiles) -> Window:
    """One for all pages."""
    return profiles.tab(site.url)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_complaints_and_is_accessible(tab: Window, name: str) -> None:
    check_page(tab, PAGES[name], "-".join(re.findall(r"\w+", name)) or "cluster")
    assert tab.ask("window.hit") is None


@pytest.mark.parametrize("name", LINKED)
def test_a_page_behind_a_link_is_accessible(tab: Window, name: str) -> None:
    path, text = LINKED[name]
    tab.open(path)
    named = re.compile(f"^{text} ")
    link = tab.page.get_by_role("link", name=named).first.get_attribute("href")
    assert link is not None
    check_page(tab, link, "-".join(re.findall(r"\w+", name)))
    assert tab.ask("window.hit") is None


@pytest.mark.parametrize("name", ELECTED)
def test_a_page_of_a_master_and_a_slave_is_accessible(
    site: Cluster, tab: Window, name: str
) -> None:
    with site.client() as client:
        masters = [group.master for group in client.admin.route().groups]
    slaves = [node for node in MEMBERS if node not in masters]
    (master,) = set(MEMBERS) - set(slaves)
    for node in [slaves[0]] if name == at.NODE_SWITCH else [master, slaves[0]]:
        check_page(tab, ELECTED[name].format(node=node))


def test_the_login_is_accessible(site: Cluster, open_window: Open) -> None:
    check_page(open_window(site.url, logged_in=False), "/login", "login")


def test_the_home_of_a_user_without_rights_is_accessible(site: Cluster, open_window: Open) -> None:
    window = open_window(site.url, logged_in=False)
    window.open("/login")
    window.page.get_by_label("User").fill("alice")
    window.page.get_by_label("Password").fill("pw-of-alice")
    window.page.get_by_role("button", name="Log in").click()
    window.shows("There is no topic or group that you may see.")
    check_accessible(window, "home")


def test_an_unknown_page_says_so(tab: Window) -> None:
    tab.open("/nowhere")
    assert tab.sentence == "This page does not exist."
    assert violations(tab) == []
    tab.refused(404)
    assert tab.complaints == []


def test_axe_would_find_something(tab: Window) -> None:
    tab.open("/create/topic")
    tab.ask("document.querySelectorAll('label').forEach((label) => label.remove())")
    assert any(found.startswith("label") for found in violations(tab))
