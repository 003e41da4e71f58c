"""A node takes as many open files as it may have."""

import resource

import pytest

from node import openfiles


def test_the_limit_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: given.append(limits))
    openfiles.raise_limit()
    assert given == [(4096, 4096)]
