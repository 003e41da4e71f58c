"""All servers and clients of RocketMQ that tests run, fetched at once.

Run: python -m tests.conformance.fetched. Prints a line for each; what cannot be had is left to the
tests, which say what that means for them.
"""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conformance import brokers, languages, test_frameworks, test_mqadmin, test_remoting
from tests.interop.test_interop import fetch_store

Fetch = Callable[[], object]
NOT_HAD = (Exception, pytest.skip.Exception, pytest.fail.Exception)


def by_maven() -> Iterator[tuple[str, Fetch]]:
    """Those that one process after the other fetches; what most tests need comes first."""
    for version in test_mqadmin.VERSIONS:
        yield f"RocketMQ {version}", partial(brokers.jars_of, version)
        for artifact in ("rocketmq-client", "rocketmq-tools"):
            fetch = partial(test_remoting.classic_jars, version, artifact)
            yield f"{artifact} {version}", fetch
    for version in test_remoting.VERSIONS:
        yield f"rocketmq-client {version}", partial(test_remoting.classic_jars, version)
    yield "Java client", languages.client_jars
    yield "Spring Boot starter", languages.starter_jars
    yield "Spring", test_frameworks.spring_jars
    yield "Camel", test_frameworks.camel_jars
    yield "RocketMQ's store", _store


def by_others(home: Path) -> Iterator[tuple[str, Fetch]]:
    """Those of other languages. home: a directory for what is built beside them."""
    kinds = {"*.mjs": languages.nodejs, "*.go": languages.go, "*.rs": languages.rust}
    for pattern, command in kinds.items():
        for program in sorted(languages.PROGRAMS.glob(pattern)):
            yield program.name, partial(command, home, program.name)


def _store() -> None:
    languages.need("mvn")
    with TemporaryDirectory() as path:
        fetch_store(Path(path)).check_returncode()


def fetch_all(wanted: Iterator[tuple[str, Fetch]]) -> bool:
    """Fetch one after the other; whether all could be had."""
    had = True
    for name, fetch in wanted:
        began = time.monotonic()
        try:
            fetch()
        except NOT_HAD as reason:
            print(f"{name}: {reason}", flush=True)
            had = False
        else:
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    return had


def main() -> int:
    """Exit status: 1 where something could not be had."""
    with TemporaryDirectory() as home, ThreadPoolExecutor(2) as pool:
        return 0 if all(pool.map(fetch_all, (by_maven(), by_others(Path(home))))) else 1


if __name__ == "__main__":
    sys.exit(main())
