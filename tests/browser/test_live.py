"""Pages that follow the cluster: they change in place, while somebody looks."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.browser.conftest import Open
from tests.browser.site import OTHER_GROUP, Cluster
from tests.browser.test_pages import violations
from tests.browser.window import Window

pytestmark = [pytest.mark.process, pytest.mark.browser]

RATE = "document.querySelector('.flow .value').textContent"
IDLE = f"{RATE} === '0/s'"
# A browser without windows hides no tab: the page is told what it would see.
HIDE = (
    "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}),"
    "void document.dispatchEvent(new Event('visibilitychange'))"
)
# Of the third row of the list of topics.
LISTED = "(document.querySelectorAll('#list td.rate')[2]?.textContent ?? '–')"
# Longest and shortest texts of what changes.
BURSTS = (1, 40, 1500)
# A shift that is an age alone, of one more digit than before.
AGES = re.compile(r" \d+\u202fs \| \d+\u202fs$")


def note_flows(window: Window, rate: str) -> None:
    """From now on, `window.flowed` is whether a rate was told since it was set to false.

    The page tells it until it looks again, after a second or some: who asks for it may stand still
    for longer.
    """
    window.ask(
        f"void new MutationObserver(() => {{ window.flowed ||= !['–', '0/s'].includes({rate}); }})"
        ".observe(document.body, {childList: true, subtree: true, characterData: true})"
    )


def moved(window: Window) -> float:
    """How far the layout has shifted. A number of more digits begins further left."""
    return sum(float(shift.split()[0]) for shift in window.ask("window.shifts"))


def follow(window: Window) -> None:
    """Open the cluster's page, and wait until it follows."""
    window.open("/")
    window.until(lambda: window.streams)
    window.wait(IDLE)


def test_the_cluster_changes_in_place(site: Cluster, window: Window) -> None:
    follow(window)
    note_flows(window, RATE)
    window.ask(
        "void (window.kept = [...document.querySelectorAll('h1, h2, tbody th, .flow, td, svg')])"
    )
    with site.client() as client, client.producer() as producer:
        for burst in BURSTS:
            window.ask("void (window.flowed = false)")
            producer.send_batch("sensor-000", [b"x"] * burst)
            window.wait("window.flowed")
            window.wait(IDLE)
    assert window.ask("window.kept.length") > 10
    if window.ask("window.found"):
        pytest.skip("what the page finds wrong changed meanwhile: the machine is busy")
    now = "[...document.querySelectorAll('h1, h2, tbody th, .flow, td, svg')]"
    assert window.ask(f"{now}.every((node, k) => node === window.kept[k])")
    assert window.ask(f"{now}.length === window.kept.length")
    # A number of one more digit may move the columns beside it a little.
    assert moved(window) < 0.01


def test_a_topic_and_a_group_tell_what_is_sent(site: Cluster, open_window: Open) -> None:
    """Both lie in two replica groups."""
    topic, group = open_window(site.url), open_window(site.url)
    topic.open("/topics/wide")
    group.open("/groups/spreading")
    assert topic.sentence == "8 messages are kept in 4 queues in 2 replica groups."
    group.shows("4 messages behind on 4 of 4 queues")
    with site.client() as client, client.producer() as producer:
        producer.send("wide", b"{}", queue_id=0, group=OTHER_GROUP)
    topic.shows("9 messages are kept")
    group.shows("5 messages behind")
    assert moved(topic) < 0.001


def test_a_group_tells_which_queue_is_stuck(window: Window) -> None:
    window.open("/groups/billing")
    window.shows("No offset was committed in orders/")
    row = window.page.locator("tbody tr").first
    assert "No consumers" in row.inner_text()
    assert row.locator("[title^='Nothing committed for']").count() == 1
    assert violations(window) == []
    shifts = window.ask("window.shifts")
    assert [shift for shift in shifts if not AGES.search(shift)] == []


def test_the_list_of_topics_tells_rates_and_stays_with_the_search(
    site: Cluster, window: Window
) -> None:
    with site.client() as client, client.producer() as producer:
        producer.send_batch("sensor-012", [b"x"] * 50)  # so that later ones need no more digits
        window.open("/topics")
        window.until(lambda: len(window.streams) == 1)
        box = window.page.locator("#q")
        box.press_sequentially("sensor-01")
        window.shows("10 topics whose names contain “sensor-01”.")
        row = window.page.locator("#list tbody tr").nth(2).locator("td")
        kept, rate = row.nth(1), row.and_(window.page.locator(".rate"))
        assert kept.inner_text() == "50"
        window.until(lambda: rate.inner_text() == "0/s")
        note_flows(window, LISTED)
        window.ask("void (window.shifts = [], window.flowed = false)")
        producer.send_batch("sensor-012", [b"x"] * 40)
        window.wait("window.flowed")
        assert kept.inner_text() == "90"
    assert len(window.streams) == 1
    assert window.streams[0].url == f"{site.url}/topics?q=sensor-01"
    assert box.input_value() == "sensor-01"
    assert window.ask("document.activeElement.id") == "q"
    assert moved(window) < 0.001


def test_a_page_follows_only_while_it_is_shown(window: Window) -> None:
    follow(window)
    assert len(window.streams) == 1
    window.ask(HIDE.format("true"))
    window.until(lambda: not window.streams)
    window.ask(HIDE.format("false"))
    window.until(lambda: len(window.streams) == 1)
    follow(window)
    window.open("/topics")
    window.until(lambda: not window.streams)
    window.page.go_back()
    window.until(lambda: len(window.streams) == 1)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_times_are_of_the_browsers_zone(site: Cluster, open_window: Open, zone: str) -> None:
    window = open_window(site.url, zone=zone)
    window.open("/topics/orders/1/3")
    shown = window.page.locator("time").first
    at = datetime.fromtimestamp(int(shown.get_attribute("data-ms") or "") / 1000, ZoneInfo(zone))
    assert f"{at:%H:%M:%S}" in (shown.get_attribute("title") or "")
    assert f"{at.day} {at:%b}" in (shown.get_attribute("title") or "")
    assert shown.inner_text().endswith("ago")
    assert (shown.get_attribute("datetime") or "").endswith("Z")
