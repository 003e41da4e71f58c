"""Fixtures for the tests of the jobs: Spark, a node, a client and a topic."""

from tests.sparkfixtures import client, node, place, spark, topic

__all__ = ["client", "node", "place", "spark", "topic"]
