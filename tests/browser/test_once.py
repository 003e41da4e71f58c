"""Forms that are sent twice, by a browser that runs no scripts: each does its work once."""

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Open
from tests.browser.site import Cluster, create
from tests.browser.window import Window

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.process, pytest.mark.browser]

AGAIN = "This form was sent before, so nothing was done again."


def fill_in(window: Window, topic: str) -> None:
    """The form of a message."""
    window.open(f"/topics/{topic}/send")
    window.page.get_by_label("Body").fill("once")
    window.page.get_by_label(f"Type {topic} to confirm").fill(topic)


def stored(site: Cluster, topic: str) -> int:
    """Messages of a topic."""
    with site.client() as client:
        return len(client.pull(topic, 0, 0))


def test_a_button_that_is_clicked_again_sends_one_message(site: Cluster, open_window: Open) -> None:
    with site.client() as client:
        create(client, "once-clicked", 1)
    window = open_window(site.url, scripts=False)
    fill_in(window, "once-clicked")
    statuses: list[int] = []

    def lose_the_first_answer(route: "Route") -> None:
        if route.request.method != "POST" or statuses:
            route.continue_()
            return
        statuses.append(route.fetch(max_redirects=0).status)
        route.abort("aborted")

    window.page.route("**/send", lose_the_first_answer)
    button = window.page.get_by_role("button", name="Send")
    button.click(no_wait_after=True)
    window.until(lambda: statuses)
    assert (statuses, stored(site, "once-clicked")) == ([303], 1)
    button.click()
    window.page.wait_for_url("**/topics/once-clicked/0/0?group=*")
    assert f"{AGAIN} Stored as once-clicked/0@0." in window.page.locator(".told").inner_text()
    assert stored(site, "once-clicked") == 1


def test_a_form_that_is_sent_again_later_sends_no_further_message(
    site: Cluster, open_window: Open
) -> None:
    with site.client() as client:
        create(client, "once-later", 1)
    window = open_window(site.url, scripts=False)
    fill_in(window, "once-later")
    fields: dict[str, str | float | bool] = {
        str(one.get_attribute("name")): one.input_value()
        for one in window.page.locator("form.action :is(input, select, textarea)").all()
    }
    window.page.get_by_role("button", name="Send").click()
    window.page.wait_for_url("**/topics/once-later/0/0?group=*")
    # As a reload of the answer to a form asks for it again.
    url = f"{site.url}/topics/once-later/send"
    answer = window.page.request.post(url, form=fields, headers={"Origin": site.url})
    assert answer.url.startswith(f"{site.url}/topics/once-later/0/0")
    assert f"{AGAIN} Stored as once-later/0@0." in answer.text()
    assert stored(site, "once-later") == 1


def test_the_button_back_leads_to_a_form_that_sends_nothing_further(
    site: Cluster, open_window: Open
) -> None:
    with site.client() as client:
        create(client, "once-back", 1)
    window = open_window(site.url, scripts=False)
    fill_in(window, "once-back")
    window.page.get_by_role("button", name="Send").click()
    window.page.wait_for_url("**/topics/once-back/0/0?group=*")
    window.page.go_back(wait_until="commit")  # a page that was kept is not loaded
    again = window.page.get_by_label("Type once-back to confirm")
    again.wait_for()
    # A browser that has kept the page has kept what was typed, and the form; or it has neither.
    if again.input_value():
        window.page.get_by_role("button", name="Send").click()
        window.page.get_by_text(AGAIN).wait_for()
    assert stored(site, "once-back") == 1
