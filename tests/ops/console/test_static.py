"""What a browser is given."""

import gzip
import hashlib
import re

from duolog_server.ops.console.app import STATIC
from duolog_server.ops.console.view.render import environment

GZIPPED_MAX = 400 << 10


def test_libraries_are_those_that_are_named_small_and_without_scripts_of_their_own() -> None:
    vendor = STATIC / "vendor"
    named = dict(
        re.findall(
            r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.M
        )
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.glob("*.js")
    }
    assert found == named
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < GZIPPED_MAX
    made = environment()
    assert made.loader is not None
    for name in made.list_templates():
        text = made.loader.get_source(made, name)[0]
        assert not re.search(
            r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|javascript:", text
        ), name
        assert "| safe" not in text, name
