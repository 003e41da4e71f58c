"""Passwords here are hashed as in a node."""

import pytest


@pytest.fixture(autouse=True)
def cheap_passwords() -> None:
    """As in the folder above, not here."""
