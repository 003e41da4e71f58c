"""Frameworks that stand on Apache's classic Java client: Spring's starter, and Apache Camel."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.languages import SOON_BALANCED, jars_of, java_with, outcome
from tests.conformance.test_remoting import address, listen, node

__all__ = ["address", "listen", "node"]  # fixtures

pytestmark = [pytest.mark.process, pytest.mark.long]

SPRING = ("org.apache.rocketmq:rocketmq-spring-boot-starter:2.3.1",)
CAMEL = ("org.apache.camel:camel-core:4.10.5", "org.apache.camel:camel-rocketmq:4.10.5")


def spring_jars() -> Path:
    """Spring's starter; skips where it cannot be had."""
    return jars_of("spring4", *SPRING)


def camel_jars() -> Path:
    """The same of Camel."""
    return jars_of("camel", *CAMEL)


def test_spring_sends_hears_and_replies(tmp_path: Path, address: str) -> None:
    found: dict[str, Any] = outcome(
        *java_with(spring_jars(), tmp_path, "Spring4.java", SOON_BALANCED), address
    )
    assert found["stored"]
    assert found["reply"] == "re: request"
    assert found["heard"] == ["async", "converted", "orderly", "sync"]


def test_camel_routes_from_and_to_a_topic(tmp_path: Path, address: str) -> None:
    found: dict[str, Any] = outcome(
        *java_with(camel_jars(), tmp_path, "Camel.java", SOON_BALANCED), address
    )
    assert found["heard"] == ["body0", "body1", "body2"]
