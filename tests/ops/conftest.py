"""Fixtures: a node inside the test's process, and a client for it."""

from tests.nodefixtures import (
    cheap_passwords,
    client,
    node,
    nothing_noted,
    quick_groups,
    short_polls,
    start_node,
)

__all__ = [
    "cheap_passwords",
    "client",
    "node",
    "nothing_noted",
    "quick_groups",
    "short_polls",
    "start_node",
]
