"""Fixtures for all tests."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before gRPC is loaded: it would start its threads again in a forked child, and now and then one of
# them ends the child with SIGSEGV.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from duolog._runtime import TRANSPORT_VARIABLE
from hypothesis import HealthCheck, settings

from duolog_server.store.messagestore import MessageStore
from sim.drawn import said
from tests import order, package
from tests.process.forks import nodes_are_forked
from tests.support import crash, open_store

# This machine is shared: how long one example takes says nothing.
settings.register_profile(
    "duolog", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("duolog")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--transport grpc` runs the SDK over gRPC alone; child processes, too."""
    parser.addoption("--transport", choices=("frames", "grpc"), default="frames")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.leftovers")
    os.environ[TRANSPORT_VARIABLE] = config.getoption("--transport")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, long tests come first."""
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers == 1:
        return
    tests: dict[Path, list[pytest.Item]] = {}
    ranks: dict[Path, int] = {}
    for item in items:
        markers = [mark.name for mark in item.iter_markers()]
        unit = item.path.parent if order.TOGETHER & set(markers) else item.path
        tests.setdefault(unit, []).append(item)
        ranks[unit] = min(order.rank(markers), ranks.get(unit, len(order.LONG)))
    items[:] = order.dealt([(ranks[unit], tests[unit]) for unit in tests], workers)


def pytest_collection_finish() -> None:
    """Modules and tests are here to stay: each search for garbage would walk through them again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """By what the simulator's runs were drawn: as CI shows, where one failed."""
    terminalreporter.write_line(f"runs of the simulator: {said()}")


@pytest.fixture(scope="session", autouse=True)
def forked_nodes() -> Iterator[None]:
    """Nodes in processes of their own start without loading their program each time."""
    with nodes_are_forked():
        yield


@pytest.fixture(scope="session", autouse=True)
def modules_are_loaded_once() -> Iterator[None]:
    """No test, and nothing that it calls, finds a module by its folder's own name."""
    yield
    assert package.second_copies(sys.modules) == []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A small store, closed afterwards whatever the test did."""
    opened = open_store(tmp_path / "store")
    yield opened
    if not opened._closed:
        crash(opened)
