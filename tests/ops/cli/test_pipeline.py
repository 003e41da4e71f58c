"""`duolog pipeline`: what is refused before Spark starts."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from duolog_server.ops.cli import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("audit {none}", "none: no such directory"),
        ("audit {store} --against {none}", "none: no such directory"),
        ("rebuild {empty}", "empty is not a store directory"),
        ("tier {none} --out {empty}", "none: no such directory"),
        ("tier {store} --out {file}", "file is not a directory"),
        ("tier {store} --out {empty} --group ../x", "--group '../x' is not a valid name"),
        ("replay x.txt --to T", "format is not one of"),
        ("replay --to T", "give either files or a source topic"),
        ("replay x.csv --to T --rate -1", "--rate is -1"),
        ("replay x.csv --to T -e nonsense", "'nonsense' is not HOST:PORT"),
        ("report --out {file}", "file is not a directory"),
        ("report --out {empty} -e nonsense", "'nonsense' is not HOST:PORT"),
    ],
)
def test_wrong_input_is_refused_before_spark_starts(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*arguments: Any) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("duolog_server.pipeline.session.spark_session", starts)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    paths = {name: tmp_path / name for name in ("none", "store", "empty", "file")}
    (paths["store"] / "commitlog").mkdir(parents=True)
    (paths["store"] / "commitlog" / f"{0:020d}").write_bytes(bytes(8))
    paths["empty"].mkdir()
    paths["file"].write_text("")
    given = ["pipeline", *(word.format(**paths) for word in words.split())]
    monkeypatch.setattr(sys, "argv", ["duolog", *given])
    done = CliRunner().invoke(main.app, given)
    assert (done.exit_code, done.stdout) == (1, ""), done
    assert told in done.stderr.replace(f"{tmp_path}/", "")
