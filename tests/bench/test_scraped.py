"""The measurement of what metrics cost: it runs, and reads what a node says."""

import pytest

from bench import scraped
from duolog_server.demo.measure import Load


def test_the_time_to_store_a_batch_is_that_between_two_scrapes() -> None:
    def text(seconds: float, batches: int) -> str:
        labels = '{cluster="c",node_id="a b"}'
        return (
            "# HELP duolog_append_seconds Time.\n"
            f"duolog_append_seconds_count{labels} {batches}\n"
            f"duolog_append_seconds_sum{labels} {seconds}\n"
        )

    assert scraped.mean_append(text(1.0, 100), text(3.0, 500)) == pytest.approx(0.005)


@pytest.mark.process
async def test_the_measurement_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ROUNDS", 1), ("TOPICS", 3), ("SINGLE", 20), ("LOAD", Load(20_000, 100))):
        monkeypatch.setattr(scraped, name, value)
    scrapes, counting = await scraped.scraped()
    assert scrapes.numbers["series"] > 100
    assert 0 < counting.numbers["counting_us"] < counting.numbers["storing_us"]
