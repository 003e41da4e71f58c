"""Pages of the console, as tests look at them."""

import pytest

from duolog_server.ops.console import searches as running


@pytest.fixture(autouse=True)
def a_page_waits_until_its_search_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the half second of the first look ends before it."""
    monkeypatch.setattr(running, "FIRST_SECONDS", 20.0)
