"""Scrapes of a node, parsed by Prometheus' own library."""

import asyncio
import http.client
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    """What a node answered."""

    text: str

    @property
    def families(self) -> dict[str, Metric]:
        """The families by the name in their TYPE line."""
        found = {}
        for family in text_string_to_metric_families(self.text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name not in found, f"{name} comes twice"
            found[name] = family
        return found

    @property
    def values(self) -> dict[Key, float]:
        """The value of each series."""
        rows = [sample for family in self.families.values() for sample in family.samples]
        found = {(row.name, tuple(sorted(row.labels.items()))): row.value for row in rows}
        assert len(found) == len(rows), "a series comes twice"
        return found

    def value(self, name: str, **labels: str) -> float:
        """The value of the one series with a name and these labels among others."""
        rows = self.rows(name, **labels)
        assert len(rows) == 1, f"{name} {labels}: {rows}"
        return next(iter(rows.values()))

    def rows(self, name: str, **labels: str) -> dict[Key, float]:
        """The series with a name and these labels among others."""
        wanted = set(labels.items())
        return {
            key: value
            for key, value in self.values.items()
            if key[0] == name and wanted <= set(key[1])
        }


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.getheader("Content-Type", ""), reply.read().decode()
    finally:
        connection.close()


def scrape(port: int) -> Scrape:
    """The metrics now."""
    status, kind, text = get(port)
    assert (status, kind.partition(";")[0]) == (200, "text/plain"), text
    return Scrape(text)


async def scraped(port: int) -> Scrape:
    """As `scrape`, of a node on this event loop."""
    return await asyncio.to_thread(scrape, port)
