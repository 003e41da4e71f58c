"""The server that users install is one package, and no module of it has a second name."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.package import LINKS, OWN_NAMES, PACKAGE, ROOT, second_copies

IMPORTS = re.compile(
    rf"^\s*((?:from|import) (?:{'|'.join(map(re.escape, OWN_NAMES))})(?:\.\w+)*)(?: |$)",
    re.MULTILINE,
)


def test_links_lead_into_the_repository() -> None:
    assert {"ha", "node", "store"} < set(OWN_NAMES)
    for path in LINKS:
        assert not path.readlink().is_absolute()
        assert path.exists()


def test_no_source_imports_a_folder_by_its_own_name() -> None:
    folders = (
        "bench",
        "cluster",
        "demo",
        "ha",
        "node",
        "pipeline",
        "sim",
        "store",
        "tests",
        "tools",
    )
    found = [
        (str(path.relative_to(ROOT)), line)
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for line in IMPORTS.findall(path.read_text())
    ]
    assert found == []


def test_ruff_refuses_these_names_and_a_second_copy_is_found() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert set(OWN_NAMES) <= set(settings["flake8-tidy-imports"]["banned-api"])
    ha, store = "import" + " ha", "from store" + ".errors"
    assert IMPORTS.findall(f"    {store} import StoreError\n{ha}\n") == [store, ha]
    names = ["duolog_server.store", "os", "store.errors", "sim.linearizable", "sim.world", "storey"]
    assert second_copies(names) == ["sim.linearizable", "store.errors"]


@pytest.mark.long
def test_the_wheel_has_one_package_with_all_its_files(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    leave = shutil.ignore_patterns("__pycache__", "_compiled.*", "*.pyi", "README.md")
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=leave)
    build = "import setuptools.build_meta as made; made.build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kept = (tmp_path / PACKAGE.name).rglob("*")
    assert packed == {str(path.relative_to(tmp_path)) for path in kept if path.is_file()}
