"""Fixtures: a node inside the test's process, and a client for it."""

from tests.nodefixtures import *  # noqa: F403
