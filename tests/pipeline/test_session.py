"""A job without a working Java says so."""

from pathlib import Path

import pytest

from pipeline import session
from pipeline.errors import BadJob


def java(folder: Path, script: str) -> None:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_job_without_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadJob, match="apt-get install"):
        session.spark_session("test")
    java(tmp_path, "exit 1")
    with pytest.raises(BadJob, match="apt-get install"):
        session.spark_session("test")


def test_a_java_that_hangs_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, "exec /bin/sleep 30")
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "JAVA_SECONDS", 0.2)
    with pytest.raises(BadJob, match="did not answer"):
        session.spark_session("test")
