"""Frameworks that stand on Apache's classic Java client: Spring's starter, and Apache Camel."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_other_clients import PROGRAMS, fetch, need, outcome
from tests.conformance.test_remoting import POM, address

__all__ = ["address"]  # a fixture

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
SPRING = ("org.apache.rocketmq:rocketmq-spring-boot-starter:2.3.1",)
CAMEL = ("org.apache.camel:camel-core:4.10.5", "org.apache.camel:camel-rocketmq:4.10.5")


def framework(home: Path, program: str, artifacts: tuple[str, ...]) -> list[str]:
    """The command that runs a program with what Maven Central has of these."""
    need("java", "javac", "mvn")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in (one.split(":") for one in artifacts)
    )
    (home / "pom.xml").write_text(POM.format(dependencies=dependencies).strip())
    fetch("mvn", "-q", COPY, "-DoutputDirectory=lib", cwd=home)
    fetch("javac", "-nowarn", "-cp", "lib/*", "-d", "classes", str(PROGRAMS / program), cwd=home)
    path = f"{home}/lib/*:{home}/classes"
    return ["java", f"-Duser.home={home}", "-cp", path, program.removesuffix(".java")]


def test_spring_sends_hears_and_replies(tmp_path: Path, address: str) -> None:
    found: dict[str, Any] = outcome(*framework(tmp_path, "Spring4.java", SPRING), address)
    assert found["stored"]
    assert found["reply"] == "re: request"
    assert found["heard"] == ["async", "converted", "orderly", "sync"]


def test_camel_routes_from_and_to_a_topic(tmp_path: Path, address: str) -> None:
    found: dict[str, Any] = outcome(*framework(tmp_path, "Camel.java", CAMEL), address)
    assert found["heard"] == ["body0", "body1", "body2"]
