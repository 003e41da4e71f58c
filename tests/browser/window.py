"""A tab of a real browser at a console, and all that the browser complains of."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.until import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Dialog, Page, Request, Response

WAIT_SECONDS = 60.0  # a browser beside others
SCREENSHOTS = "DUOLOG_TEST_SCREENSHOTS"  # a directory that gets a picture of every page
STREAM = "text/event-stream"
LEFT = "Execution context was destroyed"
# The shifts of the layout that nobody's input explains.
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries())
    if (!one.hadRecentInput)
      window.shifts.push(one.value + " " + one.sources.map((source) => {
        const node = source.node;
        return node && (node.outerHTML || node.textContent || "").slice(0, 80);
      }).join(" | "));
}).observe({type: "layout-shift", buffered: true});
"""
# Whether what the page finds wrong has changed: that moves what is below it. A machine that does
# other things has nodes that answer late or lag, also when a page has just been opened.
FOUND = """
document.addEventListener("DOMContentLoaded", () => {
  const told = () => document.querySelector(".findings")?.innerText, first = told();
  new MutationObserver(() => { window.found ||= told() !== first; })
    .observe(document.body, {childList: true, subtree: true, characterData: true});
});
"""


class Window:
    """A tab. complaints: errors, warnings and violations of its pages. streams: that are open."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        page.set_default_timeout(1000 * WAIT_SECONDS)
        self.complaints: list[str] = []
        self.streams: list[Request] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._asked_back)
        page.on("response", self._answered)
        page.on("request", self._asked)
        page.on("requestfinished", self._over)
        page.on("requestfailed", self._over)
        page.add_init_script(SHIFTS + FOUND)

    def _heard(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked_back(self, dialog: "Dialog") -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _answered(self, response: "Response") -> None:
        if response.status >= 500:
            self.complaints.append(f"{response.status} {response.url}")

    def _asked(self, request: "Request") -> None:
        if request.resource_type == "eventsource":
            self.streams.append(request)

    def _over(self, request: "Request") -> None:
        if request in self.streams:
            self.streams.remove(request)

    def open(self, path: str) -> None:
        """Go to a page of the console."""
        self.page.goto(path)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for something outside the page."""
        wait_until(holds, seconds=WAIT_SECONDS, sleep=self._go_on)

    def _go_on(self, seconds: float) -> None:
        self.page.wait_for_timeout(1000 * seconds)

    def shows(self, text: str) -> None:
        """Wait until the page's sentence has a text."""
        self.page.locator(".sentence", has_text=text).wait_for(timeout=WAIT_SECONDS * 1000)

    def ask(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        return self.page.evaluate(expression)

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true, on this page or on the one that follows."""
        self.until(lambda: self._holds(expression))  # Playwright's own way is against the policy

    def _holds(self, expression: str) -> bool:
        from playwright.sync_api import Error

        try:
            return bool(self.ask(expression))
        except Error as error:
            if LEFT not in str(error):
                raise
            return False  # the browser went to another page meanwhile

    def refused(self, status: int) -> None:
        """Wait until the browser complains that a page has this status, which is then forgotten."""
        told = f"the server responded with a status of {status} "
        self.until(lambda: any(told in one for one in self.complaints))
        self.complaints = [one for one in self.complaints if told not in one]

    @property
    def sentence(self) -> str:
        """The first sentence of the page."""
        return self.page.locator(".sentence").inner_text()

    def picture(self, name: str) -> None:
        """Keep a picture where somebody wants them."""
        directory = os.environ.get(SCREENSHOTS)
        if directory:
            self.page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)
