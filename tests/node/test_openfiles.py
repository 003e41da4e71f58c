"""Light queues leave files for everything else."""

import resource

import pytest

from node import openfiles


@pytest.mark.parametrize(
    ("soft", "wanted", "allowed"),
    [(1024, 20_000, 256), (100_000, 20_000, 20_000), (resource.RLIM_INFINITY, 20_000, 20_000)],
)
def test_light_queues_take_a_share_of_the_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, allowed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert openfiles.light_queues_max(wanted) == allowed


def test_the_limit_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: given.append(limits))
    openfiles.raise_limit()
    assert given == [(4096, 4096)]
