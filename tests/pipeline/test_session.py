"""A job without a working Java says so; its processes find the PySpark that is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from duolog_server.pipeline import session
from duolog_server.pipeline.errors import BadJob


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


HOME = Path(pyspark.__file__).parent
ARCHIVES = sorted((HOME / "python" / "lib").glob("*.zip"))


@pytest.fixture
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv(session.PYTHON, raising=False)


@pytest.mark.skipif(not ARCHIVES, reason="PySpark is not installed, only its client")
@pytest.mark.usefixtures("_nothing_told")
def test_tasks_import_the_installed_pyspark_not_the_archive_that_comes_first(
    tmp_path: Path,
) -> None:
    own = tmp_path / "a b"
    told = (
        "import os, py4j, pyspark; print(pyspark.__file__, py4j.__file__, os.environ['PYTHONPATH'])"
    )
    command = [session.task_python(), "-c", told]
    path = os.pathsep.join([*map(str, ARCHIVES), str(own), str(HOME.parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ".zip" not in found.stdout
    assert found.stdout.startswith(str(HOME))
    assert found.stdout.endswith(f"{own}{os.pathsep}{HOME.parent}\n")


@pytest.mark.usefixtures("_nothing_told")
def test_another_spark_and_a_program_that_cannot_run_leave_tasks_the_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert session.task_python() == sys.executable
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(session, "PROGRAM", tmp_path / "none.sh")
    assert session.task_python() == sys.executable
