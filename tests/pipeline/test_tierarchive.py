"""The folder of tiered segments: which log is settled in it under which group."""

import json
import shutil
from pathlib import Path

import pytest
from duolog.spark._tier import MANIFEST, manifest_text

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.logidentity import LogIdentity
from duolog_server.pipeline.tierarchive import Archive

FIRST, SECOND = {1: (0, "a" * 8)}, {1: (0, "b" * 8)}  # epochs of two logs


def test_a_log_is_tiered_into_a_folder_under_one_group_only(tmp_path: Path) -> None:
    """Under a second group, each of its messages would be in the folder twice."""
    out = tmp_path / "out"
    mine = LogIdentity(FIRST, {0: "x"}, {100: "y"})
    Archive(out, "broker-a").settle(mine)
    Archive(out, "broker-b").settle(LogIdentity(SECOND, {0: "z"}))
    refusal = "already holds this log under group 'broker-a' .* --group broker-a, or give another"
    later = LogIdentity({**FIRST, 2: (100, "c" * 8)}, {100: "y"})
    foreign = LogIdentity({}, {0: "x"})  # another program's log: it has no epochs
    for again in (mine, later, foreign):
        with pytest.raises(BadJob, match=refusal):
            Archive(out, "broker-c").settle(again)
    assert not (out / MANIFEST / "broker-c").exists()  # it may still belong to another log
    Archive(out, "broker-a").settle(later)
    Archive(tmp_path / "other", "broker-c").settle(mine)


def test_a_log_is_known_by_its_manifests_where_its_claim_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Archive(out, "broker-a").settle(LogIdentity(FIRST))
    folder = out / MANIFEST / "broker-a"
    (folder / "log").unlink()
    manifest = {"rows": 0, "files": [], "log": LogIdentity({}, {0: "x"}).to_json()}
    (folder / f"{0:020d}.json").write_text(manifest_text(manifest))
    with pytest.raises(BadJob, match="under group 'broker-a'"):
        Archive(out, "broker-b").settle(LogIdentity({}, {0: "x"}))
    with pytest.raises(BadJob, match="holds another log for group 'broker-a'"):
        Archive(out, "broker-a").settle(LogIdentity({}, {0: "z"}))
    (folder / f"{0:020d}.json").write_text(json.dumps({"rows": 0, "files": []}))
    with pytest.raises(BadJob, match=f"{0:020d}.json does not say whose log"):
        Archive(out, "broker-b").settle(LogIdentity({}, {0: "x"}))
    shutil.rmtree(folder)
    Archive(out, "broker-b").settle(LogIdentity({}, {0: "x"}))
