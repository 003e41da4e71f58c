"""Whether there is a browser to test with."""

import importlib.util
import os
import shutil

import pytest

# The first has no windows to draw around a page, and opens one in a fifth of the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "Chromium is not installed (apt-get install chromium-headless-shell)"
NO_DRIVER = "Playwright is not installed (pip install playwright axe-playwright-python)"


def need_chromium() -> str:
    """The browser's program. Skips where there is none; in CI that is a failure."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    packages = ("playwright", "axe_playwright_python")
    missing = "" if found else NO_BROWSER
    if not all(importlib.util.find_spec(name) for name in packages):
        missing = NO_DRIVER
    if missing or found is None:
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found
